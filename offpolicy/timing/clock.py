"""Where time comes from: the monotonic clock of the machine, or a scripted one in tests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol


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
