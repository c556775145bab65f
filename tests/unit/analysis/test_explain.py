"""The account of a finished run: what cannot be explained, and changes that no what-if predicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.analysis.explain import FinishedRun, what_if_between
from offpolicy.errors import ConfigError
from tests.unit.analysis.finished_run import finished_run


def test_a_change_that_is_no_what_if_is_refused(tmp_path: Path) -> None:
    before = FinishedRun.read(finished_run(tmp_path / "before"))
    for number, (words, changed) in enumerate(
        {
            "algo.gamma=0.9": "algo.gamma 0.99 -> 0.9 changed, which is not one of the what-ifs",
            "algo.utd=0.7": "algo.utd 1.0 -> 0.7 changed",
            "algo.utd=0.5 algo.batch_size=512": "algo.batch_size 256 -> 512, algo.utd 1.0 -> 0.5 changed",
            "algo.utd=0.5 env.kwargs.g=3": "env.kwargs.g None -> 3",
            "": "nothing changed",
        }.items()
    ):
        after = FinishedRun.read(finished_run(tmp_path / f"after{number}", *words.split()))
        with pytest.raises(ConfigError, match=changed):
            what_if_between(before, after)


def test_a_change_below_the_error_of_the_predictions_is_none(tmp_path: Path) -> None:
    rates = {"steps_per_sec": 95.0, "collector_capacity": 250.0, "learner_capacity": 100.0, "prediction_error": 0.05}
    run = FinishedRun.read(finished_run(tmp_path / "run", rates=rates))
    assert [run.gain_text(predicted) for predicted in (95.0, 98.0, 114.0, 76.0)] == ["none", "none", "+20%", "-20%"]


def test_a_run_that_has_not_ended_or_was_not_timed_is_refused(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", pipeline=None)
    with pytest.raises(ConfigError, match="has no account to explain"):
        FinishedRun.read(run)
    (run / "summary.json").unlink()
    with pytest.raises(ConfigError, match="which is written when a run ends"):
        FinishedRun.read(run)


def test_shares_are_those_of_the_window_of_the_rates(tmp_path: Path) -> None:
    """Half of the steady wall is the final evaluation, which the rates leave out."""
    learner = {"train": 90.0, "evaluation": 10.0, "checkpoint": 0.0}
    collector = {"env_step": 40.0, "learner_wait": 60.0}
    learning = {"learner_s": learner, "collectors_s": [collector]}
    timing = {
        "learner": {"wall_s": 200.0, "phases_s": {**learner, "evaluation": 110.0, "warmup": 0.0}, "other_s": 0.0},
        "collector": {"wall_s": 200.0, "phases_s": {**collector, "learner_wait": 160.0, "warmup": 0.0}, "other_s": 0.0},
    }
    run = FinishedRun.read(finished_run(tmp_path / "run", timing=timing, learning=learning))
    assert run.pause_fraction == pytest.approx(0.1)
    assert run.between_pauses == pytest.approx(95.0 / 0.9)
