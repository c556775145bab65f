"""Learners that are killed and begin again from the checkpoint: the goal is reached, each record is there once.

In `overlap` and `free` the collectors and the replay stay; in `alternate`, and with rollouts, all begin again.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import numpy as np
import pytest

from offpolicy import fault
from offpolicy.collect.evaluations import read_scores
from tests.processes.conftest import ENDLESS, FINISHED, PACED, LiveRun, StartRun, find_process, replay_bytes
from tests.processes.test_appo import TINY_APPO
from tests.processes.test_restarts import COUNTER, PATIENCE_S, check_rows

pytestmark = pytest.mark.mp
RUNNERS = {
    "single_gpu": ("collect.mode=overlap",),
    "double_buffer": ("runner=double_buffer",),
    "multi_gpu": ("runner=multi_gpu", "runner.world_size=2", "device=cpu", "collect.num_collectors=2"),
}


def kill_learner(run: LiveRun, rank: int = 0) -> None:
    """Kills a rank, which may only have been started, once it can be found."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(wait_for_learner(run, rank), signal.SIGKILL)


def wait_for_learner(run: LiveRun, rank: int) -> int:
    found: list[int] = []

    def is_there() -> bool:
        with contextlib.suppress(AssertionError):
            found.append(find_process(run.run_id, "learner", rank))
        return bool(found)

    run.wait_until(is_there, PATIENCE_S)
    return found[-1]


def wait_for_steps(run: LiveRun, more: int) -> None:
    """Returns once the records are so many env steps further."""
    goal = run.records()[-1]["env_steps"] + more
    run.wait_until(lambda: run.records()[-1]["env_steps"] >= goal, PATIENCE_S)


def check_records(run: LiveRun) -> None:
    """Each env step and each episode is recorded once; neither env steps nor updates go back."""
    counts = [(record["env_steps"], record.get("train/n_updates", 0)) for record in run.records()]
    assert [steps for steps, _ in counts] == sorted({steps for steps, _ in counts})
    assert [updates for _, updates in counts] == sorted(updates for _, updates in counts)
    episodes = (run.directory / "episodes.jsonl").read_text().splitlines()
    assert len(set(episodes)) == len(episodes) > 0


def check_account(summary: dict[str, Any]) -> None:
    """The phases, the rest and the time between the processes are the wall time."""
    learner = summary["timing"]["learner"]
    assert learner["wall_s"] == pytest.approx(sum(learner["phases_s"].values()) + learner["other_s"])


@pytest.mark.promise("restart")
@pytest.mark.parametrize(
    "runner", ["single_gpu", *(pytest.param(name, marks=pytest.mark.slow) for name in ("double_buffer", "multi_gpu"))]
)
def test_a_killed_learner_comes_back_to_the_replay_in_memory(start_run: StartRun, traces: Any, runner: str) -> None:
    evaluated = ("eval.every=50", "eval.episodes=1", "eval.beside=false")
    run = start_run(*COUNTER, *RUNNERS[runner], *evaluated, "total_timesteps=1500", "checkpoint.every=200")
    run.wait_for_updates()
    kill_learner(run)  # before the first checkpoint, or soon after
    wait_for_steps(run, 300)
    kill_learner(run, 1 if runner == "multi_gpu" else 0)
    code, out, err = run.finish(PATIENCE_S)
    assert (code, err) == (0, "")
    assert out.count("was killed by SIGKILL; restart") == 2
    summary = run.summary()
    assert (summary["learner_restarts"], summary["restarts"]) == (2, 0)
    assert (summary["env_steps"], summary["updates"]) == (1500, 1400)
    assert run.records()[-1]["train/restarts"] == 2
    for name in ("metrics", "evaluations"):
        assert not (run.directory / f"{name}.superseded.jsonl").exists()  # no env step is made again
    steps = [score.env_steps for score in read_scores(run.directory)]
    assert len(steps) > 15
    assert max(np.diff(steps)) < 200  # the last save before a death may be 200 env steps back
    check_account(summary)
    check_records(run)
    check_rows(run)
    traces.assert_none()


@pytest.mark.promise("restart", "exact-resume")
def test_a_killed_learner_of_alternate_changes_no_bit(start_run: StartRun, finished_run: LiveRun, traces: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(fault.VARIABLE, PACED)
        run = start_run(*FINISHED)
    run.wait_until(lambda: len(run.checkpoints()) >= 1, PATIENCE_S)
    kill_learner(run)
    code, out, err = run.finish(PATIENCE_S)
    assert (code, err.count("\n")) == (0, 1), err  # that a fault is injected
    assert "died at env step" in out
    assert "all processes start again at env step 500" in out
    assert "not bitwise" not in out
    assert run.summary()["learner_restarts"] == 1
    first, second = (one.directory / "checkpoints" / "step-000000001100" for one in (finished_run, run))
    assert (first / "learner.safetensors").read_bytes() == (second / "learner.safetensors").read_bytes()
    assert replay_bytes(first) == replay_bytes(second)
    check_records(run)
    traces.assert_none()


@pytest.mark.promise("restart")
def test_a_killed_learner_of_appo_learns_from_every_env_step(start_run: StartRun, traces: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(fault.VARIABLE, PACED)
        run = start_run("total_timesteps=2400", "checkpoint.every=1000", command=TINY_APPO)
    run.wait_until(lambda: len(run.checkpoints()) >= 1, PATIENCE_S)
    kill_learner(run)
    code, out, err = run.finish(PATIENCE_S)
    assert (code, err.count("\n")) == (0, 1), err  # that a fault is injected
    assert "restart 1 of at most 4" in out
    assert "all processes start again at env step " in out
    assert run.summary()["env_steps"] >= 2400
    assert run.summary()["updates"] >= 2 * 2 * 2400 // (10 * 2)  # those that were lost with the networks are made again
    assert run.summary()["learner_restarts"] == 1
    check_records(run)
    traces.assert_none()


@pytest.mark.slow
def test_a_learner_that_dies_again_and_again_is_a_crash_loop(start_run: StartRun, traces: Any) -> None:
    run = start_run(*ENDLESS, "collect.mode=alternate", "runner.max_restarts=1")
    run.wait_for_updates()
    first = run.pid_of("learner")
    kill_learner(run)
    run.wait_until(lambda: wait_for_learner(run, 0) != first, PATIENCE_S)
    kill_learner(run)
    code, _, err = run.finish(PATIENCE_S)
    assert code == 70
    assert err.count("it was killed by SIGKILL") == 2
    assert run.summary()["status"] == "failed"
    traces.assert_none()
