"""Save now, ignored signals, frozen processes, what environments leave behind, runs that start together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Traces
from tests.processes.conftest import ENDLESS, REPOSITORY, TINY, LiveRun, find_process

pytestmark = pytest.mark.mp
LEAVING = """
import multiprocessing, os, signal, subprocess, threading, gymnasium
from offpolicy.envs.toy import PointMass

class Leaving(PointMass):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        if os.environ.get("OFFPOLICY_RUN_ID"):
            subprocess.Popen(["sleep", "300"])
            subprocess.Popen(["sleep", "300"], start_new_session=True)
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", "300"])
            threading.Thread(target=threading.Event().wait).start()
            multiprocessing.get_context("fork").Process(target=signal.pause).start()

gymnasium.register("Leaving-v0", Leaving, max_episode_steps=20)
"""


def test_usr1_saves_a_checkpoint_and_the_run_goes_on(start_run: Any, traces: Traces) -> None:
    run = start_run(*ENDLESS)
    run.wait_for_updates()
    for pid in traces.processes():  # as `scancel --full` does: to all of them
        os.kill(pid, signal.SIGUSR1)
    run.wait_until(lambda: len(run.checkpoints()) == 1, timeout_s=40)
    before = run.records()[-1]["train/n_updates"]
    run.wait_until(lambda: run.records()[-1]["train/n_updates"] > before, timeout_s=40)
    run.signal(signal.SIGTERM)
    code, out, _ = run.finish()
    assert code == 143
    assert "SIGUSR1 asked for it" in out


def test_a_hangup_under_nohup_changes_nothing(traces: Traces, tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["nohup", sys.executable, "-m", "offpolicy.cli", "train", *TINY, *ENDLESS],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY), **traces.environ},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    run = LiveRun(process, tmp_path / "run", traces.run_id)
    try:
        run.wait_for_updates()
        for pid in traces.processes():
            os.kill(pid, signal.SIGHUP)
        before = run.records()[-1]["train/n_updates"]
        run.wait_until(lambda: run.records()[-1]["train/n_updates"] > before, timeout_s=40)
        process.send_signal(signal.SIGINT)
        assert run.finish()[0] == 130  # not that of the hangup, which would be the first signal
    finally:
        process.kill()


@pytest.mark.slow
@pytest.mark.alone
def test_a_frozen_collector_costs_ten_seconds_and_not_the_save(start_run: Any) -> None:
    run = start_run(*ENDLESS)
    run.wait_for_updates()
    os.kill(run.pid_of("collector"), signal.SIGSTOP)
    run.signal(signal.SIGTERM)
    asked = time.monotonic()
    code, out, err = run.finish()
    assert code == 143, err
    assert 9.0 < time.monotonic() - asked < 20.0
    assert "collector 0" in out
    assert "did not react for 10 s and was killed" in out
    assert len(run.checkpoints()) == 1


@pytest.mark.parametrize("end", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), None])
def test_what_environments_have_started_ends_with_the_run(
    start_run: Any, traces: Traces, tmp_path: Path, end: signal.Signals | None
) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING)
    run = start_run(*(ENDLESS if end else ()), "env.id=leaving:Leaving-v0")
    if end:
        run.wait_for_updates()
        assert len(traces.processes()) == 7  # supervisor, learner, collector, and what the environment has started
        run.signal(end)
    assert run.finish()[0] == (143 if end else 0)
    assert find_nothing(traces)


def find_nothing(traces: Traces) -> bool:
    """True once no process of the run is left: at once, but for the kernel's own time."""
    traces.assert_none(grace_s=1.0)
    return True


@pytest.mark.slow
def test_the_learner_that_froze_is_named_when_a_stop_fails(start_run: Any, traces: Traces) -> None:
    run = start_run(*ENDLESS)
    run.wait_for_updates()
    pid = find_process(traces.run_id, "learner")
    os.kill(pid, signal.SIGSTOP)
    run.signal(signal.SIGTERM)
    code, _, err = run.finish(timeout_s=60.0)
    assert code == 70
    assert f"learner 0 (pid {pid})" in err
