"""Where time comes from: the monotonic clock of the machine, or a scripted one in tests."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from offpolicy.types import SchedulerStats


class Clock(Protocol):
    """A source of integer nanoseconds that never steps back."""

    def now_ns(self) -> int:
        """The present instant."""
        ...


class MonotonicClock:
    """The machine's monotonic clock (CLOCK_MONOTONIC on Linux)."""

    now_ns = staticmethod(time.perf_counter_ns)


class FakeClock:
    """A clock that stands still until told to move; for tests."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """The present instant."""
        return self._now_ns

    def advance(self, ns: int) -> None:
        """Move forward by `ns` nanoseconds."""
        self._now_ns += ns


def process_birth_ns() -> int:
    """When this process started, on the scale of `MonotonicClock` (to the kernel's tick, 10 ms).

    A ledger that opens here accounts for the interpreter's start and the imports too.
    """
    with open("/proc/self/stat", "rb") as stat:
        start_ticks = int(stat.read().rsplit(b")", 1)[1].split()[19])
    start_ns = start_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - start_ns
    return time.perf_counter_ns() - max(age_ns, 0)


def cpu_ns() -> int:
    """CPU time of this process and its threads since its start."""
    return time.process_time_ns()


class _Schedstat(threading.local):
    """The kernel's file about the thread that reads it, opened once by each thread."""

    def __init__(self) -> None:
        try:
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def runnable_ns(self) -> int:
        """Time in which the thread could have run and did not; 0 where the kernel does not say."""
        return int(os.pread(self._fd, 64, 0).split()[1]) if self._fd >= 0 else 0


_SCHEDSTAT = _Schedstat()


def thread_load() -> SchedulerStats:
    """How the calling thread fared in the scheduler."""
    return SchedulerStats(_SCHEDSTAT.runnable_ns(), resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw)


def unix_minus_monotonic_ns() -> int:
    """What to add to the monotonic clock to get nanoseconds since 1970."""
    return time.time_ns() - time.perf_counter_ns()


def queued_ns() -> int:
    """How long the threads of this process have waited for a core, all together; 0 where the kernel does not tell."""
    total = 0
    with contextlib.suppress(OSError):  # no /proc
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError, IndexError):  # a thread that has ended; a kernel without these statistics
                total += int((task / "schedstat").read_text().split()[1])
    return total


def wall_clock_stamp() -> str:
    """The date and time as `YYYYmmdd-HHMMSS`, for directory names only."""
    return time.strftime("%Y%m%d-%H%M%S")


def unix_s() -> float:
    """Seconds since 1970, to date records; never to measure a duration."""
    return time.time()


class Stopwatch:
    """Seconds since it was made; the supervisor's clock for cadence and deadlines."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._start_ns = self._clock.now_ns()

    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return (self._clock.now_ns() - self._start_ns) / 1e9


class Every:
    """True once per period of a clock in seconds; missed periods are not made up for."""

    def __init__(self, elapsed_s: Callable[[], float], period_s: float) -> None:
        self._elapsed_s = elapsed_s
        self._period_s = period_s
        self._next_s = elapsed_s() + period_s

    def is_due(self) -> bool:
        """Whether a period has passed since the last time this was true."""
        now_s = self._elapsed_s()
        if now_s < self._next_s:
            return False
        self._next_s += self._period_s
        if self._next_s <= now_s:
            self._next_s = now_s + self._period_s
        return True
