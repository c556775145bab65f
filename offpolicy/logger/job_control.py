"""Ctrl-Z, `fg` and `bg` while a panel has the terminal: noted by signal handlers, answered at the next tick."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import IO


class JobControl:
    """Notes SIGTSTP and SIGCONT from `open` to `close`, unless someone else handles or ignores them."""

    def __init__(self) -> None:
        self._noted: set[int] = set()
        self._handled: list[int] = []

    def open(self, stream: IO[str]) -> None:
        """Begins to note, if `stream` is the terminal that controls this process; a second call does nothing."""
        if self._handled or _foreground_group(stream) is None:
            return
        for number in (signal.SIGTSTP, signal.SIGCONT):
            if signal.getsignal(number) == signal.SIG_DFL:
                try:
                    signal.signal(number, self._note)
                except ValueError:  # not the main thread
                    return
                self._handled.append(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted.add(number)

    @property
    def is_noted(self) -> bool:
        """True if the terminal is to be given back, or was away: `answer` comes next."""
        return bool(self._noted)

    def answer(self) -> None:
        """Stops this process after Ctrl-Z; returns when it is continued. The children were stopped by the terminal."""
        is_stopping = signal.SIGTSTP in self._noted
        self._noted.clear()
        if is_stopping:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTSTP)  # does nothing where no shell could continue it
            signal.signal(signal.SIGTSTP, self._note)

    def close(self) -> None:
        """Ends noting; a Ctrl-Z without an answer stops the process now. A second call does nothing."""
        if self._handled:
            self.answer()
        while self._handled:
            signal.signal(self._handled.pop(), signal.SIG_DFL)
        self._noted.clear()


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
