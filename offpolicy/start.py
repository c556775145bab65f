"""The first moments of a command: three open streams, and a Ctrl-C that ends it with 130 and no traceback.

It imports almost nothing, so that it can be called before everything else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from offpolicy.errors import EXIT_INTERRUPTED

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


def _exit(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"offpolicy: interrupted\n")
    os._exit(EXIT_INTERRUPTED)
