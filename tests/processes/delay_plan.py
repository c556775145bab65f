"""Runs whose parts are late by a plan, cut into the records of each stretch of it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes.test_delays import train

SETTLING = 10  # iterations left out at the start of every stretch
FEWEST = 50  # iterations that the records of a stretch must hold
LEARNING_STARTS = 20
SMALL = ("algo.hidden_dims=[8]",)  # an update that slept finds its caches cold: let it be short

Delays = Mapping[str, float]  # ms by who is late
Plan = Sequence[tuple[Delays, int]]  # and for how many iterations of the learner


@dataclass(frozen=True, slots=True)
class Stretch:
    """The records that lie within a stretch of a run."""

    records: Sequence[dict[str, Any]]
    iterations: Sequence[int]  # of each record

    @property
    def reports_per_iteration(self) -> float:
        """The median over the records: each ends with one report."""
        return statistics.median(1.0 / count for count in self.iterations)

    def median(self, key: str) -> float:
        """Returns the median of a key in the records."""
        return statistics.median(record[key] for record in self.records)

    def joined(self, other: Stretch) -> Stretch:
        """Returns both stretches as one."""
        return Stretch([*self.records, *other.records], [*self.iterations, *other.iterations])


def run_plan(directory: Path, overrides: Sequence[str], plan: Plan, transitions: int = 1) -> list[Stretch]:
    """Runs a whole plan; `transitions` are what the learner takes in an iteration."""
    return list(_cut(*_records_of(directory, overrides, plan, transitions), plan))


def run_covered(directory: Path, overrides: Sequence[str], plan: Plan, transitions: int = 1) -> list[Stretch]:
    """As `run_plan`, with all iterations of every stretch: some of its neighbours' are in its records too."""
    records, ends = _records_of(directory, overrides, plan, transitions)
    stretches, first = [], 0
    for _, length in plan:
        inside = [at for at in range(1, len(records)) if ends[at - 1] < first + length and first < ends[at]]
        inside += [at for at in (inside[-1] + 1,) if at < len(records)]  # a collector's report may come late
        stretches.append(Stretch([records[at] for at in inside], [ends[at] - ends[at - 1] for at in inside]))
        first += length
    return stretches


def _records_of(
    directory: Path, overrides: Sequence[str], plan: Plan, transitions: int
) -> tuple[list[dict[str, Any]], list[int]]:
    """The records of a run of the whole plan, and the iterations done by each of them."""
    iterations = sum(length for _, length in plan) + SETTLING
    total = f"total_timesteps={LEARNING_STARTS + iterations * transitions}"
    run = train(directory, (*SMALL, *overrides, total), {"DELAY_PLAN": json.dumps(list(plan))})
    records = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    return records, [int(record.get("train/n_updates", 0)) for record in records]  # as the learner's own report says


def _cut(records: Sequence[dict[str, Any]], ends: Sequence[int], plan: Plan) -> Iterator[Stretch]:
    first = 0
    for delays, length in plan:
        low, high = first + SETTLING, first + length - 2
        inside = [
            at
            for at in range(1, len(records))
            # A collector's report that comes after the record is made is part of the next one.
            if low <= ends[at - 1] < ends[at] <= high and "perf/collector_cycle_ms" in records[at]
        ]
        stretch = Stretch([records[at] for at in inside], [ends[at] - ends[at - 1] for at in inside])
        assert sum(stretch.iterations) >= FEWEST, f"{delays or 'usual'}: {stretch.iterations} iterations in records"
        yield stretch
        first += length
