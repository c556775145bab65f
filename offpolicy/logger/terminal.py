"""The terminal that a panel draws on: the keys pressed, and Ctrl-Z, `fg` and `bg`."""

from __future__ import annotations

import os
import select
import signal
import termios
from types import FrameType
from typing import IO


class Terminal:
    """Reads keys from `take` to `give_back`, without waiting and without echo, and notes SIGTSTP and SIGCONT.

    Both only in the foreground of the terminal that controls this process; a signal that someone else handles stays
    theirs. It is noted until `close`, and answered by `stop`: the terminal has to be given back first.
    """

    def __init__(self, output: IO[str], keys: IO[str] | None = None) -> None:
        self._output, self._keys = output, keys
        self._saved: list[int | list[bytes | int]] | None = None  # settings, while keys are read
        self._handled: list[int] = []
        self.noted: set[int] = set()  # signals for which the terminal is to be given back: `stop` comes next

    def take(self) -> bool:
        """Begins to note the signals, and to read keys: returns whether there are any."""
        if not self._handled and _foreground_group(self._output) is not None:
            for number in (signal.SIGTSTP, signal.SIGCONT):
                if signal.getsignal(number) == signal.SIG_DFL:
                    try:
                        signal.signal(number, self._note)
                    except ValueError:  # not the main thread
                        break
                    self._handled.append(number)
        if self._keys is not None and _foreground_group(self._keys) == os.getpgrp():
            self._saved, quiet = termios.tcgetattr(self._keys), termios.tcgetattr(self._keys)
            quiet[3] &= ~(termios.ICANON | termios.ECHO)  # Ctrl-C stays a signal
            termios.tcsetattr(self._keys, termios.TCSANOW, quiet)
        return self._saved is not None

    def read(self) -> str:
        """Returns the keys pressed since the last call."""
        keys = self._keys
        if keys is None or self._saved is None or _foreground_group(keys) != os.getpgrp():
            return ""
        is_ready = bool(select.select([keys], [], [], 0)[0])
        return os.read(keys.fileno(), 64).decode("ascii", "ignore") if is_ready else ""

    def give_back(self) -> None:
        """Gives the terminal its settings back, unless another job has it by now; a second call does nothing."""
        saved, self._saved = self._saved, None
        # From the background, setting them would stop this process. Not TCSADRAIN: after a Ctrl-S it waits for Ctrl-Q.
        if saved is not None and self._keys is not None and _foreground_group(self._keys) == os.getpgrp():
            termios.tcsetattr(self._keys, termios.TCSANOW, saved)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.noted.add(number)

    def stop(self) -> None:
        """Stops this process after Ctrl-Z; returns when it is continued. The terminal itself stops the children."""
        is_stopping = signal.SIGTSTP in self.noted
        self.noted.clear()
        if is_stopping:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTSTP)  # does nothing where no shell could continue it
            signal.signal(signal.SIGTSTP, self._note)

    def close(self) -> None:
        """Notes no more signals; a Ctrl-Z without an answer stops the process now. A second call does nothing."""
        self.stop()
        while self._handled:
            signal.signal(self._handled.pop(), signal.SIG_DFL)


def is_foreground(stream: IO[str]) -> bool:
    """False if `stream` is the terminal that controls this process, and another job has it."""
    # 0 is a job outside of this container: it is the one that shows us.
    return _foreground_group(stream) in (None, 0, os.getpgrp())


def _foreground_group(stream: IO[str]) -> int | None:
    """Returns the process group that has the terminal; None where `stream` is not our terminal."""
    try:
        return os.tcgetpgrp(stream.fileno())
    except Exception:  # it has no file: a program may have put anything in place of stdout
        return None
