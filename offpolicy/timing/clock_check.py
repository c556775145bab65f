"""The quality of the clock that the time account rests on: its source, what a reading costs, its smallest step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from offpolicy.timing.clock import Clock, MonotonicClock

READINGS = 20_000
PART = 500  # readings in a row: short enough that some of these parts are undisturbed
SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


@dataclass(frozen=True, slots=True)
class ClockCheck:
    """What a series of readings of the monotonic clock showed."""

    source: str  # the kernel's name for it, such as tsc; unknown where it does not tell
    resolution_ns: float  # as the interpreter states it
    reading_ns: float  # duration of one reading, mean over the fastest part of the series: others may have the core
    step_ns: int  # the smallest step that was seen; 0 if the clock stood still
    backward_steps: int  # readings below the one before; more than 0 breaks the account


def check_clock(clock: Clock | None = None, readings: int = READINGS, source: Path = SOURCE) -> ClockCheck:
    """Returns what `readings` readings in a row show. Takes milliseconds."""
    now_ns = (clock or MonotonicClock()).now_ns
    series = [now_ns() for _ in range(readings)]
    steps = [after - before for before, after in pairwise(series)]
    forward = [step for step in steps if step > 0]
    return ClockCheck(
        source=_source(source),
        resolution_ns=time.get_clock_info("perf_counter").resolution * 1e9,
        reading_ns=_reading_ns(series),
        step_ns=min(forward, default=0),
        backward_steps=sum(step < 0 for step in steps),
    )


def _reading_ns(series: Sequence[int]) -> float:
    """Returns the least mean of `PART` steps in a row; the mean of all of a short series or of a clock so coarse."""
    parts = [series[end] - series[end - PART] for end in range(PART, len(series), PART)]
    if parts and min(parts) > 0:
        return min(parts) / PART
    return (series[-1] - series[0]) / max(len(series) - 1, 1)


def _source(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip() or "unknown"
    except OSError:
        return "unknown"
