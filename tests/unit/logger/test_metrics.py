"""The reader of the metric table, on tables of a few lines."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from offpolicy.logger.metrics import (
    CHARTS,
    COLLECTOR_ROWS,
    LEARNER_ROWS,
    METRICS,
    Metric,
    MetricClass,
    collector_key,
    device_key,
    learner_key,
    prefetch_key,
    rank_key,
    read_metrics,
    spread_key,
)
from offpolicy.timing.phases import CollectorPhase, LearnerPhase

GROUP = """
[[group]]
section = "Some"
key = "some/{}_ms"
defaults = { class = "rate", unit = "ms", window = "log interval", reduction = "rank 0" }
[group.metrics]
"""
PHASES = """
[[group]]
section = "Phases"
key = "timing/collector_{}_ms"
defaults = { class = "exclusive", unit = "ms", window = "log interval", reduction = "rank 0", help = "." }
[group.metrics]
""" + "\n".join(f"{phase} = {{ row = '{phase.upper()}' }}" for phase in CollectorPhase)
EACH = """
[[group]]
section = "Each"
key = "each/{phase}_{}"
phases = "collector"
whole = { cycle = "Cycle" }
defaults = { class = "nested", unit = "ms", window = "log interval", reduction = "rank 0" }
[group.metrics]
min = { help = "{row}: least." }
max = { help = "{row}: most." }
"""


def groups(table: str) -> list[dict[str, Any]]:
    return list(tomllib.loads(table)["group"])


def test_a_metric_takes_from_its_group_what_it_does_not_say_itself() -> None:
    table = GROUP + 'busy = { unit = "s", row = "Busy", help = """\nA text\nof two lines.""" }'
    assert read_metrics(groups(table)) == {
        "some/busy_ms": Metric(
            "some/busy_ms", "Some", MetricClass.RATE, "s", "log interval", "rank 0", "A text of two lines.", "Busy"
        )
    }


def test_a_group_over_phases_repeats_its_metrics_for_each_and_for_the_whole() -> None:
    metrics = read_metrics(groups(PHASES + EACH))
    each = [(key, metric.help) for key, metric in metrics.items() if key.startswith("each/")]
    assert each[:2] == [
        ("each/weight_apply_min", "WEIGHT_APPLY: least."),
        ("each/weight_apply_max", "WEIGHT_APPLY: most."),
    ]
    assert each[-2:] == [("each/cycle_min", "Cycle: least."), ("each/cycle_max", "Cycle: most.")]
    assert len(each) == 2 * (len(CollectorPhase) + 1)


def test_a_key_listed_twice_is_refused() -> None:
    line = 'busy = { help = "A text." }'
    with pytest.raises(ValueError, match="some/busy_ms is listed twice"):
        read_metrics(groups(GROUP + line + GROUP + line))


def test_every_phase_has_a_row() -> None:
    assert list(LEARNER_ROWS) == list(LearnerPhase)
    assert list(COLLECTOR_ROWS) == list(CollectorPhase)
    assert all([*LEARNER_ROWS.values(), *COLLECTOR_ROWS.values()])


def test_the_keys_of_phases_are_in_the_table() -> None:
    keys = {learner_key("train"), collector_key("env_step"), rank_key("train", "min"), prefetch_key("pack")}
    assert keys | {device_key("h2d"), spread_key("learner", "iter", "p50")} <= METRICS.keys()


def test_every_chart_shows_something_and_every_curve_is_in_one() -> None:
    assert all(keys for charts in CHARTS.values() for keys in charts.values())
    shown = {key for keys in CHARTS["Learning curves"].values() for key in keys}
    assert shown == {key for key, metric in METRICS.items() if metric.kind is MetricClass.CURVE}
