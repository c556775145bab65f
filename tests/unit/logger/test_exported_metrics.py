"""Every key has one name outside, with the unit and the meaning of the table; ranks are a label."""

from __future__ import annotations

import os
import re

import pytest

from offpolicy.logger.exported_metrics import exported_values, metric_name, run_labels, ucum
from offpolicy.logger.metrics import METRICS
from offpolicy.logger.record import RunHeader


def test_a_key_of_a_rank_is_the_metric_of_all_ranks_with_a_label() -> None:
    first, second = exported_values({"rank/0/train_ms": 4.0, "rank/11/train_ms": 5.0})
    assert (first.name, first.rank, first.value) == ("offpolicy_rank_each_train_ms", "0", 4.0)
    assert (second.name, second.rank, second.value) == ("offpolicy_rank_each_train_ms", "11", 5.0)
    assert first.unit == second.unit == METRICS["rank/<r>/train_ms"].unit


def test_a_value_has_help_and_unit_of_the_table_and_a_key_of_others_none() -> None:
    ours, foreign = exported_values({"perf/steps_per_sec": 1.0, "perf/utd": None, "unilab/speed": 2.0})
    assert (ours.help, ours.unit) == (METRICS["perf/steps_per_sec"].help, "env steps/s")
    assert (foreign.name, foreign.help, foreign.unit) == ("offpolicy_unilab_speed", "", "")


def test_a_zero_is_a_value() -> None:
    (value,) = exported_values({"collect/restarts": 0})
    assert value.value == 0


def test_texts_that_change_with_every_record_make_no_time_series_of_their_own() -> None:
    verdicts = ["learner(train 94%)", "learner(train 100%)", "contention(train: descheduled 19%)", "balanced"]
    records = [
        {"perf/bottleneck": verdict, "perf/bottleneck_reason": f"{verdict} I=1204", "perf/bottleneck_advice": "top"}
        for verdict in verdicts
    ]
    found = [value for record in records for value in exported_values(record)]
    assert {value.name for value in found} == {"offpolicy_perf_bottleneck"}
    assert [value.value for value in found] == [
        "learner(train)",
        "learner(train)",
        "contention(train: descheduled)",
        "balanced",
    ]


def test_a_directory_with_a_name_in_other_bytes_names_the_run_with_escapes() -> None:
    header = RunHeader(algo="sac", env_id="Pendulum-v1", seed=3, mode="alternate", total_timesteps=10)
    expected = {"run": r"runs/caf\udce9", "algo": "sac", "env": "Pendulum-v1", "seed": "3"}
    assert run_labels(os.fsdecode(b"runs/caf\xe9"), header) == expected


def test_names_are_distinct_and_need_no_escape() -> None:
    names = [metric_name(key) for key in METRICS]
    assert len(set(names)) == len(METRICS)
    assert [name for name in names if not re.fullmatch(r"[a-z_][a-zA-Z0-9_]*", name)] == []


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("ms/env step", "ms/{env_step}"),
        ("env steps/s", "{env_steps}/s"),
        ("fraction", "1"),
        ("text", ""),
        ("%", "%"),
        ("GiB", "GiBy"),
    ],
)
def test_units_are_those_of_ucum(unit: str, expected: str) -> None:
    assert ucum(unit) == expected


UCUM_TERM = r"(1|%|ms|s|W|GiBy|\{[!-z|~]+\})"  # an annotation has no braces and no spaces


def test_every_unit_of_the_table_is_one_of_ucum_or_an_annotation() -> None:
    pattern = rf"({UCUM_TERM}(/{UCUM_TERM})?)?"
    assert [ucum(m.unit) for m in METRICS.values() if not re.fullmatch(pattern, ucum(m.unit))] == []
