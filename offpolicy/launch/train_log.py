"""`train.log`: what the processes print, its beginning and its end where that is too much."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from offpolicy import fault

MIB = 2**20
LONGEST = 32 * MIB  # bytes of the file, but for what is printed between two looks at it
HEAD = 4 * MIB  # bytes kept of the beginning
TAIL = 8 * MIB  # bytes kept of the end


@contextlib.contextmanager
def open_train_log(path: Path) -> Iterator[int]:
    """Opens the file that the processes append their stdout and stderr to; the lines of earlier starts stay."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        yield fd
        trim_train_log(fd)
    finally:
        os.close(fd)


def trim_train_log(fd: int, longest: int = LONGEST, head: int = HEAD, tail: int = TAIL) -> None:
    """Cuts the middle out of a file that has grown too long.

    What is printed in the instant between the reading of the end and the cut is lost. A disk that refuses costs the
    middle only when there is room again.
    """
    size = os.fstat(fd).st_size
    if size <= longest:
        return
    with contextlib.suppress(OSError):
        end = os.pread(fd, tail, size - tail)
        fault.hit("train_log.trim")
        os.ftruncate(fd, head)
        os.write(fd, f"\n[... {size - head - len(end):,} bytes left out ...]\n".encode() + end)
