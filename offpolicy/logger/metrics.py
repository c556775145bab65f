"""The metric table `metrics.toml` as `METRICS`: every key that a record may hold, with its unit, window and meaning."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from offpolicy.errors import OffPolicyError
from offpolicy.timing.phases import CollectorPhase, LearnerPhase

PHASES = {"learner": LearnerPhase, "collector": CollectorPhase}
ROLLOUT_KEY = "timing/collector_rollout_ms"
RESET_KEY = "timing/collector_reset_ms"
RANK_STATISTICS = ("min", "mean", "max")


class UnknownMetricError(OffPolicyError):
    """A record holds a key that the table does not know."""


class MetricClass(StrEnum):
    """How values of a kind may be combined."""

    EXCLUSIVE = "exclusive"  # disjoint phases of one clock: they sum to its wall
    NESTED = "nested"  # sums or parts of exclusive phases: never add them to those
    BACKGROUND = "background"  # beside the phases, on another clock or device: never add
    RATE = "rate"  # from cumulative counters over the window
    CURVE = "curve"  # a learning curve
    COUNTER = "counter"  # a level or a cumulative count at the end of the window


@dataclass(frozen=True, slots=True)
class Metric:
    """One key. `reduction` says how the values of ranks or collectors become one; `row` is its name in the panel."""

    key: str
    section: str  # of docs/metrics.md
    kind: MetricClass
    unit: str
    window: str
    reduction: str
    help: str
    row: str = ""


def learner_key(phase: str) -> str:
    """Key of a learner phase."""
    return f"timing/learner_{phase}_ms"


def collector_key(phase: str) -> str:
    """Key of a collector phase."""
    return f"timing/collector_{phase}_ms"


def rank_key(phase: str, statistic: str) -> str:
    """Key of a statistic (`min`, `mean`, `max`) of a learner phase over all ranks."""
    return f"rank/{phase}_{statistic}_ms"


def prefetch_key(phase: str) -> str:
    """Key of a phase of the packer."""
    return f"prefetch/{phase}_ms"


def device_key(span: str) -> str:
    """Key of a span of the device."""
    return f"device/{span}_ms"


def spread_key(side: str, phase: str, statistic: str) -> str:
    """Key of a statistic of a phase over iterations; `side` is learner or collector, `phase` also `iter` or `cycle`."""
    return f"spread/{side}_{phase}_{statistic}_ms"


def read_metrics(groups: Sequence[Mapping[str, Any]]) -> Mapping[str, Metric]:  # Any: values of the table
    """Returns the metrics of groups, by key and in their order. Raises `ValueError` for a key listed twice."""
    metrics: dict[str, Metric] = {}
    for group in groups:
        for metric in _members(group, metrics):
            if metric.key in metrics:
                raise ValueError(f"{metric.key} is listed twice")
            metrics[metric.key] = metric
    return metrics


def _members(group: Mapping[str, Any], known: Mapping[str, Metric]) -> Iterator[Metric]:
    """The metrics of a group, repeated for each of its phases, whose rows are those of the `known` phase metrics."""
    rows = {"": ""}  # of a group without phases
    if side := group.get("phases"):
        rows = {str(phase): known[f"timing/{side}_{phase}_ms"].row for phase in PHASES[side]} | group.get("whole", {})
    for phase, phase_row in rows.items():
        for name, own in group["metrics"].items():
            fields = group["defaults"] | own
            yield Metric(
                key=group["key"].format(name, phase=phase),
                section=group["section"],
                kind=MetricClass(fields["class"]),
                unit=fields["unit"],
                window=fields["window"],
                reduction=fields["reduction"],
                help=" ".join(fields["help"].replace("{row}", phase_row).split()),
                row=fields.get("row", ""),
            )


_TABLE = tomllib.loads(Path(__file__).with_name("metrics.toml").read_text(encoding="utf-8"))
METRICS = read_metrics(_TABLE["group"])
# Category -> chart -> keys, in the order of the metrics.
CHARTS = {
    category: {
        title: [key for key in METRICS if any(fnmatchcase(key, pattern) for pattern in patterns)]
        for title, patterns in charts.items()
    }
    for category, charts in _TABLE["charts"].items()
}
# The panel's rows by phase, in the order of the phases.
LEARNER_ROWS = {str(phase): METRICS[learner_key(phase)].row for phase in LearnerPhase}
COLLECTOR_ROWS = {str(phase): METRICS[collector_key(phase)].row for phase in CollectorPhase}


def require_known(keys: Iterable[str]) -> None:
    """Raises `UnknownMetricError` naming the keys that are not in the table."""
    unknown = sorted(set(keys) - METRICS.keys())
    if unknown:
        raise UnknownMetricError(f"metrics not in offpolicy/logger/metrics.toml: {', '.join(unknown)}")
