"""Runs of two learner ranks and two collectors in which something dies, freezes or stops."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from tests.processes.conftest import ENDLESS

pytestmark = pytest.mark.mp
PATIENCE_S = 100.0  # for processes that all start at once on a busy machine
TWO = ("runner=multi_gpu", "runner.world_size=2", "device=cpu", "collect.num_collectors=2")


def last_line(err: str) -> str:
    return err.strip().splitlines()[-1]


@pytest.mark.promise("cpu-ranks", "last-words")
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_rank_ends_the_run_and_is_named(start_run: Any, traces: Any, rank: int) -> None:
    run = start_run(*ENDLESS, *TWO, "runner.max_restarts=0")
    run.wait_for_updates()
    os.kill(run.pid_of("learner", rank), signal.SIGKILL)
    code, _, err = run.finish(PATIENCE_S)
    assert code == 1
    assert last_line(err).startswith(f"offpolicy: learner {rank} (pid ")
    assert "killed by SIGKILL" in last_line(err)
    assert run.summary()["status"] == "failed"
    traces.assert_none()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("rank", [0, 1])
def test_a_frozen_rank_ends_the_run_and_is_named(start_run: Any, traces: Any, rank: int) -> None:
    run = start_run(*ENDLESS, *TWO, "runner.timeout_s=3")
    run.wait_for_updates()
    os.kill(run.pid_of("learner", rank), signal.SIGSTOP)
    frozen_s = time.monotonic()
    code, _, err = run.finish(PATIENCE_S)
    assert time.monotonic() - frozen_s < 3.0 + 10.0  # the timeout; then the roll call and the grace of the others
    assert code == 70
    assert f"rank {rank}" in last_line(err)
    traces.assert_none()


@pytest.mark.slow
def test_ranks_that_were_all_paused_go_on(start_run: Any, traces: Any) -> None:
    """Ctrl-Z, a frozen container, or a machine that sleeps, for less than the ranks wait for each other."""
    run = start_run(*ENDLESS, *TWO, "runner.timeout_s=30")
    run.wait_for_updates()
    waited_for = run.pid_of("learner", 1)
    os.kill(waited_for, signal.SIGSTOP)
    time.sleep(0.5)  # rank 0 waits for it
    everybody = [pid for pid in traces.processes() if pid != waited_for]
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(8.0)
    before = len(run.records())
    for pid in (*everybody, waited_for):
        os.kill(pid, signal.SIGCONT)
    run.wait_until(lambda: len(run.records()) > before + 2, PATIENCE_S)
    assert run.process.poll() is None
    run.signal(signal.SIGINT)
    assert run.finish(PATIENCE_S)[0] == 130
    traces.assert_none()


@pytest.mark.promise("cpu-ranks", "ranks-together")
def test_ctrl_c_saves_one_checkpoint_of_all_ranks_and_they_resume_there(start_run: Any, traces: Any) -> None:
    run = start_run(*ENDLESS, *TWO)
    run.wait_for_updates()
    run.signal(signal.SIGINT)
    code, _, err = run.finish(PATIENCE_S)
    assert (code, err) == (130, "")
    stopped_at = run.summary()["env_steps"]
    [checkpoint] = run.checkpoints()
    assert checkpoint == f"step-{stopped_at:012d}"
    saved = {path.name for path in (run.directory / "checkpoints" / checkpoint).iterdir()}
    replay = {f"replay-{index}-000000000000000.f32" for index in (0, 1)}
    assert {"rank-0.json", "rank-1.json", "collector-1.json", *replay} <= saved
    assert list(run.directory.glob(".snapshot*")) == []
    traces.assert_none()
    goal = 2 * (stopped_at // 2) + 100
    resumed = start_run(f"total_timesteps={goal}", command=("resume", "run"))
    code, out, err = resumed.finish(PATIENCE_S)
    assert (code, err) == (0, "")
    assert f"resuming at env step {stopped_at:,}" in out
    assert "not bitwise" not in out
    assert (resumed.summary()["env_steps"], resumed.summary()["updates"]) == (goal, goal - 100)
