"""The first moments of a command: three open streams, and a Ctrl-C that ends it with 130 and no traceback.

It imports almost nothing, so that it can be called before everything else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from offpolicy.errors import EXIT_INTERRUPTED

_clean_ups: list[Callable[[], object]] = []
STANDARD = {0: "r", 1: "w", 2: "w"}  # descriptors and their modes


def open_streams() -> None:
    """Opens what the caller has closed (`>&-`) on /dev/null.

    The first file that a run opens would otherwise become its stdout, and a child's stdout would overwrite it.
    """
    for fd in STANDARD:
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free descriptor: this one
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, STANDARD[fd], closefd=False))  # noqa: SIM115  # for the life of the process


@contextlib.contextmanager
def interrupts_exit() -> Iterator[None]:
    """Lets a Ctrl-C end the process at once, where nothing is open yet that must be closed.

    A `KeyboardInterrupt` would be wrapped, or swallowed, by the libraries that the start calls. Where Ctrl-C is ignored
    or handled by the caller, nothing changes.
    """
    before = signal.getsignal(signal.SIGINT)
    if before not in (signal.default_int_handler, _exit):
        yield
        return
    signal.signal(signal.SIGINT, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def cleaned_up(clean_up: Callable[[], object]) -> Iterator[None]:
    """Lets a Ctrl-C that ends the process, see `interrupts_exit`, call `clean_up` first, in the signal's handler."""
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
    os._exit(EXIT_INTERRUPTED)
