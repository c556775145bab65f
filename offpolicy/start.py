"""The first moments of a command: three open streams, and a stop signal that ends it at once, with no traceback.

It imports almost nothing, so that it can be called before everything else.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from offpolicy.errors import EXIT_INTERRUPTED, EXIT_TERMINATED

_clean_ups: list[Callable[[], object]] = []
STANDARD = {0: "r", 1: "w", 2: "w"}  # descriptors and their modes
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def open_descriptors() -> None:
    """Opens what the caller has closed (`>&-`) on /dev/null; Python's own streams stay as they are.

    The first file that a run opens would otherwise become its stdout, and a child's stdout would overwrite it.
    """
    for fd in STANDARD:
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free descriptor: this one


def open_streams() -> None:
    """Opens what the caller has closed (`>&-`) on /dev/null: descriptors, and Python's streams."""
    open_descriptors()
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, STANDARD[fd], closefd=False))  # noqa: SIM115  # for the life of the process


class _LossyFile(io.FileIO):
    """A file for text that may be lost: what cannot be written counts as written, but the first time if it `raises`."""

    refused: OSError | None = None  # why something was lost
    raises = False

    def write(self, content: Any, /) -> int:  # Any: bytes, in any kind of buffer
        try:
            return super().write(content)
        except OSError as error:
            is_first, self.refused = self.refused is None, error
            if is_first and self.raises:
                raise
            return len(content)


def drop_refused(*names: str) -> None:
    """Drops from now on what cannot be written to stdout or stderr: a full disk must not fail whoever prints.

    Nor must it change the exit code: an interpreter that cannot write the rest of a stream at its end exits with 120. A
    stream that a program has put in the place of Python's own stays as it is.
    """
    for name in names:
        _replace(name)


def stop_refused(name: str) -> Callable[[], OSError | None]:
    """Makes the first text that stdout or stderr refuses an `OSError`, and drops what comes after it.

    Returns a function that returns that error, None while there is none: other `OSError`s are of other files.
    """
    file = _replace(name)
    if file is None:
        return lambda: None
    file.raises = True
    return lambda: file.refused


def _replace(name: str) -> _LossyFile | None:
    """Puts another stream in the place of Python's own, and returns its file; None where a program has its own."""
    stream = getattr(sys, name)
    if stream is None or stream is not getattr(sys, f"__{name}__"):
        return None
    file = _LossyFile(stream.fileno(), "w", closefd=False)
    is_by_line = stream.line_buffering or stream.write_through
    buffer = io.BufferedWriter(file)
    setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=is_by_line))
    return file


@contextlib.contextmanager
def interrupts_exit() -> Iterator[None]:
    """Lets a stop signal end the process at once, where nothing is open yet that must be closed.

    A `KeyboardInterrupt` would be wrapped, or swallowed, by the libraries that the start calls, and SIGTERM would leave
    what the start has started. Where a signal is ignored or handled by the caller, nothing changes.
    """
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    ours = [number for number in STOP_SIGNALS if before[number] in (signal.default_int_handler, signal.SIG_DFL, _exit)]
    for number in ours:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is _exit:  # else the run has ended, and ignores them from there on
                signal.signal(number, before[number])


class StopSignal(KeyboardInterrupt):
    """SIGTERM or SIGHUP, where they end a command as Ctrl-C does."""

    exit_code = EXIT_TERMINATED


@contextlib.contextmanager
def stops_interrupt() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP raise `StopSignal`, as Ctrl-C raises `KeyboardInterrupt`: children are to be stopped.

    The first one counts, as a terminal that closes sends both: later ones do nothing, and Ctrl-C ends the stopping.
    Where a signal is ignored or handled by the caller, nothing changes.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        raise StopSignal(signal.Signals(number).name)

    ours = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def cleaned_up(clean_up: Callable[[], object]) -> Iterator[None]:
    """Lets a signal that ends the process, see `interrupts_exit`, call `clean_up` first, in the signal's handler."""
    _clean_ups.append(clean_up)
    try:
        yield
    finally:
        _clean_ups.remove(clean_up)


def drop_save_requests() -> None:
    """Lets a SIGUSR1 do nothing until a run has processes that can save: by default it would end the command."""
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, lambda *_: None)


def _exit(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"offpolicy: interrupted\n")
    for clean_up in reversed(_clean_ups):
        with contextlib.suppress(Exception):
            clean_up()
    os._exit(EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED)


def interrupted_code(error: KeyboardInterrupt) -> int:
    """Returns the exit code of a command that Ctrl-C or a `StopSignal` has ended."""
    return error.exit_code if isinstance(error, StopSignal) else EXIT_INTERRUPTED
