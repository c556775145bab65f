"""The monotonic clock of the machine, and the few other readings of time; tests use a scripted clock instead."""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

from offpolicy.types import SchedulerStats

CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


class Clock(Protocol):
    """A source of integer nanoseconds that never steps back."""

    def now_ns(self) -> int:
        """The current instant."""
        ...


class MonotonicClock:
    """The machine's monotonic clock (CLOCK_MONOTONIC on Linux)."""

    now_ns = staticmethod(time.perf_counter_ns)


def process_birth_ns() -> int:
    """The start of this process on the scale of `MonotonicClock` (to the kernel's tick, 10 ms).

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


def scheduler_stats() -> SchedulerStats:
    """The scheduler statistics of the calling thread; without those of the kernel it never waited for a core."""
    runnable_ns = 0
    with contextlib.suppress(OSError), open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
        runnable_ns = int(file.read().split()[1])
    return SchedulerStats(runnable_ns, resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw)


def unix_minus_monotonic_ns() -> int:
    """The difference between nanoseconds since 1970 and the monotonic clock."""
    return time.time_ns() - time.perf_counter_ns()


def wall_clock_stamp() -> str:
    """The date and time as `YYYYmmdd-HHMMSS`, for directory names only."""
    return time.strftime("%Y%m%d-%H%M%S")


def unix_s() -> float:
    """Seconds since 1970, to date records; never to measure a duration."""
    return time.time()


class Stopwatch:
    """Seconds since its construction; the supervisor's clock for cadence and deadlines."""

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
        """True if a period has passed since the last time this was true."""
        now_s = self._elapsed_s()
        if now_s < self._next_s:
            return False
        self._next_s += self._period_s
        if self._next_s <= now_s:
            self._next_s = now_s + self._period_s
        return True


class ClockCheck(NamedTuple):
    """What a series of readings of the monotonic clock showed."""

    source: str  # the kernel's name for it, such as tsc
    reading_ns: float  # duration of one reading, the median: others may have the core for some
    step_ns: int  # the smallest step that was seen; 0 if the clock stood still
    backward_steps: int  # readings below the one before; more than 0 breaks the account


def check_clock(clock: Clock | None = None, readings: int = 20_000) -> ClockCheck:
    """Returns what `readings` readings in a row show. Takes milliseconds."""
    now_ns = (clock or MonotonicClock()).now_ns
    series = [now_ns() for _ in range(readings)]
    steps = [after - before for before, after in pairwise(series)]
    source = "unknown"
    with contextlib.suppress(OSError):
        source = CLOCK_SOURCE.read_text(encoding="ascii").strip()
    smallest = min((step for step in steps if step > 0), default=0)
    return ClockCheck(source, statistics.median(steps), smallest, sum(step < 0 for step in steps))
