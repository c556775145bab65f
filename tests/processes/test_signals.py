"""Signals: orderly stops, saves, kills, no orphans; and nothing is left of what an environment has started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Traces
from tests.full_pipe import FullPipe
from tests.processes.conftest import ENDLESS, REPOSITORY, TINY, LiveRun, launch

pytestmark = pytest.mark.mp


def stop(run: LiveRun, number: int) -> int:
    """Stops a run by a signal; checkpoint and summary are as they must be. Returns its env steps."""
    run.signal(number)
    assert run.finish()[0] == 128 + number
    summary = run.summary()
    assert (summary["status"], summary["exit_code"]) == ("interrupted", 128 + number)
    assert run.checkpoints()[-1] == f"step-{summary['env_steps']:012d}"
    return int(summary["env_steps"])


@pytest.mark.promise("exit-codes", "summary", "run-dir")
def test_ctrl_c_saves_a_checkpoint_from_which_the_run_resumes(start_run: Any, traces: Traces) -> None:
    run = start_run(*ENDLESS)
    run.wait_for_updates()
    stopped_at = stop(run, signal.SIGINT)
    assert len(run.checkpoints()) == 1
    traces.assert_none()
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


@pytest.mark.promise("no-orphan")
@pytest.mark.parametrize("grace_s", [5.0, pytest.param(2.0, marks=[pytest.mark.slow, pytest.mark.alone])])
def test_killing_the_supervisor_leaves_no_orphan(start_run: Any, traces: Any, grace_s: float) -> None:
    run = start_run(*ENDLESS)
    run.wait_for_updates()
    assert len(traces.processes()) >= 3
    run.signal(signal.SIGKILL)
    run.finish()
    traces.assert_none(grace_s)


@pytest.mark.promise("last-words", "no-silent-success")
@pytest.mark.parametrize("role", [pytest.param("collector", marks=pytest.mark.slow), "learner"])
def test_killing_a_child_ends_the_run_and_names_it(start_run: Any, traces: Any, role: str) -> None:
    run = start_run(*ENDLESS, "runner.max_restarts=0")
    run.wait_for_updates()
    os.kill(run.pid_of(role), signal.SIGKILL)
    code, _, err = run.finish()
    assert code == 1
    assert err.strip().splitlines()[-1].startswith(f"offpolicy: {role} 0 (pid ")
    assert "killed by SIGKILL" in err
    assert run.summary()["status"] == "failed"
    assert len(run.checkpoints()) == (1 if role == "collector" else 0)
    traces.assert_none()


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


@dataclass(frozen=True, slots=True)
class Unread:
    """An endless run under `nohup`, whose stdout is a full pipe without a reader."""

    run: LiveRun
    traces: Traces

    def updates(self) -> float:
        return float(self.run.records()[-1]["train/n_updates"])

    def assert_goes_on(self) -> None:
        before = self.updates()
        self.run.wait_until(lambda: self.updates() > before, timeout_s=40)


@pytest.fixture(scope="module")
def unread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unread]:
    directory, traces, pipe = tmp_path_factory.mktemp("unread"), Traces(), FullPipe()
    process = subprocess.Popen(
        ["nohup", sys.executable, "-m", "offpolicy.cli", "train", *TINY, *ENDLESS],
        cwd=directory, env={**os.environ, "PYTHONPATH": str(REPOSITORY), **traces.environ},
        stdin=subprocess.DEVNULL, stdout=pipe.file, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    run = LiveRun(process, directory / "run", traces.run_id)
    try:
        run.wait_for_updates()
        yield Unread(run, traces)
    finally:
        process.kill()
        process.communicate()
        pipe.close()
    traces.assert_none()


def test_a_hangup_under_nohup_changes_nothing(unread: Unread) -> None:
    for pid in unread.traces.processes():
        os.kill(pid, signal.SIGHUP)
    unread.assert_goes_on()


def test_usr1_saves_a_checkpoint_and_the_run_goes_on(unread: Unread) -> None:
    saved = len(unread.run.checkpoints())
    for pid in unread.traces.processes():  # as `scancel --full` does: to all of them
        os.kill(pid, signal.SIGUSR1)
    unread.run.wait_until(lambda: len(unread.run.checkpoints()) > saved, timeout_s=40)
    unread.assert_goes_on()


@pytest.mark.promise("run-dir", "exit-codes")
def test_a_run_directory_in_use_is_refused_and_the_first_run_continues(unread: Unread, traces: Traces) -> None:
    second = launch(unread.run.directory.parent, traces.environ, ())
    code, _, err = second.finish()
    assert code == 73
    assert f"pid {unread.run.process.pid}" in err
    unread.assert_goes_on()


def test_a_run_whose_output_nobody_reads_trains_and_saves_when_it_is_stopped(unread: Unread) -> None:
    """The last one: it ends the run."""
    stop(unread.run, signal.SIGTERM)


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


@pytest.mark.slow
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


@pytest.mark.promise("no-orphan")
@pytest.mark.parametrize("end", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), None])
def test_what_environments_have_started_ends_with_the_run(
    start_run: Any, traces: Traces, tmp_path: Path, end: signal.Signals | None
) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING)
    run = start_run(*(ENDLESS if end else ()), "env.id=leaving:Leaving-v0")
    if end:
        run.wait_for_updates()
        run.signal(end)
    assert run.finish()[0] == (143 if end else 0)
    traces.assert_none()
