"""Runs of two learner ranks and two collectors in which something dies, freezes or stops."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.processes.conftest import ENDLESS, LiveRun, replay_bytes

pytestmark = pytest.mark.mp
PATIENCE_S = 100.0  # for processes that all start at once on a busy machine
TWO = ("runner=multi_gpu", "runner.world_size=2", "device=cpu", "collect.num_collectors=2")


def last_line(err: str) -> str:
    return err.strip().splitlines()[-1]


def learner_tensors(run: LiveRun, checkpoint: str) -> dict[str, Any]:
    tensors: dict[str, Any] = load_file(run.directory / "checkpoints" / checkpoint / "learner.safetensors")
    return tensors


# -- death and silence ------------------------------------------------------------------------------------------------


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


# -- stopping and resuming ---------------------------------------------------------------------------------------------


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


@pytest.mark.slow
@pytest.mark.promise("exact-resume")
def test_two_ranks_stopped_and_resumed_are_bitwise_the_uninterrupted_ones(start_run: Any, tmp_path: Path) -> None:
    options = (*TWO, "collect.mode=alternate", "algo.normalize_obs=true", "total_timesteps=800")
    assert start_run(*options, "run_dir=whole").finish(PATIENCE_S)[0] == 0
    broken = start_run(*options, "run_dir=broken")
    broken.wait_for_updates()
    broken.signal(signal.SIGTERM)
    assert broken.finish(PATIENCE_S)[0] == 143
    assert broken.checkpoints()[-1] < "step-000000000800", "stopped too late to prove anything"
    code, out, _ = start_run(command=("resume", "broken")).finish(PATIENCE_S)
    assert code == 0
    assert "not bitwise" not in out
    whole, again = (tmp_path / name / "checkpoints" / "step-000000000800" for name in ("whole", "broken"))
    shares = {f"{what}-{index}" for index in (0, 1) for what in ("rank", "collector")}
    names = [path.name for path in whole.iterdir() if path.stem in shares | {"learner"}]
    assert len(names) == 7
    assert [name for name in names if (whole / name).read_bytes() != (again / name).read_bytes()] == []
    assert [ring for ring in (0, 1) if replay_bytes(whole, ring) != replay_bytes(again, ring)] == []


@pytest.mark.slow
def test_resume_with_other_ranks_normalises_no_row_twice(start_run: Any) -> None:
    assert start_run(*TWO, "algo.normalize_obs=true", "total_timesteps=200").finish(PATIENCE_S)[0] == 0
    for ranks, steps in ((1, 300), (2, 400)):
        run = start_run(f"runner.world_size={ranks}", f"total_timesteps={steps}", command=("resume", "run"))
        code, out, err = run.finish(PATIENCE_S)
        assert (code, err) == (0, "")
        assert f"not bitwise: {3 - ranks} learner ranks before, {ranks} now" in out
        assert run.summary()["updates"] == steps - 100
        checkpoint = f"step-{steps:012d}"
        assert float(learner_tensors(run, checkpoint)["policy.normalizer.count"]) == steps
