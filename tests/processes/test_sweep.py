"""A sweep of real runs is killed and goes on, in two processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Traces
from tests.processes.conftest import TINY

pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.timeout(1200)]
PATIENCE_S = 300.0
SMALL = {word.split("=")[0]: word for word in (*TINY, "total_timesteps=600", "eval.every=200", "eval.episodes=1")}
WORDS = [*(word for key, word in SMALL.items() if key not in ("seed", "run_dir")), "device=cpu", "log.every_s=0.1"]


def finished(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.rglob("summary.json"))


def test_a_sweep_that_is_killed_goes_on_in_two_processes(traces: Traces, tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("parameters:\n  algo.actor_lr: {low: 1.0e-4, high: 1.0e-2, log: true}\n")
    environ = {**os.environ, **traces.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "offpolicy", "sweep", "space.yaml", *WORDS, "--trials", "4", "--no-prune"]
    out = tmp_path / "sweeps/space"
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL) as first:
        deadline = time.monotonic() + PATIENCE_S
        while not (out / "trial-001/seed-0/run/metrics.jsonl").is_file() and time.monotonic() < deadline:
            time.sleep(0.1)
        first.send_signal(signal.SIGKILL)
    assert finished(out) == ["trial-000/seed-0/run/summary.json"]
    both = [
        subprocess.Popen(
            command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=PATIENCE_S)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert "trial 1: goes on" in "".join(said)
    assert "trial 0: seed 1 starts" not in "".join(said)
    assert finished(out) == [f"trial-00{number}/seed-0/run/summary.json" for number in range(4)]
    assert any(each.splitlines()[-1].startswith("offpolicy train ") for each in said)
