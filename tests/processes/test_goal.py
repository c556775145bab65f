"""Runs that are resumed at their goal, after a kill between the last checkpoint and the summary."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests import faults
from tests.processes.conftest import LiveRun, StartRun

pytestmark = [pytest.mark.mp, pytest.mark.slow]

KILLED_AT_THE_END = "supervisor.reap@role=supervisor,n=1:kill"  # the learner has saved all and left
LATE_COLLECTOR = "child.start@role=collector:delay:6000"  # long after the learner is ready
APPO = (
    *("algo=appo", "algo.learning_starts=1000", "algo.batch_size=256", "algo.epochs=2", "algo.num_minibatches=2"),
    *("env.num_envs=2", "rollout.length=10", "runner=appo", "collect.mode=alternate"),
)


def lines_of(run: LiveRun, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.directory / name).read_text().splitlines()]


def last_eval_step(run: LiveRun) -> int:
    checkpoint = run.directory / "checkpoints" / run.checkpoints()[-1]
    return int(json.loads((checkpoint / "state.json").read_text())["last_eval_step"])


@pytest.mark.parametrize("options", [(), ("eval.beside=true",), APPO], ids=["sac", "sac beside", "appo"])
def test_a_run_that_is_resumed_at_its_goal_makes_the_last_evaluation_again_at_that_env_step(
    start_run: StartRun, options: tuple[str, ...], tmp_path: Path, traces: Any
) -> None:
    options = (*options, "total_timesteps=300", "eval.every=100", "eval.episodes=2", "checkpoint.every=150")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(faults.VARIABLE, KILLED_AT_THE_END)
        killed = start_run(*options)
        assert killed.finish()[0] == -signal.SIGKILL
    before = [line["env_steps"] for line in lines_of(killed, "evaluations.jsonl")]
    assert last_eval_step(killed) == before[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(faults.VARIABLE, LATE_COLLECTOR)
        run = start_run(*options)
        code, out, _ = run.finish()
    assert code == 0, out
    assert [line["env_steps"] for line in lines_of(run, "evaluations.jsonl")] == before
    assert last_eval_step(run) == run.summary()["env_steps"] == before[-1]
    assert run.summary()["eval"]["episodes"] == 2
    traces.assert_none()
