"""Runs as real processes, small enough to be killed by the dozen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = (
    "env.id=offpolicy.envs.toy:PointMass-v0",
    "total_timesteps=600",
    "algo.learning_starts=100",
    "algo.hidden_dims=[16,16]",
    "algo.batch_size=16",
    "eval.episodes=1",
    "threads.learner=1",  # two would fight for cores with whatever else a test machine does
    "eval.beside=false",  # whatever machine this is: a run has the same processes everywhere
    "log.tensorboard=false",
    "log.every_s=0.2",
    "run_dir=run",
)
ENDLESS = ("total_timesteps=100000000", "replay.capacity=100000")


def find_process(run_id: str, role: str, index: int = 0) -> int:
    """The pid of the child `role` number `index` of a run."""
    mark = f"OFFPOLICY_RUN_ID={run_id}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            is_ours = mark in Path(f"/proc/{name}/environ").read_bytes()
            comm = Path(f"/proc/{name}/comm").read_text().strip()
        except OSError:
            continue
        if is_ours and comm == f"op-{role}-{index}":
            return int(name)
    raise AssertionError(f"no {role} {index} of run {run_id}")


@dataclass
class LiveRun:
    """A run that is going on."""

    process: subprocess.Popen[str]
    directory: Path
    run_id: str

    def wait_for_updates(self, timeout_s: float = 40.0) -> None:
        """Return once the learner has learnt: the first record with updates is there."""
        self.wait_until(lambda: any(r.get("train/n_updates", 0) > 0 for r in self.records()), timeout_s)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "timed out"
            time.sleep(0.05)

    def records(self) -> list[dict[str, Any]]:
        path = self.directory / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def pid_of(self, role: str, index: int = 0) -> int:
        return find_process(self.run_id, role, index)

    def finish(self, timeout_s: float = 40.0) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return summary

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "checkpoints").glob("step-*"))


StartRun = Callable[..., LiveRun]


def _run_dir(words: list[str]) -> str:
    named = [word.removeprefix("run_dir=") for word in words if word.startswith("run_dir=")]
    return named[0] if named else words[1]


@pytest.fixture
def start_run(traces: Any, tmp_path: Path) -> Iterator[StartRun]:
    """`start_run(*overrides)`: a tiny run in the background; whatever is left of it is killed at the end."""
    started: list[LiveRun] = []

    def start(*overrides: str, command: tuple[str, ...] = ("train", *TINY)) -> LiveRun:
        given = {override.split("=")[0] for override in overrides}
        words = [word for word in command if word.split("=")[0] not in given] + list(overrides)
        environ = {**os.environ, **traces.environ, "PYTHONPATH": str(REPOSITORY)}
        process = subprocess.Popen(
            [sys.executable, "-m", "offpolicy.cli", *words],
            cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        run = LiveRun(process, tmp_path / _run_dir(words), traces.run_id)
        started.append(run)
        return run

    yield start
    for run in started:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGKILL)
            run.process.communicate()
