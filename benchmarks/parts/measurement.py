"""One measured quantity, and the ways to measure a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.stats import Spread


@dataclass(frozen=True, slots=True)
class Measurement:
    """A quantity measured several times. `limit`: what its median must stay below, where that is promised."""

    part: str
    name: str
    unit: str
    samples: Sequence[float]
    limit: float | None = None

    @property
    def spread(self) -> Spread:
        """Median and range."""
        return Spread.of(self.samples)

    @property
    def is_over(self) -> bool:
        """Whether the promise is broken."""
        return self.limit is not None and self.spread.median >= self.limit


def call_us(function: Callable[[], object], calls: int) -> float:
    """Mean microseconds of one of `calls` calls in a row."""
    start_ns = time.perf_counter_ns()
    for _ in range(calls):
        function()
    return (time.perf_counter_ns() - start_ns) / calls / 1000


def interleaved_us(functions: Mapping[str, Callable[[], object]], calls: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds per call of each function in every round: A B C, A B C, so that all share the machine's weather."""
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(-1, rounds):
        for name, function in functions.items():
            sample = call_us(function, calls)
            if number >= 0:  # the first round warms up
                samples[name].append(sample)
    return samples
