"""Runs are started, asked for their state and stopped, as processes here and as jobs of a pretended SLURM."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offpolicy.commands import jobs as module
from offpolicy.commands.jobs import (
    Job,
    LocalLauncher,
    NotSubmitted,
    SlurmJob,
    SlurmLauncher,
    check_slurm,
    is_queued,
    job_script,
    last_line,
)
from offpolicy.errors import ConfigError
from tests import fake_slurm

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


def test_a_job_that_is_gone_without_a_code_is_lost(submitted: Path, tmp_path: Path) -> None:
    job = SlurmLauncher([]).start(["fake=0"], tmp_path / "trial-000/seed-0")
    assert ended(job) == 0
    number = json.loads((tmp_path / "trial-000/seed-0/slurm.json").read_text())["job"]
    waited(lambda: not is_queued(number))
    (tmp_path / "trial-000/seed-0/exit").unlink()
    job = SlurmJob(number, tmp_path / "trial-000/seed-0")  # one that has not missed the job at its start
    polls = [job.poll() for _ in range(module.LOST_POLLS)]
    assert polls == [None] * (module.LOST_POLLS - 1) + [1]


def test_what_sbatch_refuses_is_said(submitted: Path, tmp_path: Path) -> None:
    with pytest.raises(NotSubmitted, match="invalid partition specified: none"):
        SlurmLauncher(["--partition=none"]).start(["fake=0"], tmp_path / "a")


def test_a_machine_without_slurm_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="--launcher: got slurm, but there is no sbatch here"):
        check_slurm()


def test_the_script_quotes_what_a_shell_would_read(tmp_path: Path) -> None:
    text = job_script(["algo.hidden_dims=[64,64]"], tmp_path / "a b/seed-0")
    assert "'algo.hidden_dims=[64,64]'" in text
    assert f"""'run_dir="{tmp_path}/a b/seed-0/run"'""" in text
    assert "#SBATCH --ntasks=1" in text
