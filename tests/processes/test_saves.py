"""Checkpoints by the clock, beside training: whatever instant a run is killed at, it goes on bit for bit."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes.conftest import LiveRun, killed_and_resumed, replay_bytes

pytestmark = pytest.mark.mp

OFTEN = ("checkpoint.every=0", "checkpoint.every_min=0.002", "collect.mode=alternate", "device=cpu")
VARIANTS = {
    "sac": ("algo.normalize_obs=true", "algo.n_step=3", "env.num_envs=2", "total_timesteps=1500"),
    "td3": ("algo=td3", "replay.capacity=300", "total_timesteps=1500"),
}
NUM_KILLS = 8


def final_state(checkpoint: Path) -> dict[str, bytes]:
    files = {name: (checkpoint / name).read_bytes() for name in ("learner.safetensors", "collector-0.safetensors")}
    return files | {"replay": replay_bytes(checkpoint)}


def progress(run: LiveRun) -> list[tuple[float, float]]:
    return [(record["env_steps"], record["train/n_updates"]) for record in run.records()]


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_saves_by_the_clock_change_nothing_and_a_kill_loses_nothing(start_run: Any, variant: str) -> None:
    whole, again, _ = killed_and_resumed(start_run, *OFTEN, *VARIANTS[variant])
    assert final_state(again) == final_state(whole)


@pytest.mark.slow
def test_kills_at_random_instants_of_saves_leave_a_run_that_ends_as_if_nothing_had_been(start_run: Any) -> None:
    options, rng = (*OFTEN, *VARIANTS["sac"][:-1], "total_timesteps=6000"), random.Random(1)
    whole = start_run(*options, "run_dir=whole")
    assert whole.finish(200.0)[0] == 0
    run = start_run(*options)
    for _ in range(NUM_KILLS):
        before = set(run.checkpoints())
        run.wait_until(lambda: bool(set(run.checkpoints()) - before), 60.0)  # noqa: B023  # called in this turn
        time.sleep(rng.uniform(0.0, 0.2))
        run.signal(signal.SIGKILL)
        run.finish()
        run = start_run(*options)
    assert run.finish(200.0)[0] == 0
    last = sorted((run.directory / "checkpoints").glob("step-*"))[-1]
    assert final_state(last) == final_state(whole.directory / "checkpoints" / last.name)
    assert progress(run) == sorted(set(progress(run)))
    assert len({env_steps for env_steps, _ in progress(run)}) == len(progress(run))


@pytest.mark.promise("run-dir")
def test_a_run_killed_before_its_first_checkpoint_starts_again_by_the_same_command(start_run: Any) -> None:
    options = ("checkpoint.every=0", "checkpoint.every_min=0")
    run = start_run(*options, "total_timesteps=100000000", "replay.capacity=100000")
    run.wait_for_updates()
    run.signal(signal.SIGKILL)
    run.finish()
    code, _, err = start_run(command=("resume", "run")).finish()
    assert code == 66
    assert "give the `offpolicy train` command that began it again, with run_dir=run" in err
    run = start_run(*options, "total_timesteps=300", "replay.capacity=100000")
    code, out, err = run.finish()
    assert (code, err) == (0, "")
    assert "its records are in run/attempt-0" in out
    assert run.summary()["status"] == "completed"
    lines = (run.directory / "attempt-0" / "metrics.jsonl").read_text().splitlines()
    assert any(json.loads(line).get("train/n_updates", 0) > 0 for line in lines)


@pytest.mark.slow
def test_a_collector_that_exits_between_a_row_and_its_count_leaves_a_checkpoint_that_is_used(
    start_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFPOLICY_FAULT", "ring.committed@role=collector,n=324:exit:3")
    lost = start_run()
    code, _, err = lost.finish()
    assert (code, "exited with code 3 without being asked to" in err) == (1, True)
    monkeypatch.delenv("OFFPOLICY_FAULT")
    saved = max((lost.directory / "checkpoints").glob("step-*"))
    state = json.loads((saved / "state.json").read_text())
    assert sum(state["replay_written"]) == state["env_steps"] > 300
    code, out, _ = start_run().finish()
    assert (code, f"resuming at env step {state['env_steps']}" in out) == (0, True)


@pytest.mark.slow
def test_a_disk_that_takes_longer_than_a_step_may_is_no_hung_environment(
    start_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFPOLICY_FAULT", "snapshot.mkdir@role=collector,n=1:delay:12000")
    run = start_run("checkpoint.every=300", "env.step_timeout_s=1")
    code, _, err = run.finish(80.0)
    assert (code, err.count("\n")) == (0, 1), err  # that a fault is injected
    assert len(run.checkpoints()) == 2
