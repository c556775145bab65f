"""Keys pressed while a run trains, read without waiting and without echo; the terminal gets its settings back."""

from __future__ import annotations

import contextlib
import os
import select
import termios
from typing import TextIO


class Keyboard:
    """The keys of a terminal. Where there is none, or the run is in the background, there are no keys."""

    def __init__(self, stream: TextIO | None) -> None:
        self._fd: int | None = None
        self._saved: list[int | list[bytes | int]] = []
        with contextlib.suppress(OSError, ValueError, AttributeError, termios.error):
            fd = stream.fileno() if stream is not None else -1
            if os.isatty(fd) and _is_foreground(fd):
                self._saved = termios.tcgetattr(fd)
                quiet = termios.tcgetattr(fd)
                quiet[3] &= ~(termios.ICANON | termios.ECHO)  # Ctrl-C stays a signal
                termios.tcsetattr(fd, termios.TCSANOW, quiet)
                self._fd = fd

    @property
    def is_open(self) -> bool:
        """True if keys are read."""
        return self._fd is not None

    def read(self) -> str:
        """Returns the keys pressed since the last call."""
        if self._fd is None:
            return ""
        with contextlib.suppress(OSError):
            if _is_foreground(self._fd) and select.select([self._fd], [], [], 0)[0]:
                return os.read(self._fd, 64).decode("ascii", "ignore")
        return ""

    def close(self) -> None:
        """Gives the terminal its settings back, unless another job has it by now; a second call does nothing."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError, termios.error):
                if _is_foreground(fd):  # from the background, setting them would stop this process
                    termios.tcsetattr(fd, termios.TCSANOW, self._saved)  # not DRAIN: it waits for Ctrl-Q after a Ctrl-S


def _is_foreground(fd: int) -> bool:
    return os.tcgetpgrp(fd) == os.getpgrp()
