"""A measured quantity with its median and range, and the ways to measure a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from benchmarks.journal import is_marked


class Spread(NamedTuple):
    """Median and range of repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """The spread of at least one sample."""
        return cls(median(samples), min(samples), max(samples))


@dataclass(frozen=True, slots=True)
class Measurement:
    """A quantity measured several times. `limit`: what its median must stay below, where that is promised."""

    part: str
    name: str
    unit: str
    samples: Sequence[float]
    limit: float | None = None
    has_quiet_round: bool = True  # False: the samples are of rounds in which others took the cores

    @property
    def spread(self) -> Spread:
        """Median and range."""
        return Spread.of(self.samples)

    def to_mapping(self) -> dict[str, Any]:
        """Returns the measurement as JSON data."""
        limit = {} if self.limit is None else {"limit": self.limit}
        return {"part": self.part, "name": self.name, "unit": self.unit, "samples": list(self.samples), **limit}

    @property
    def is_over(self) -> bool:
        """True if the promise is broken. A busy machine breaks none."""
        return self.limit is not None and self.has_quiet_round and self.spread.median >= self.limit


def measurements_of(tasks: Mapping[str, Any]) -> list[Measurement]:
    """Returns the measurements of an entry's tasks, rounds joined; marked rounds only where there are no others."""
    rounds: dict[tuple[str, str], list[tuple[bool, Mapping[str, Any]]]] = {}
    for outcome in tasks.values():
        for one in outcome.get("data", []):
            rounds.setdefault((one["part"], one["name"]), []).append((is_marked(outcome), one))
    found = []
    for (part, name), each in rounds.items():
        has_quiet = not all(marked for marked, _ in each)
        samples = [sample for marked, one in each if not (marked and has_quiet) for sample in one["samples"]]
        first = each[0][1]
        found.append(Measurement(part, name, first["unit"], samples, first.get("limit"), has_quiet))
    return found


def call_us(function: Callable[[], object], calls: int) -> float:
    """Returns the mean microseconds of one of `calls` calls in a row."""
    start_ns = time.perf_counter_ns()
    for _ in range(calls):
        function()
    return (time.perf_counter_ns() - start_ns) / calls / 1000
