"""Runs are started, asked for their state and stopped, as processes here and as jobs of a pretended SLURM."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offpolicy.commands import jobs as module
from offpolicy.commands.jobs import (
    Job,
    LocalJob,
    LocalLauncher,
    NotSubmitted,
    SlurmJob,
    SlurmLauncher,
    check_slurm,
    is_queued,
    job_script,
    last_line,
)
from offpolicy.errors import ConfigError, OffPolicyError
from tests import fake_slurm
from tests.held_process import HeldProcess

# In place of the command line: the code, or to wait for a signal and to exit with 143 then.
FAKE = """
import signal, sys, time
word = next(word for word in sys.argv if word.startswith("fake="))
if word == "fake=waits":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print("ready", flush=True)
    time.sleep(60)
print("offpolicy: said why", file=sys.stderr)
sys.exit(int(word[5:]))
"""


def ended(job: Job, timeout_s: float = 30.0) -> int:
    return waited(lambda: job.poll() is not None, timeout_s) and job.poll() or 0


def waited(condition: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()
    return True


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> LocalLauncher:
    monkeypatch.setattr(module, "CHILD", FAKE)
    return LocalLauncher()


def test_a_process_that_the_system_refuses_was_not_submitted(
    local: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotSubmitted, match="file/a: a process cannot be started: Not a directory"):
        local.start(["fake=0"], tmp_path / "file" / "a")

    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(module.subprocess, "Popen", refuse)
    with pytest.raises(NotSubmitted, match="Resource temporarily unavailable"):
        local.start(["fake=0"], tmp_path / "a")


@pytest.mark.parametrize("code", [0, 65])
def test_a_process_has_its_exit_code_and_its_last_error(local: LocalLauncher, tmp_path: Path, code: int) -> None:
    job = local.start([f"fake={code}"], tmp_path / "a")
    assert ended(job) == code
    assert job.last_error() == "offpolicy: said why"


def test_a_process_is_stopped_as_a_user_would(local: LocalLauncher, tmp_path: Path) -> None:
    job = local.start(["fake=waits"], tmp_path / "a")
    waited(lambda: last_line(tmp_path / "a/out") == "ready")
    assert job.poll() is None
    job.stop()
    assert job.poll() == 143


class SteppedWatch:
    """A stopwatch that shows the seconds of `now_s`."""

    now_s = 0.0

    def elapsed_s(self) -> float:
        return self.now_s


@pytest.mark.parametrize(("asked_s_ago", "rest_s"), [(0.0, 60.0), (25.0, 35.0), (90.0, 0.0)])
def test_the_time_to_stop_begins_when_a_process_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_s_ago: float, rest_s: float
) -> None:
    """What the kernel holds after that is given up."""
    watch, held = SteppedWatch(), HeldProcess()
    monkeypatch.setattr(module, "Stopwatch", lambda: watch)
    job = LocalJob(held, tmp_path, stop_s=60.0)  # type: ignore[arg-type]  # a fake process
    job.ask_to_stop()
    watch.now_s = asked_s_ago
    job.stop()
    assert (held.was_killed, held.num_signals, held.limits_s) == (True, 1, [rest_s, 30.0])


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pretended SLURM; the file in which it notes what was submitted."""
    log = fake_slurm.install(tmp_path / "bin")
    (tmp_path / "train.py").write_text(FAKE)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    run = module.sys.executable
    python = tmp_path / "bin/python"
    python.write_text(f'#!/bin/bash\nexec {run} {tmp_path / "train.py"} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(module.sys, "executable", str(python))
    return log


@pytest.mark.parametrize("code", [0, 65])
def test_a_job_leaves_its_exit_code(submitted: Path, tmp_path: Path, code: int) -> None:
    job = SlurmLauncher(["--partition=gpu"]).start([f"fake={code}"], tmp_path / "trial-000/seed-0")
    assert ended(job) == code
    assert job.last_error() == "offpolicy: said why"
    assert submitted.read_text().startswith("--parsable --partition=gpu ")


def test_a_job_is_cancelled(submitted: Path, tmp_path: Path) -> None:
    directory = tmp_path / "trial-000/seed-0"
    job = SlurmLauncher([]).start(["fake=waits"], directory)
    waited(lambda: last_line(directory / "out") == "ready")
    assert job.poll() is None
    job.stop()
    assert ended(job) in (1, 143)


def test_a_job_that_is_still_queued_is_found_again(submitted: Path, tmp_path: Path) -> None:
    directory = tmp_path / "trial-000/seed-0"
    first = SlurmLauncher([]).start(["fake=waits"], directory)
    again = SlurmLauncher([]).start(["fake=waits"], directory)
    assert len(submitted.read_text().splitlines()) == 1
    waited(lambda: last_line(directory / "out") == "ready")
    again.stop()
    assert ended(first) in (1, 143)


def test_a_job_is_not_lost_while_slurm_does_not_answer_and_not_submitted_twice(submitted: Path, tmp_path: Path) -> None:
    """A restart of slurmctld made every running trial fail, and a sweep that went on then had jobs twice."""
    directory = tmp_path / "trial-000/seed-0"
    job = SlurmLauncher([]).start(["fake=waits"], directory)
    waited(lambda: last_line(directory / "out") == "ready")
    down = tmp_path / "bin/down"
    down.touch()
    assert [job.poll() for _ in range(module.LOST_POLLS + 1)] == [None] * (module.LOST_POLLS + 1)
    again = SlurmLauncher([]).start(["fake=waits"], directory)
    assert len(submitted.read_text().splitlines()) == 1
    down.unlink()
    again.stop()
    assert ended(job) in (1, 143)


def test_a_machine_that_has_lost_squeue_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the sweep would wait for its answer for ever."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="there is no squeue here"):
        is_queued("1")


def test_a_job_that_has_ended_is_submitted_again(submitted: Path, tmp_path: Path) -> None:
    directory = tmp_path / "trial-000/seed-0"
    assert ended(SlurmLauncher([]).start(["fake=65"], directory)) == 65
    assert ended(SlurmLauncher([]).start(["fake=0"], directory)) == 0
    assert len(submitted.read_text().splitlines()) == 2


def test_a_job_that_is_gone_without_a_code_is_lost(submitted: Path, tmp_path: Path) -> None:
    job = SlurmLauncher([]).start(["fake=0"], tmp_path / "trial-000/seed-0")
    assert ended(job) == 0
    number = json.loads((tmp_path / "trial-000/seed-0/slurm.json").read_text())["job"]
    waited(lambda: not is_queued(number))
    (tmp_path / "trial-000/seed-0/exit").unlink()
    job = SlurmJob(number, tmp_path / "trial-000/seed-0")  # one that has not missed the job at its start
    polls = [job.poll() for _ in range(module.LOST_POLLS)]
    assert polls == [None] * (module.LOST_POLLS - 1) + [1]


def test_a_job_that_is_lost_has_no_error_of_the_job_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs append to the file, so that one which SLURM requeues keeps its lines."""
    (tmp_path / "slurm.json").write_text('{"job": "7"}')
    (tmp_path / "err").write_text("offpolicy: an earlier job said why\n")
    monkeypatch.setattr(module, "_slurm", lambda *command: "8\n" if command[0] == "sbatch" else "")
    job = SlurmLauncher([], poll_s=0.0).start(["fake=0"], tmp_path)
    assert [job.poll() for _ in range(module.LOST_POLLS)][-1] == 1
    assert job.last_error() == "job 8 of SLURM is gone and left no exit code"


def test_without_sbatch_no_job_is_said_to_be_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fail one trial after the other."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="there is no sbatch here"):
        SlurmLauncher([]).start(["fake=0"], tmp_path / "a")


def test_a_job_that_was_cancelled_and_still_saves_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that went on soon after Ctrl-C took the dying job for its own, and its 143 failed the trial."""
    (tmp_path / "slurm.json").write_text('{"job": "7"}')
    asked: list[str] = []

    def slurm(*command: str) -> str:
        asked.append(command[0])
        if command[0] == "squeue" and asked.count("squeue") == 3:
            (tmp_path / "exit").write_text("143\n")
            return ""
        return "8\n" if command[0] == "sbatch" else "COMPLETING\n"

    monkeypatch.setattr(module, "_slurm", slurm)
    SlurmJob("7", tmp_path).stop()
    SlurmLauncher([], poll_s=0.0).start(["fake=0"], tmp_path)
    assert asked == ["scancel", *["squeue"] * 3, "sbatch"]
    assert not (tmp_path / "exit").exists()


def test_a_job_that_was_cancelled_and_never_ends_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slurm.json").write_text('{"job": "7", "is_cancelled": true}')
    monkeypatch.setattr(module, "_slurm", lambda *command: "COMPLETING\n")
    with pytest.raises(OffPolicyError, match="squeue: job 7 was cancelled and is not known to have ended"):
        SlurmLauncher([], poll_s=0.0).start(["fake=0"], tmp_path)


def test_the_directory_of_a_job_may_have_any_name(submitted: Path, tmp_path: Path) -> None:
    """`sbatch` reads the lines `#SBATCH` like a shell, and replaces `%j`."""
    directory = tmp_path / os.fsdecode(b"a b 50%j \xe9/seed-0")
    assert ended(SlurmLauncher([]).start(["fake=0"], directory)) == 0
    assert last_line(directory / "err") == "offpolicy: said why"


def test_what_sbatch_refuses_is_said(submitted: Path, tmp_path: Path) -> None:
    with pytest.raises(NotSubmitted, match="invalid partition specified: none"):
        SlurmLauncher(["--partition=none"]).start(["fake=0"], tmp_path / "a")


def test_a_machine_without_slurm_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="--launcher: got slurm, but there is no sbatch here"):
        check_slurm()


def test_a_job_that_slurm_does_not_know_is_not_queued(submitted: Path) -> None:
    check_slurm()
    assert is_queued("999999999") is False


def test_the_script_quotes_what_a_shell_would_read(tmp_path: Path) -> None:
    text = job_script(["algo.hidden_dims=[64,64]"], tmp_path / "a b/seed-0")
    assert "'algo.hidden_dims=[64,64]'" in text
    assert f"""'run_dir="{tmp_path}/a b/seed-0/run"'""" in text
    assert "#SBATCH --ntasks=1" in text
