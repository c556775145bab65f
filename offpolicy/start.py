"""The first moments of a command: a stop signal ends it at once, with no traceback.

It imports almost nothing, so that it can be called before everything else.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from offpolicy.errors import EXIT_INTERRUPTED, EXIT_TERMINATED

_clean_ups: list[Callable[[], object]] = []
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
