"""Saves that do not come about: before the first one, between a row and its count, on a slow disk."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

pytestmark = pytest.mark.mp


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
    assert state["env_steps"] > 300
    assert sum(state["replay_written"]) == state["env_steps"] + 1
    code, out, _ = start_run().finish()
    assert (code, f"resuming at env step {state['env_steps']}" in out) == (0, True)


@pytest.mark.slow
def test_a_disk_that_takes_longer_than_a_step_may_is_no_hung_environment(
    start_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFPOLICY_FAULT", "snapshot.mkdir@role=collector,n=1:delay:12000")
    run = start_run("checkpoint.every=300", "env.step_timeout_s=1")
    code, _, err = run.finish(80.0)
    assert (code, err) == (0, "")
    assert len(run.checkpoints()) == 2
