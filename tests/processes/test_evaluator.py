"""Evaluation beside training: the same numbers, no time of the learner's, and nothing lost however it ends."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes.conftest import replay_bytes
from tests.processes.test_delays import SLOW_STEP

pytestmark = pytest.mark.mp
BESIDE = ("eval.beside=true", "threads.learner=1")
OFTEN = ("eval.every=100", "eval.episodes=2")
LONG_EVALUATION = (SLOW_STEP, "env.kwargs.step_ms=20", "total_timesteps=120", "algo.learning_starts=20")  # 2 s


def final_state(directory: Path, step: int) -> dict[str, bytes]:
    checkpoint = directory / "checkpoints" / f"step-{step:012d}"
    return {"learner": (checkpoint / "learner.safetensors").read_bytes(), "replay": replay_bytes(checkpoint)}


def evaluations(records: list[dict[str, Any]]) -> dict[int, tuple[float, float]]:
    """Mean and version of every evaluation on record, by env steps."""
    found = [record for record in records if "eval/mean_reward" in record]
    return {each["eval/env_steps"]: (each["eval/mean_reward"], each["eval/policy_version"]) for each in found}


def test_beside_it_learns_and_finds_bit_for_bit_what_it_does_in_line(start_run: Any, tmp_path: Path) -> None:
    found = {}
    for beside in ("true", "false"):
        run = start_run("threads.learner=1", *OFTEN, f"eval.beside={beside}", f"run_dir=run-{beside}")
        assert run.finish()[0] == 0
        found[beside] = evaluations(run.records())
        assert run.summary()["eval"]["episodes"] == 2
        assert ("evaluator" in run.summary()["timing"]) == (beside == "true")
    assert final_state(tmp_path / "run-true", 600) == final_state(tmp_path / "run-false", 600)
    both = found["true"].keys() & found["false"].keys()
    assert 600 in both
    assert {step: found["true"][step] for step in both} == {step: found["false"][step] for step in both}


def killed_at_its_end(start_run: Any, *words: str) -> Any:
    """A run whose evaluator is killed while its last result is waited for."""
    slow_end = ("eval.every=0", "env.kwargs.step_ms=50", "total_timesteps=60")
    run = start_run(*BESIDE, *LONG_EVALUATION, *slow_end, *words)
    run.wait_until(lambda: any(record["env_steps"] >= 40 for record in run.records()), 40)
    time.sleep(3.0)  # 1 s of training and a part of the 5 s of evaluation: no record comes meanwhile
    os.kill(run.pid_of("evaluator"), signal.SIGKILL)
    return run


@pytest.mark.promise("last-words")
def test_the_evaluators_death_ends_the_run_with_a_checkpoint_also_while_its_last_result_is_waited_for(
    start_run: Any, traces: Any
) -> None:
    run = killed_at_its_end(start_run, "runner.max_restarts=0")
    code, _, err = run.finish(20)
    assert code == 1
    assert err.strip().splitlines()[-1].startswith("offpolicy: evaluator 0 (pid ")
    assert "killed by SIGKILL" in err
    assert (run.summary()["status"], run.checkpoints()) == ("failed", ["step-000000000060"])
    traces.assert_none()


@pytest.mark.slow
@pytest.mark.promise("restart")
def test_an_evaluator_that_is_killed_while_its_last_result_is_waited_for_does_not_end_the_run(
    start_run: Any, traces: Any
) -> None:
    run = killed_at_its_end(start_run)
    code, _, err = run.finish(40)
    assert (code, err) == (0, "")
    summary = run.summary()
    assert (summary["learner_restarts"], summary["env_steps"], summary["eval"]["episodes"] > 0) == (1, 60, True)
    assert run.checkpoints() == ["step-000000000060"]
    traces.assert_none()


@pytest.mark.slow
def test_a_stop_does_not_wait_for_the_evaluation(start_run: Any, traces: Any) -> None:
    evaluation_s = 20.0
    slow = f"env.kwargs.step_ms={10 * evaluation_s}"  # an episode has 100 steps
    run = start_run(*BESIDE, *LONG_EVALUATION, slow, "eval.every=20", "total_timesteps=100000")
    run.wait_for_updates()
    run.wait_until(lambda: any(record.get("evaluator/env_step_ms", 0) > 0 for record in run.records()), 20)
    run.signal(signal.SIGTERM)
    started = time.monotonic()
    assert run.finish(20)[0] == 143
    assert time.monotonic() - started < evaluation_s / 2
    traces.assert_none()


@pytest.mark.slow
@pytest.mark.parametrize("beside", ["true", "false"])
def test_a_stop_in_the_last_evaluation_is_an_interrupted_run_whose_resume_has_the_result(
    start_run: Any, traces: Any, beside: str
) -> None:
    last = ("eval.every=0", "checkpoint.every=119")  # a step before the evaluation, which takes 2 s
    run = start_run(*BESIDE, *LONG_EVALUATION, f"eval.beside={beside}", *last)
    run.wait_until(lambda: len(run.checkpoints()) > 0, 40)
    time.sleep(0.5)
    run.signal(signal.SIGINT)
    assert run.finish(20)[0] == 130
    assert (run.summary()["status"], run.summary()["eval"]["episodes"]) == ("interrupted", 0)
    assert run.checkpoints()[-1] == "step-000000000120"
    resumed = start_run(command=("resume", "run"))
    assert resumed.finish()[0] == 0
    assert (resumed.summary()["status"], resumed.summary()["eval"]["episodes"]) == ("completed", 1)
    traces.assert_none()
