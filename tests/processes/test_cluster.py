"""The script for SLURM in the documentation, run by a scheduler that is a few lines of this file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Traces
from tests.processes.conftest import REPOSITORY, TINY, LiveRun

pytestmark = [pytest.mark.mp, pytest.mark.slow]
DOCS = REPOSITORY / "docs/clusters.md"
TRAIN = 'offpolicy train env=halfcheetah total_timesteps=1_000_000 run_dir="runs/job-$SLURM_JOB_ID"'


def recipe() -> str:
    """The script of the documentation, with a tiny run instead of the long one."""
    scripts = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", DOCS.read_text(), re.DOTALL)
    (script,) = [one for one in scripts if "scontrol requeue" in one]
    words = [word for word in TINY if not word.startswith("run_dir")]
    command = f'"{sys.executable}" -m offpolicy train {" ".join(words)} run_dir="runs/job-$SLURM_JOB_ID" $EXTRA'
    assert TRAIN in script
    return str(script).replace(TRAIN, command)


class Scheduler:
    """Starts the job's script, signals it as `--signal=B:USR1` does, and notes what it asks of `scontrol`."""

    def __init__(self, directory: Path, traces: Traces) -> None:
        self._directory, self._traces = directory, traces
        (directory / "job.sh").write_text(recipe())
        (directory / "scontrol").write_text('#!/bin/sh\necho "$@" >> requests\n')
        (directory / "scontrol").chmod(0o755)

    def start(self, extra: str) -> LiveRun:
        path = f"{self._directory}:{os.environ['PATH']}"
        environ = {**os.environ, **self._traces.environ, "PYTHONPATH": str(REPOSITORY), "PATH": path}
        process = subprocess.Popen(
            ["bash", "job.sh"], cwd=self._directory, env={**environ, "SLURM_JOB_ID": "42", "EXTRA": extra},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        return LiveRun(process, self._directory / "runs" / "job-42", self._traces.run_id)

    def requests(self) -> list[str]:
        path = self._directory / "requests"
        return path.read_text().splitlines() if path.exists() else []


def test_a_job_at_its_time_limit_is_requeued_and_goes_on_where_it_stopped(tmp_path: Path, traces: Traces) -> None:
    scheduler = Scheduler(tmp_path, traces)
    job = scheduler.start("total_timesteps=100000000 replay.capacity=100000")
    try:
        job.wait_for_updates()
        job.signal(signal.SIGUSR1)
        code, _, err = job.finish()
        assert (code, err) == (0, "")
        assert scheduler.requests() == ["requeue 42"]
        stopped_at = int(job.checkpoints()[-1].removeprefix("step-"))
        assert job.summary()["status"] == "interrupted"
        again = scheduler.start(f"total_timesteps={stopped_at + 200} replay.capacity=100000")
        code, out, err = again.finish()
    finally:
        job.process.kill()
    assert (code, err) == (0, "")
    assert f"resuming at env step {stopped_at:,}" in out
    assert again.summary()["env_steps"] == stopped_at + 200
    states = [(record["env_steps"], record["train/n_updates"]) for record in again.records()]
    assert states == sorted(set(states))
    assert len(scheduler.requests()) == 1
