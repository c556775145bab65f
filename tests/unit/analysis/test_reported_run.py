"""A run as a page reports it: from whole files, and from those of a run that has not ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.analysis.reported_run import read_reported
from tests.unit.analysis.finished_run import finished_run, goes_on_after_its_end


def record(number: int, **keys: Any) -> dict[str, Any]:
    """Record `number` of a learner that trains for 8 ms of 10, and of a collector that steps for 3 of 4."""
    return {
        "env_steps": 100 * number,
        "iteration": 100 * number,
        "wall_s": 2.0 * number,
        "train/n_updates": 100 * number,
        "timing/learner_train_ms": 8.0,
        "timing/learner_other_ms": 2.0,
        "timing/collector_env_step_ms": 3.0,
        "timing/collector_other_ms": 1.0,
    } | keys


def recorded_run(path: Path, *records: dict[str, Any]) -> Path:
    """A finished run with records, one for each of its 12 intervals unless others are given."""
    run = finished_run(path)
    rows = records or [record(number) for number in range(1, 13)]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return run


def test_the_account_is_the_mean_after_the_warm_up(tmp_path: Path) -> None:
    first = record(1) | {"timing/learner_train_ms": 500.0}
    (run,) = read_reported([str(recorded_run(tmp_path / "a", first, *map(record, range(2, 13))))])
    assert run.account("learner") == {"train": pytest.approx(8.0), "other": pytest.approx(2.0)}
    assert run.account("collector") == {"env_step": pytest.approx(3.0), "other": pytest.approx(1.0)}


def test_the_account_over_time_is_in_percent_of_the_wall(tmp_path: Path) -> None:
    rows = [record(number) for number in range(1, 241)]
    (run,) = read_reported([str(recorded_run(tmp_path / "a", *rows))])
    steps, percent = run.account_over_time("learner")
    assert len(steps) == 60
    assert (steps[0], steps[-1]) == (250.0, 23850.0)  # means over four records
    np.testing.assert_allclose(percent["train"], 80.0)
    np.testing.assert_allclose(percent["other"], 20.0)


def test_a_record_without_times_is_left_out_of_the_account_over_time(tmp_path: Path) -> None:
    rows = [{"env_steps": 50, "wall_s": 1.0}, *(record(number) for number in range(1, 13))]
    (run,) = read_reported([str(recorded_run(tmp_path / "a", *rows))])
    assert run.account_over_time("learner")[0][0] == 100.0


def test_a_verdict_is_listed_where_its_cause_changes(tmp_path: Path) -> None:
    labels = ["learner(train 94%)", "learner(train 80%)", "collector(env_step 70%)", "collector(env_step 71%)"]
    rows = [
        record(number, **{"perf/bottleneck": label, "perf/bottleneck_reason": f"reason {number}"})
        for number, label in enumerate(labels, 1)
    ]
    (run,) = read_reported([str(recorded_run(tmp_path / "a", *rows))])
    expected = [(100, "learner(train 94%)", "reason 1"), (300, "collector(env_step 70%)", "reason 3")]
    assert [tuple(change) for change in run.verdicts] == expected


def test_the_bottleneck_of_a_run_is_that_of_its_summary_and_before_its_end_the_last(tmp_path: Path) -> None:
    labels = ["learner(train 51%)", "learner(train 94%)"]
    path = recorded_run(tmp_path / "a", *(record(n, **{"perf/bottleneck": each}) for n, each in enumerate(labels, 1)))
    (run,) = read_reported([str(path)])
    assert run.bottleneck == "learner(train)"
    (path / "summary.json").unlink()
    (run,) = read_reported([str(path)])
    assert run.bottleneck == "learner(train 94%)"


def test_a_run_that_has_not_ended_has_records_and_says_what_it_lacks(tmp_path: Path) -> None:
    path = recorded_run(tmp_path / "a")
    (path / "summary.json").unlink()
    (run,) = read_reported([str(path)])
    assert (run.summary, run.finished) == ({}, None)
    assert "which is written when a run ends" in run.problem
    assert run.account("learner")


def test_the_runs_of_one_label_are_numbered(tmp_path: Path) -> None:
    paths = [recorded_run(tmp_path / name) for name in ("one", "two", "three")]
    runs = read_reported([f"a={paths[0]}", f"a={paths[1]}", f"b={paths[2]}"])
    assert [run.label for run in runs] == ["a 1", "a 2", "b"]


def test_a_run_that_went_on_after_its_end_is_not_reported_with_the_outcome_of_an_earlier_start(tmp_path: Path) -> None:
    path = recorded_run(tmp_path / "a")
    goes_on_after_its_end(path)
    (run,) = read_reported([str(path)])
    assert (run.summary, run.finished) == ({}, None)
    assert run.problem == f"run: {path} was started again, and has not ended since"
