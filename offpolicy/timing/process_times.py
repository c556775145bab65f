"""CPU time of other processes and their threads, and idle time of the cores, from the kernel's files.

A process's CPU clock is exact and counts threads that have ended; a thread's `schedstat` is exact up to the last tick.
Times of children that have ended, and idle times, are in units of `TICK_NS`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
READ_BYTES = 65_536  # at a time
MAIN_CPU, WAITED_CPU = slice(11, 13), slice(13, 15)  # of the fields after the name: utime, stime; cutime, cstime


class ThreadTime(NamedTuple):
    """One thread of a process: its number, its name and its CPU time."""

    tid: int
    name: str
    cpu_ns: int


def process_clock_ns(pid: int) -> int:
    """Returns the CPU time of a process and its threads. Raises `OSError` if there is none.

    Linux numbers the CPU clocks of processes like this (clock_getcpuclockid(3), which Python lacks).
    """
    return time.clock_gettime_ns((~pid << 3) | 2)


class ProcessTimes:
    """Reads `/proc`. What has ended meanwhile reads as None, or is left out."""

    def __init__(self, root: str = "/proc", clock_ns: Callable[[int], int] = process_clock_ns) -> None:
        self._root, self._clock_ns = root, clock_ns

    def cpu_ns(self, pid: int) -> int | None:
        """Returns the CPU time of a process."""
        with contextlib.suppress(OSError):
            return self._clock_ns(pid)
        return self._stat_ns(f"{self._root}/{pid}/stat", MAIN_CPU)  # a kernel without clocks of other processes

    def waited_ns(self, pid: int) -> int:
        """Returns the CPU time of those children of a process that ended and were waited for, and of theirs."""
        return self._stat_ns(f"{self._root}/{pid}/stat", WAITED_CPU) or 0

    def children(self, pid: int) -> list[int]:
        """Returns the processes that the main thread of a process started."""
        return [int(child) for child in (self._read(f"{self._root}/{pid}/task/{pid}/children") or b"").split()]

    def tree_ns(self, pid: int, without: Iterable[int] = ()) -> int:
        """Returns the CPU time of all processes below `pid` that run, and of what they waited for."""
        below = (child for child in self.children(pid) if child not in without)
        return sum((self.cpu_ns(child) or 0) + self.waited_ns(child) + self.tree_ns(child) for child in below)

    def threads(self, pid: int) -> Iterator[ThreadTime]:
        """Yields the threads of a process."""
        tasks: list[str] = []
        with contextlib.suppress(OSError):
            tasks = os.listdir(f"{self._root}/{pid}/task")
        for tid in tasks:
            task = f"{self._root}/{pid}/task/{tid}"
            name, schedstat = self._read(f"{task}/comm"), self._read(f"{task}/schedstat")
            cpu_ns = int(schedstat.split()[0]) if schedstat else self._stat_ns(f"{task}/stat", MAIN_CPU)
            if name is not None and cpu_ns is not None:
                yield ThreadTime(int(tid), name.decode(errors="replace").rstrip("\n"), cpu_ns)

    def idle_ns(self, cpus: Iterable[int]) -> int:
        """Returns the time in which these cores had nothing to do. Raises `OSError` where the kernel hides it.

        The other columns are samples of what ran at a tick, so a thread that sleeps before each tick is never in them;
        idle time is measured.
        """
        wanted = {b"cpu%d" % cpu for cpu in cpus}
        lines = (line.split() for line in (self._read(f"{self._root}/stat") or b"").splitlines())
        idle = {fields[0]: int(fields[4]) + int(fields[5]) for fields in lines if fields[0] in wanted}
        if len(idle) < len(wanted):
            raise OSError(f"{self._root}/stat lacks {wanted - idle.keys()}")
        return sum(idle.values()) * TICK_NS

    def _stat_ns(self, path: str, fields: slice) -> int | None:
        """Returns the sum of two times of a `stat` file."""
        stat = self._read(path)
        if stat is None:
            return None
        # The name, in parentheses, may hold spaces and parentheses itself.
        return sum(map(int, stat[stat.rindex(b")") + 2 :].split()[fields])) * TICK_NS

    def _read(self, path: str) -> bytes | None:
        """Returns the whole content of a file; None where there is none."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return b"".join(iter(lambda: os.read(fd, READ_BYTES), b""))
        except OSError:  # ESRCH: it ended after the file was opened
            return None
        finally:
            os.close(fd)
