"""What follows from an evaluation of a run: the message, the record, the best policy, the reason to stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.checkpoint import read_best
from offpolicy.collect.evaluations import EVALUATIONS_FILE
from offpolicy.collect.policy import BadEpisodeError
from offpolicy.collect.run_evaluation import EvaluationContext, RunEvaluation
from offpolicy.config.schema import RunConfig
from offpolicy.types import SpaceSpec

POINT = {"id": "offpolicy.envs.toy:PointMass-v0"}
SPEC = SpaceSpec(4, 2, (-1.0, -1.0), (1.0, 1.0))


class Process:
    """Remembers the messages of the process that evaluates."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.is_stopping = False

    def send(self, kind: str, **fields: Any) -> None:
        self.sent.append((kind, fields))

    def should_stop(self) -> bool:
        return self.is_stopping


def opened(tmp_path: Path, process: Process, kept_step: int = 0, spec: SpaceSpec = SPEC, **tree: Any) -> RunEvaluation:
    cfg = RunConfig.from_mapping({"env": POINT, "eval": {"episodes": 2}, **tree})
    context = EvaluationContext(process.should_stop, lambda text: process.send("warning", text=text), process.send)
    return RunEvaluation(cfg, spec, tmp_path, kept_step, context)


def evaluate(evaluation: RunEvaluation, env_steps: int) -> Any:
    return evaluation.evaluate(np.zeros(evaluation.policy_size, np.float32), env_steps, 3)


def recorded(tmp_path: Path) -> list[int]:
    return [json.loads(line)["env_steps"] for line in (tmp_path / EVALUATIONS_FILE).read_text().splitlines()]


def test_a_result_is_sent_and_recorded_and_its_policy_kept(tmp_path: Path) -> None:
    process = Process()
    evaluation = opened(tmp_path, process)
    result = evaluate(evaluation, 40)
    evaluation.close()
    *episodes, (kind, fields) = process.sent
    assert (kind, fields["env_steps"], fields["episodes"], fields["policy_version"]) == ("eval", 40, 2, 3)
    assert fields["mean_reward"] == result.mean_reward
    assert (recorded(tmp_path), read_best(tmp_path).env_steps) == ([40], 40)
    assert evaluation.episodes == 2
    assert [each["episode"] for _, each in episodes] == [0, 1]
    assert np.mean([each["ep_return"] for _, each in episodes]) == result.mean_reward
    assert episodes[0][0] == "eval_episode"
    assert episodes[0][1].keys() == {
        *("env_steps", "policy_version", "episode", "ep_return", "ep_length", "terminated", "truncated")
    }, "success and measure are unknown here"


def test_an_evaluation_that_a_stop_has_ended_leaves_nothing(tmp_path: Path) -> None:
    process = Process()
    evaluation = opened(tmp_path, process)
    process.is_stopping = True
    assert evaluate(evaluation, 40) is None
    evaluation.close()
    assert (process.sent, recorded(tmp_path)) == ([], [])


def test_the_reason_to_stop_is_sent_when_it_arises_and_when_the_run_is_resumed(tmp_path: Path) -> None:
    process = Process()
    evaluation = opened(tmp_path, process, stop={"reward": -1e9})
    assert not evaluation.stops_early
    evaluate(evaluation, 40)
    evaluation.close()
    again = opened(tmp_path, process, kept_step=40, stop={"reward": -1e9})
    again.close()
    assert evaluation.stops_early
    assert again.stops_early
    kinds = [kind for kind, _ in process.sent if kind != "eval_episode"]
    assert kinds == ["eval", "early_stop", "early_stop"]


def test_results_that_are_made_again_replace_those_before(tmp_path: Path) -> None:
    process = Process()
    for kept_step in (0, 20):
        evaluation = opened(tmp_path, process, kept_step)
        for env_steps in (20, 40)[kept_step // 20 :]:
            evaluate(evaluation, env_steps)
        evaluation.close()
    assert recorded(tmp_path) == [20, 40]


@pytest.mark.parametrize("limit", [0, 2])
def test_nan_in_an_evaluation_ends_a_run_only_where_no_bad_transition_is_skipped(limit: int, tmp_path: Path) -> None:
    process = Process()
    faulty = {"id": "tests.toys:Faulty-v0", "kwargs": {"fail": "nan_obs", "at": 3}, "max_bad_rows": limit}
    made = opened(tmp_path, process, spec=SpaceSpec(2, 1, (-1.0,), (1.0,)), env=faulty)
    if limit == 0:
        with pytest.raises(BadEpisodeError):
            evaluate(made, 100)
        return
    result = evaluate(made, 100)
    assert np.isnan(result.mean_reward)
    assert (result.env_steps, result.episodes, made.episodes) == (100, 0, 0)
    assert (
        "episode 0 of the evaluation, after 3 steps; env.max_bad_rows=2 lets the run go on"
        in process.sent[0][1]["text"]
    )
