"""`train.log`: what the processes print, its beginning and its end where that is too much."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from offpolicy import fault

MIB = 2**20
LONGEST = 32 * MIB  # bytes of the file, but for what is printed between two looks at it
HEAD = 4 * MIB  # bytes kept of the beginning
TAIL = 8 * MIB  # bytes kept of the end
NOTICE = re.compile(rb"\n\[\.\.\. ([0-9,]+) bytes left out \.\.\.\]\n")
MOST_NOTICE = 64  # bytes of a notice


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

    The end is written over the middle before it is cut off, so a disk that refuses costs the middle only. What is
    printed in the instant between the reading of the end and the cut is lost.
    """
    size = os.fstat(fd).st_size
    if size <= longest:
        return
    with contextlib.suppress(OSError), open(f"/proc/self/fd/{fd}", "r+b", buffering=0) as file:  # `fd` appends alone
        end = os.pread(fd, tail, size - tail)
        earlier = NOTICE.match(os.pread(fd, MOST_NOTICE, head))  # of the last cut
        left_out = size - head - len(end)
        if earlier is not None:
            left_out += int(earlier[1].replace(b",", b"")) - len(earlier[0])
        kept = f"\n[... {left_out:,} bytes left out ...]\n".encode() + end
        file.seek(head)
        fault.hit("train_log.trim")
        if file.write(kept) == len(kept):
            fault.hit("train_log.trim")
            file.truncate()
