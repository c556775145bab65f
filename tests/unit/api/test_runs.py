"""A run read from its directory: curves as arrays, records without a key left out, a run that goes on."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.api.runs import TrainedRun, load
from offpolicy.config.overrides import load_config
from offpolicy.config.run_files import write_config
from offpolicy.config.schema import RunConfig
from offpolicy.errors import CheckpointError, ConfigError
from offpolicy.types import SpaceSpec

RECORDS: list[dict[str, Any]] = [
    {"env_steps": 10, "perf/bottleneck": "learner"},
    {"env_steps": 20, "eval/mean_reward": -5.0},
    {"env_steps": 30, "eval/mean_reward": -3.0},
]


@pytest.fixture
def run(tmp_path: Path) -> TrainedRun:
    write_config(tmp_path, load_config(["seed=7"]), SpaceSpec(3, 1, (-1.0,), (1.0,)))
    lines = [json.dumps(record) for record in RECORDS]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"env_st')
    return TrainedRun.read(tmp_path)


def test_a_curve_has_a_point_for_each_record_with_its_key(run: TrainedRun) -> None:
    steps, values = run.curve("eval/mean_reward")
    assert steps.tolist() == [20, 30]
    assert values.tolist() == [-5.0, -3.0]
    with pytest.raises(ConfigError, match="key: got 'eval/reward', allowed one of env_steps, eval/mean_reward"):
        run.curve("eval/reward")


def test_curves_are_aligned_and_hold_numbers_only(run: TrainedRun) -> None:
    assert set(run.curves) == {"env_steps", "eval/mean_reward"}
    assert run.curves["env_steps"].dtype == np.float64
    np.testing.assert_array_equal(run.curves["eval/mean_reward"], [np.nan, -5.0, -3.0])


def test_a_run_that_has_not_ended_has_no_summary(run: TrainedRun) -> None:
    assert (run.status, dict(run.summary)) == ("", {})
    assert run.config.seed == 7
    assert run.episodes == {}
    assert repr(run) == f"TrainedRun('{run.run_dir}')"


def test_a_summary_is_shown(run: TrainedRun) -> None:
    summary = {"status": "completed", "env_steps": 30, "eval": {"mean_reward": -3.0}}
    (run.run_dir / "summary.json").write_text(json.dumps(summary))
    assert run.status == "completed"
    assert repr(run).endswith("status='completed', env_steps=30, mean_reward=-3.0)")
    (run.run_dir / ".lock").write_text(json.dumps({"pid": 1, "parent": 1, "host": "here"}))  # of a later start
    os.utime(run.run_dir / "summary.json", (1.0, 1.0))
    assert run.status == ""


def test_a_run_is_found_from_another_working_directory(run: TrainedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had no summary, no status and no curves there, without a word."""
    monkeypatch.chdir(run.run_dir.parent)
    found = TrainedRun.read(run.run_dir.name)
    monkeypatch.chdir("/")
    assert found == run
    assert found.curves["env_steps"].tolist() == [10, 20, 30]


def test_what_is_no_run_is_neither_read_nor_loaded(tmp_path: Path) -> None:
    """It ended in a `TypeError` of `os.fspath`."""
    given: list[tuple[Any, str]] = [(None, "None"), (b"run", "a bytes"), (RunConfig(), "a RunConfig")]
    for call in (TrainedRun.read, load):
        for one, got in given:
            with pytest.raises(ConfigError, match=f"^run: got {got}, allowed a directory, latest, the beginning of a"):
                call(one)
    with pytest.raises(ConfigError, match="allowed the directory of a run"):
        TrainedRun.read(tmp_path)


def test_a_run_that_was_read_is_a_run(run: TrainedRun) -> None:
    assert TrainedRun.read(run) == run
    with pytest.raises(CheckpointError, match=f"^run: {run.run_dir}/checkpoints holds no usable checkpoint"):
        load(run)


def test_a_frame_is_made_of_the_curves_by_pandas(run: TrainedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=sorted))
    assert run.frame() == ["env_steps", "eval/mean_reward"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        run.frame()
