"""Ctrl-C, TERM and kill -9: orderly stops, no orphans, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from offpolicy.processes.run_signals import SECOND_S
from tests.conftest import Traces
from tests.full_pipe import FullPipe
from tests.processes.conftest import ENDLESS, REPOSITORY, LiveRun, launch

pytestmark = pytest.mark.mp


def stop(run: LiveRun, traces: Traces, number: int) -> int:
    """Stops a run by a signal; checkpoint and summary are as they must be. Returns its env steps."""
    run.wait_for_updates()
    run.signal(number)
    asked = time.monotonic()
    assert run.finish()[0] == 128 + number
    assert time.monotonic() - asked < 10.0
    summary = run.summary()
    assert (summary["status"], summary["exit_code"]) == ("interrupted", 128 + number)
    assert run.checkpoints() == [f"step-{summary['env_steps']:012d}"]
    traces.assert_none()
    return int(summary["env_steps"])


@pytest.mark.slow
def test_sigterm_saves_a_checkpoint_and_the_summary(start_run: Any, traces: Traces) -> None:
    stop(start_run(*ENDLESS), traces, signal.SIGTERM)


def test_ctrl_c_saves_a_checkpoint_from_which_the_run_resumes(start_run: Any, traces: Traces) -> None:
    stopped_at = stop(start_run(*ENDLESS), traces, signal.SIGINT)
    resumed = start_run(f"total_timesteps={stopped_at + 200}", command=("resume", "run"))
    code, out, err = resumed.finish()
    assert (code, err) == (0, "")
    assert f"resuming at env step {stopped_at:,}" in out
    summary = resumed.summary()
    assert (summary["status"], summary["env_steps"], summary["updates"]) == (
        "completed", stopped_at + 200, stopped_at + 100,
    )  # fmt: skip
    # On a busy machine a log interval can end in the state of the one before, or of the end: that was recorded twice.
    steps = [record["env_steps"] for record in resumed.records()]
    assert steps == sorted(set(steps))


@pytest.mark.slow
def test_signals_after_the_end_of_a_run_change_neither_exit_code_nor_output(start_run: Any) -> None:
    run = start_run()
    run.wait_until((run.directory / "summary.json").exists, 40.0)
    numbers = cycle((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1))
    while run.process.poll() is None:
        run.signal(next(numbers))
        time.sleep(0.001)
    code, _, err = run.finish()
    assert (code, err, run.summary()["status"]) == (0, "", "completed")


@pytest.mark.alone
def test_a_second_ctrl_c_ends_the_run_within_a_second(start_run: Any, traces: Any) -> None:
    fault = (
        "env.id=offpolicy.envs.toy:Faulty-v0",
        "env.kwargs.fail=sleep",
        "env.kwargs.at=200",
        "env.kwargs.sleep_s=30",
    )
    run = start_run(*ENDLESS, *fault)
    run.wait_for_updates()
    time.sleep(3)  # the collector is inside a step of 30 s: the first signal cannot be honoured
    run.signal(signal.SIGINT)
    time.sleep(2 * SECOND_S)  # sooner, it counts as the same signal where the first was taken late
    assert run.process.poll() is None
    asked = time.monotonic()
    run.signal(signal.SIGINT)
    code, _, _ = run.finish()
    assert code == 130
    assert time.monotonic() - asked < 1.5  # a second, and the interpreter's exit
    traces.assert_none(grace_s=1.0)


@pytest.mark.alone
def test_killing_the_supervisor_leaves_no_orphan(start_run: Any, traces: Any) -> None:
    run = start_run(*ENDLESS)
    run.wait_for_updates()
    assert len(traces.processes()) == 3
    run.signal(signal.SIGKILL)
    run.finish()
    traces.assert_none(grace_s=2.0)


@pytest.mark.parametrize("role", [pytest.param("collector", marks=pytest.mark.slow), "learner"])
def test_killing_a_child_ends_the_run_and_names_it(start_run: Any, traces: Any, role: str) -> None:
    run = start_run(*ENDLESS, "collect.max_restarts=0", "runner.max_restarts=0")
    run.wait_for_updates()
    os.kill(run.pid_of(role), signal.SIGKILL)
    code, _, err = run.finish()
    assert code == 1
    assert err.strip().splitlines()[-1].startswith(f"offpolicy: {role} 0 (pid ")
    assert "killed by SIGKILL" in err
    assert run.summary()["status"] == "failed"
    assert len(run.checkpoints()) == (1 if role == "collector" else 0)
    traces.assert_none()


def test_a_run_whose_output_nobody_reads_trains_and_saves_when_it_is_stopped(traces: Traces, tmp_path: Path) -> None:
    pipe = FullPipe()
    run = launch(tmp_path, traces.environ, ENDLESS, stdout=pipe.file)
    try:
        run.wait_for_updates()
        run.signal(signal.SIGTERM)
        code, _, err = run.finish()
    finally:
        run.process.kill()
        pipe.close()
    assert (code, err) == (143, "")
    summary = run.summary()
    assert (summary["status"], summary["exit_code"]) == ("interrupted", 143)
    assert run.checkpoints() == [f"step-{summary['env_steps']:012d}"]


STOPPED = """
import os, signal, sys
from offpolicy import cli
from offpolicy.checkpoint import store
from runners import train

def stopped(call, wanted):
    def stop(*args, **options):
        if options == wanted:
            os.kill(os.getpid(), int(number))
        return call(*args, **options)
    return stop

when, number, *words = sys.argv[1:]
if when == "reads":
    store.verify_digests = stopped(store.verify_digests, {"reads_rows": True})
else:
    train.mark_latest = stopped(train.mark_latest, {})
sys.exit(cli.main(words))
"""


def resume_stopped(when: str, number: int, run: Path, traces: Traces) -> subprocess.CompletedProcess[str]:
    """A resume to which a signal comes when it reads the replay, or when it has claimed the run."""
    words = ("resume", run.name, "total_timesteps=5000")
    return subprocess.run(
        [sys.executable, "-c", STOPPED, when, str(int(number)), *words], cwd=run.parent, timeout=60, check=False,
        env={**os.environ, **traces.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_while_the_replay_is_read_ends_a_resume_at_once(
    finished_copy: Path, traces: Traces, number: int, code: int
) -> None:
    """The signal was looked at when the whole run had started, and had restored its replay."""
    names = (".lock", "config.yaml", "summary.json")
    before = [(finished_copy / name).read_text() for name in names]
    ended = resume_stopped("reads", number, finished_copy, traces)
    assert (ended.returncode, ended.stderr, ended.stdout) == (code, "offpolicy: interrupted\n", "")
    assert [(finished_copy / name).read_text() for name in names] == before
    traces.assert_none()


def test_a_run_that_is_stopped_before_its_processes_starts_none(finished_copy: Path, traces: Traces) -> None:
    before = sorted((finished_copy / "checkpoints").glob("step-*"))
    ended = resume_stopped("has_claimed", signal.SIGTERM, finished_copy, traces)
    assert (ended.returncode, ended.stderr) == (143, "")
    assert "learner 0: " not in ended.stdout
    summary = json.loads((finished_copy / "summary.json").read_text())
    assert (summary["status"], summary["exit_code"], summary["env_steps"]) == ("interrupted", 143, 1100)
    assert sorted((finished_copy / "checkpoints").glob("step-*")) == before
    traces.assert_none()
