"""Stdout and stderr, whoever has closed them or reads no more; and the texts of numbers."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
from collections import deque
from typing import IO, Any, TextIO, cast

from offpolicy import fault

STANDARD = ("stdin", "stdout", "stderr")  # by descriptor
MOST_TEXTS = 10_000  # that wait to be written; beyond them the oldest are left out
UNKNOWN = "-"  # in place of a number
PATIENCE_S = 5.0  # without a byte that is read, after which the end of a run waits no longer


def open_descriptors() -> None:
    """Opens what the caller has closed (`>&-`) on /dev/null, else the first file of a run would become its stdout."""
    for fd in range(len(STANDARD)):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free descriptor: this one


def open_streams() -> None:
    """Opens what the caller has closed on /dev/null: descriptors, and Python's streams. No encoding refuses a text."""
    open_descriptors()
    for fd, name in enumerate(STANDARD):
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, "w" if fd else "r", closefd=False))  # noqa: SIM115  # as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


class _LossyFile(io.FileIO):
    """A file for text that may be lost: what cannot be written counts as written."""

    def write(self, content: Any, /) -> int:  # Any: bytes, in any kind of buffer
        with contextlib.suppress(OSError):
            return super().write(content)
        return len(content)


def drop_refused(*names: str) -> None:
    """Drops from now on what cannot be written to stdout or stderr: a full disk fails no print and no exit code.

    A stream that a program has put in the place of Python's own stays as it is.
    """
    for name in names:
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            buffer = io.BufferedWriter(_LossyFile(stream.fileno(), "w", closefd=False))
            is_by_line = stream.line_buffering or stream.write_through
            setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=is_by_line))


def silence(stream: object) -> None:
    """Points the file of a stream that refuses text at the null device: its flush at exit would fail as well."""
    with contextlib.suppress(Exception):  # it has no file: a program may have put anything in place of stdout
        fd = stream.fileno()  # type: ignore[attr-defined]  # rich wraps streams; any without one raises here
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, fd)
        os.close(null)


def nonblocking(stream: TextIO) -> TextIO:
    """Returns a stream that writes to the file of `stream` and never waits; `stream` itself where it has no file."""
    try:
        has_file = isinstance(stream, io.TextIOWrapper) and stream.fileno() >= 0  # a notebook's stream is no wrapper
    except (OSError, ValueError):  # in memory, or closed
        has_file = False
    return cast("TextIO", NonBlockingStream(stream)) if has_file else stream


def is_behind(stream: IO[str]) -> bool:
    """True if not all that was written to a stream has been taken yet."""
    return isinstance(stream, NonBlockingStream) and stream.is_writing


def drain(stream: IO[str]) -> None:
    """Waits until all that was written to a stream is taken, or nothing was read for `PATIENCE_S`."""
    if isinstance(stream, NonBlockingStream):
        stream.drain()


class NonBlockingStream:
    """A text stream whose writes never wait: a thread writes whole texts in their order, while there are any.

    A full pipe, a pager, Ctrl-S and a stalled ssh stop whoever writes to them: that must not be the supervisor.
    """

    def __init__(self, stream: TextIO) -> None:
        self.encoding = stream.encoding
        self.isatty, self.fileno = stream.isatty, stream.fileno
        self._stream, self._fd = stream, stream.fileno()
        self._texts = deque[bytes](maxlen=MOST_TEXTS)
        self._num_taken = 0
        self._error: Exception | None = None
        self._is_given_up = False  # nothing was read for `PATIENCE_S`
        self._changed = threading.Condition()
        self.is_writing = False  # there is a thread, so there is something to write

    def write(self, text: str) -> int:
        """Hands a text to the thread. Raises the error with which an earlier one was refused."""
        with self._changed:
            if self._error is not None:
                raise self._error
            self._texts.append(text.encode(self.encoding, "replace"))
            if not self.is_writing:
                threading.Thread(target=self._write_all, name="console", daemon=True).start()
                self.is_writing = True
        return len(text)

    def flush(self) -> None:
        """Does nothing: the thread writes as soon as it can."""

    def drain(self) -> None:
        """Waits until all is written, or nothing was read for `PATIENCE_S`: then no later call waits either."""
        with self._changed:
            while self.is_writing and not self._is_given_up:
                before = self._num_taken
                self._changed.wait(PATIENCE_S)
                self._is_given_up = self._num_taken == before

    def _write_all(self) -> None:
        """Runs in the thread. It ends with the last text, or with the first that is refused."""
        try:
            while content := self._next():
                self._stream.flush()  # what a callback has printed before
                while content:
                    fault.hit("console.write")
                    written = os.write(self._fd, content[: select.PIPE_BUF])
                    content = content[written:]
                    self._num_taken += written  # what is read of a long text counts, too
        except Exception as error:  # its reader has left, or it was closed; or of what a program has wrapped
            with self._changed:
                self._error, self.is_writing = error, False
                self._changed.notify()

    def _next(self) -> bytes:
        """Returns what is to be written next; nothing, and the thread ends, once all is written."""
        with self._changed:
            self._num_taken += 1
            self._is_given_up, self.is_writing = False, bool(self._texts)
            self._changed.notify()
            return self._texts.popleft() if self._texts else b""


def counted(number: int, noun: str) -> str:
    """Returns `1 thread`, `2,000 threads`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def three_digits(value: float | None) -> str:
    """Returns three significant digits: `0.0123`, `-812`, `1.23e7`; `-` for None."""
    if value is None:
        return UNKNOWN
    mantissa, _, exponent = f"{value:z#.3g}".partition("e")
    return mantissa.rstrip(".") + (f"e{int(exponent)}" if exponent else "")


def return_text(value: float | None, thousands: str = "") -> str:
    """Returns a return or the spread of returns: one decimal, three significant digits of a small or huge one.

    `thousands` separates groups of three digits.
    """
    if value is not None and (value == 0.0 or 9.995 <= abs(value) < 999_999.95):  # noqa: PLR2004  # rounds to 10.0, and to 999,999.9
        return f"{value:z{thousands}.1f}"
    return three_digits(value)
