"""A sweep of real runs is killed and goes on; another one runs as jobs of a pretended SLURM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import fake_slurm
from tests.conftest import REPOSITORY, Traces
from tests.processes.conftest import TINY

pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.timeout(1200)]
PATIENCE_S = 300.0
SMALL = {word.split("=")[0]: word for word in (*TINY, "total_timesteps=600", "eval.every=200", "eval.episodes=1")}
WORDS = [*(word for key, word in SMALL.items() if key not in ("seed", "run_dir")), "device=cpu", "log.every_s=0.1"]


@pytest.fixture
def space(tmp_path: Path) -> Path:
    file = tmp_path / "space.yaml"
    file.write_text("parameters:\n  algo.actor_lr: {low: 1.0e-4, high: 1.0e-2, log: true}\n")
    return file


def finished(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.rglob("summary.json"))


def test_a_sweep_that_is_killed_goes_on_with_its_trials(
    run_cli: Any, traces: Traces, space: Path, tmp_path: Path
) -> None:
    words = ["sweep", str(space), *WORDS, "--trials", "3", "--jobs", "1", "--no-prune"]
    environ = {**os.environ, **traces.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "offpolicy.cli", *words]
    out = tmp_path / "sweeps/space"
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL) as first:
        deadline = time.monotonic() + PATIENCE_S
        while not (out / "trial-001/seed-0/run/metrics.jsonl").is_file() and time.monotonic() < deadline:
            time.sleep(0.1)
        first.send_signal(signal.SIGKILL)
    assert finished(out) == ["trial-000/seed-0/run/summary.json"]
    again = run_cli(words, timeout=PATIENCE_S)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "trial 1: goes on" in again.stdout
    assert "trial 0: seed 1 starts" not in again.stdout
    assert finished(out) == [f"trial-00{number}/seed-0/run/summary.json" for number in range(3)]
    assert "Learner, ms/iteration" in again.stdout or "not compared:" in again.stdout
    assert again.stdout.splitlines()[-1].startswith("offpolicy train ")


def test_a_sweep_runs_as_jobs_of_slurm(
    run_cli: Any, space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake_slurm.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    words = ["sweep", str(space), *WORDS, "threads.learner=1", "--trials", "2", "--launcher", "slurm"]
    result = run_cli([*words, "--sbatch=--partition=cpu --cpus-per-task=1"], timeout=2 * PATIENCE_S)
    assert result.returncode == 0, result.stdout + result.stderr
    submitted = log.read_text().splitlines()
    assert len(submitted) == 2
    assert all(line.startswith("--parsable --partition=cpu --cpus-per-task=1 ") for line in submitted)
    assert len(finished(tmp_path / "sweeps/space")) == 2
