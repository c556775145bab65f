"""The evaluations of a run: which one is the best, when they end the run, and what a restart makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from offpolicy.checkpoint import read_best
from offpolicy.collect.evaluations import EVALUATIONS_FILE, Evaluations, Score, read_scores, stop_reason
from offpolicy.config.sections import StopConfig
from offpolicy.types import EvalResult

NEVER = StopConfig()


def scores(*rewards: float) -> list[Score]:
    return [Score(100 * (index + 1), reward) for index, reward in enumerate(rewards)]


@pytest.mark.parametrize(
    ("rewards", "stop", "begin"),
    [
        ([], StopConfig(reward=0.0), None),
        ([4.9], StopConfig(reward=5.0), None),
        ([9.0, 5.0], StopConfig(reward=5.0), "stopped early: mean return 5.00 in the evaluation at env step 200"),
        ([9.0, 4.0], StopConfig(reward=5.0), None),  # it was reached before the value was asked for
        ([1.0, 3.0, 2.0], StopConfig(patience=2), None),
        ([1.0, 3.0, 2.0, 3.0], StopConfig(patience=2), "stopped early: 2 evaluations in a row without a better mean"),
        ([1.0, float("nan")], StopConfig(patience=1), "stopped early: 1 evaluation in a row"),
        ([float("nan"), 1.0], StopConfig(patience=1), None),
        ([5.0, 4.0, 3.0, 2.0], NEVER, None),
    ],
)
def test_what_ends_a_run(rewards: list[float], stop: StopConfig, begin: str | None) -> None:
    reason = stop_reason(scores(*rewards), stop)
    assert (reason is None) == (begin is None)
    assert begin is None or (reason or "").startswith(begin)


def result(env_steps: int, mean_reward: float) -> EvalResult:
    return EvalResult(env_steps, mean_reward, 0.5, 200.0, 3)


def weights(value: float) -> dict[str, np.ndarray]:
    return {"policy.x": np.full(2, value, np.float32)}


def opened(run: Path, last_step: int = 0, stop: StopConfig = NEVER, warn: list[str] | None = None) -> Evaluations:
    return Evaluations(run, last_step, stop, (warn if warn is not None else list[str]()).append)


def test_the_policy_of_the_best_evaluation_is_kept(tmp_path: Path) -> None:
    evaluations = opened(tmp_path)
    for env_steps, reward in ((100, -5.0), (200, -2.0), (300, -3.0), (400, -2.0)):
        evaluations.add(result(env_steps, reward), weights(env_steps))
    evaluations.close()
    best = read_best(tmp_path)
    assert (best.env_steps, best.tensors("learner")["policy.x"][0]) == (200, 200.0)
    assert read_scores(tmp_path) == [Score(100, -5.0), Score(200, -2.0), Score(300, -3.0), Score(400, -2.0)]


def test_patience_goes_on_after_a_kill(tmp_path: Path) -> None:
    stop = StopConfig(patience=3)
    first = opened(tmp_path, stop=stop)
    for env_steps, reward in ((100, 5.0), (200, 4.0), (300, 3.0), (400, 9.0)):  # the last is after the checkpoint
        first.add(result(env_steps, reward), weights(env_steps))
    resumed = opened(tmp_path, last_step=300, stop=stop)
    assert resumed.stop_reason is None
    resumed.add(result(400, 4.5), weights(4.5))
    assert (resumed.stop_reason or "").startswith("stopped early: 3 evaluations in a row without a better")
    assert read_best(tmp_path).mean_reward == 9.0, "a better policy was really there, and is not thrown away"
    superseded = (tmp_path / "evaluations.superseded.jsonl").read_text()
    assert superseded.count("\n") == 1


def test_a_decision_that_a_kill_came_after_is_made_again(tmp_path: Path) -> None:
    stop = StopConfig(reward=5.0)
    opened(tmp_path, stop=stop).add(result(100, 6.0), weights(1.0))
    assert opened(tmp_path, last_step=100, stop=stop).stop_reason is not None


def test_a_disk_that_refuses_costs_warnings_not_the_run(tmp_path: Path) -> None:
    warnings: list[str] = []
    evaluations = opened(tmp_path / "missing", warn=warnings)
    for env_steps in (100, 200):
        evaluations.add(result(env_steps, float(env_steps)), weights(1.0))
    assert len(warnings) == 2, warnings  # one of the file, one of the policy
    assert "is not saved" in warnings[1]


def test_torn_and_foreign_lines_are_left_out(tmp_path: Path) -> None:
    lines = ['{"env_steps": 1, "mean_reward": 2.0}', "[]", '{"env_steps": 5}', '{"env_steps": 9, "mean_re']
    (tmp_path / EVALUATIONS_FILE).write_text("\n".join(lines))
    assert read_scores(tmp_path) == [Score(1, 2.0)]
    assert read_scores(tmp_path / "nowhere") == []


def test_a_return_that_is_none_is_neither_kept_nor_written(tmp_path: Path) -> None:
    evaluations = opened(tmp_path)
    evaluations.add(result(100, float("nan")), weights(1.0))
    assert read_scores(tmp_path) == []
    assert not (tmp_path / "checkpoints").exists()


def test_a_file_that_is_refused_is_warned_of_once_and_written_once_it_can_be(tmp_path: Path) -> None:
    warnings, path = list[str](), tmp_path / EVALUATIONS_FILE
    path.mkdir()
    evaluations = opened(tmp_path, warn=warnings)
    evaluations.add(result(100, -5.0), weights(1.0))
    path.rmdir()
    evaluations.add(result(200, -4.0), weights(2.0))
    evaluations.close()
    (warning,) = warnings
    assert warning.startswith("evaluations.jsonl cannot be written: ")
    assert read_scores(tmp_path) == [Score(200, -4.0)]
