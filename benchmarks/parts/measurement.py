"""One measured quantity, and the ways to measure a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.journal import is_marked
from benchmarks.stats import Spread


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
        """The measurement as JSON data."""
        return asdict(self) | {"samples": list(self.samples)}

    @property
    def is_over(self) -> bool:
        """Whether the promise is broken. A busy machine breaks none."""
        return self.limit is not None and self.has_quiet_round and self.spread.median >= self.limit


def measurements_of(entry: Mapping[str, Any]) -> list[Measurement]:
    """The measurements of an entry of the results, rounds joined; marked rounds only where there are no others."""
    if "tasks" not in entry:  # written before benchmarks were kept task by task
        return [_read(one, has_quiet_round=True) for one in entry.get("measurements", [])]
    outcomes = [outcome for outcome in entry["tasks"].values() if not outcome.get("failure")]
    quiet = _joined(one for outcome in outcomes if not is_marked(outcome) for one in outcome["data"])
    marked = _joined(one for outcome in outcomes if is_marked(outcome) for one in outcome["data"])
    order = dict.fromkeys((one["part"], one["name"]) for outcome in outcomes for one in outcome["data"])
    return [_read(quiet[key] if key in quiet else marked[key], has_quiet_round=key in quiet) for key in order]


def _joined(found: Iterator[Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    joined: dict[tuple[str, str], dict[str, Any]] = {}
    for one in found:
        whole = joined.setdefault((one["part"], one["name"]), {**one, "samples": []})
        whole["samples"] = [*whole["samples"], *one["samples"]]
    return joined


def _read(one: Mapping[str, Any], *, has_quiet_round: bool) -> Measurement:
    values = (one["part"], one["name"], one["unit"], one["samples"], one.get("limit"))
    return Measurement(*values, has_quiet_round)


def call_us(function: Callable[[], object], calls: int) -> float:
    """Mean microseconds of one of `calls` calls in a row."""
    start_ns = time.perf_counter_ns()
    for _ in range(calls):
        function()
    return (time.perf_counter_ns() - start_ns) / calls / 1000


def interleaved_us(functions: Mapping[str, Callable[[], object]], calls: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds per call of each function in every round: A B C, A B C, so that other programs disturb all alike."""
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(-1, rounds):
        for name, function in functions.items():
            sample = call_us(function, calls)
            if number >= 0:  # the first round warms up
                samples[name].append(sample)
    return samples
