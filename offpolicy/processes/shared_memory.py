"""Anonymous shared memory and wake events, passed to children by file descriptor.

Nothing has a name in `/dev/shm`, so nothing can be left there: the kernel frees the memory with the last process.
No multiprocessing primitive is used: a peer killed while holding a lock would block all others for ever.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

from offpolicy import fault
from offpolicy.processes.children import wait_readable


class SharedBlock:
    """A block of zeroed shared memory; `buffer` is its writable view. Its first `allocated` bytes are there."""

    def __init__(self, fd: int, size: int, allocated: int | None = None) -> None:
        self.fd, self.size, self.allocated = fd, size, size if allocated is None else allocated
        self.buffer = memoryview(mmap.mmap(fd, size))

    @classmethod
    def create(cls, name: str, size: int, room: int = 0) -> SharedBlock:
        """Allocates `size` bytes now, so that no write to them fails later. Raises OSError if they do not fit.

        `room`: bytes of the view, if more; the kernel finds memory for those beyond `size` when they are written.
        """
        fd = os.memfd_create(f"offpolicy-{name}", os.MFD_CLOEXEC)
        try:
            fault.hit("memory.allocate")
            os.posix_fallocate(fd, 0, size)
            os.ftruncate(fd, max(room, size))
            return cls(fd, max(room, size), size)
        except OSError:
            os.close(fd)
            raise

    def clear(self) -> None:
        """Zeroes the block, whose views stay, when no other process uses it. Raises OSError if memory is short."""
        os.ftruncate(self.fd, 0)
        try:
            fault.hit("memory.allocate")
            os.posix_fallocate(self.fd, 0, self.allocated)
        finally:  # a read of a view beyond the end of the file would be SIGBUS
            os.ftruncate(self.fd, self.size)

    def close(self) -> None:
        """Gives the memory back and closes the descriptor; views that are left see zeros."""
        os.ftruncate(self.fd, 0)
        os.ftruncate(self.fd, self.size)
        os.close(self.fd)

    @classmethod
    def attach(cls, fd: int, at_least: int = 0) -> SharedBlock:
        """Returns the block behind an inherited descriptor, grown first to `at_least` bytes, or raises OSError."""
        if at_least:
            os.posix_fallocate(fd, 0, at_least)
        return cls(fd, os.fstat(fd).st_size)


@dataclass(frozen=True, slots=True)
class WakeEvent:
    """An eventfd: `set` never blocks, `wait` has a deadline. Several `set` before a `wait` count as one."""

    fd: int

    @classmethod
    def create(cls) -> WakeEvent:
        """Returns a new event, not set."""
        return cls(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self.fd)

    def set(self) -> None:
        """Wakes the process that waits, now or when it next does."""
        os.eventfd_write(self.fd, 1)

    def wait(self, timeout_s: float) -> bool:
        """Waits until it is set, at most `timeout_s`; returns True if it was, and clears it."""
        is_set = wait_readable(timeout_s, self.fd)
        if is_set:
            os.eventfd_read(self.fd)
        return is_set
