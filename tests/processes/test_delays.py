"""The account of whole runs in which a known part is late: the delay is where it was put, and nowhere else.

Delays are sleeps: they take no core away from the other processes. Medians are over the records of a run, each the
mean of the iterations of a fifth of a second.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Traces
from tests.processes.conftest import REPOSITORY

pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.alone]
BASE = (
    "algo.learning_starts=20", "algo.hidden_dims=[16,16]", "algo.batch_size=16", "eval.episodes=0",
    "eval.beside=false", "log.tensorboard=false", "log.every_s=0.2", "total_timesteps=100", "device=cpu",
    "threads.learner=1", "run_dir=run",
)  # fmt: skip
POINT = "env.id=offpolicy.envs.toy:PointMass-v0"
SLOW_STEP = "env.id=offpolicy.envs.toy:SlowStep-v0"
TWO_RANKS = ("runner=multi_gpu", "runner.world_size=2")
DELAY_MS = 40
SLOW = {"SLOW_UPDATE_MS": str(DELAY_MS)}
EQUAL_MS = 50  # of both sides, where they cost the same

# name: (overrides, the environment of delayed_cli)
RUNS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "two ranks, 1 slow": ((POINT, *TWO_RANKS), {**SLOW, "SLOW_RANK": "1"}),
    "two ranks, 0 slow": ((POINT, *TWO_RANKS), {**SLOW, "SLOW_RANK": "0"}),
    **{
        mode: ((SLOW_STEP, f"env.kwargs.step_ms={EQUAL_MS}", f"collect.mode={mode}"), {"SLOW_UPDATE_MS": str(EQUAL_MS)})
        for mode in ("alternate", "overlap")
    },
}


@dataclass(frozen=True, slots=True)
class Run:
    """What a run left behind."""

    directory: Path

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records of the middle: neither the one that holds the start, nor that of the end."""
        lines = (self.directory / "metrics.jsonl").read_text().splitlines()
        return [record for line in lines if "perf/iter_ms" in (record := json.loads(line))][1:-1]

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return summary

    def median(self, key: str) -> float:
        return statistics.median(record[key] for record in self.records)


def train(directory: Path, overrides: tuple[str, ...], added: dict[str, str]) -> Run:
    """A whole run; its learners are those of delayed_cli."""
    given = {override.split("=")[0] for override in overrides}
    words = [word for word in BASE if word.split("=")[0] not in given] + list(overrides)
    traces = Traces()
    environ = {**os.environ, **traces.environ, **added, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "tests.processes.delayed_cli", "train", *words]
    done = subprocess.run(command, cwd=directory, env=environ, timeout=180, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    traces.assert_none()
    return Run(directory / "run")


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """`run_of(name)`: one of RUNS, done when it is first asked for."""
    done: dict[str, Run] = {}

    def run(name: str) -> Run:
        if name not in done:
            done[name] = train(tmp_path_factory.mktemp("scene"), *RUNS[name])
            assert done[name].summary["updates"] >= 50
        return done[name]

    return run


def assert_named(run: Run, rank: int) -> None:
    """The straggler is named for a third of a short run at least, its end among it, and no other is."""
    named = [record.get("rank/straggler") for record in run.records]
    assert named[-1] == rank
    assert named.count(rank) >= len(named) / 3
    assert set(named) <= {rank, None}


@pytest.mark.parametrize("late", [0, 1])
def test_a_slow_rank_is_named_and_seen_by_the_wait_of_the_other(run_of: Any, late: int) -> None:
    """Its own account looks healthy: it waits for no other."""
    run = run_of(f"two ranks, {late} slow")
    waited = run.median("rank/rank_barrier_max_ms") - run.median("rank/rank_barrier_min_ms")
    assert waited == pytest.approx(DELAY_MS, abs=4)
    own = run.median("timing/learner_rank_barrier_ms")
    assert own == pytest.approx(run.median(f"rank/rank_barrier_{'max' if late else 'min'}_ms"), abs=1)
    assert_named(run, late)


@pytest.mark.timeout(300)
def test_a_rank_slower_by_a_twentieth_is_named_and_of_equal_ranks_none(tmp_path: Path) -> None:
    """Real updates of two ranks: as they are, then with 5 % of rank 1's work more on rank 1."""
    words = (POINT, *TWO_RANKS, "algo.hidden_dims=[256,256]", "algo.batch_size=256", "total_timesteps=6000")
    words += ("log.every_s=1", "log.ranks=all")
    runs = {}
    for name, more_ms in (("equal", 0.0), ("slower", 0.05)):
        work_ms = sum(runs["equal"].median(f"rank/1/{phase}_ms") for phase in ("train", "replay_sample")) if runs else 0
        added = {"SLOW_UPDATE_MS": str(more_ms * work_ms), "SLOW_RANK": "1"} if runs else {}
        (tmp_path / name).mkdir()
        runs[name] = train(tmp_path / name, words, added)
    named = {name: [record.get("rank/straggler") for record in run.records] for name, run in runs.items()}
    assert len(named["slower"]) >= 15
    assert set(named["equal"]) == {None}
    assert named["slower"].count(1) >= 0.95 * len(named["slower"])


def test_a_checkpoint_is_named_after_the_steps_that_its_collectors_had_done(tmp_path: Path) -> None:
    """The collector goes on during an update: what was agreed before it lost the episodes that ended meanwhile."""
    overrides = (POINT, "collect.mode=free", "collect.band=100", "checkpoint.every=50", "checkpoint.keep=9")
    run = train(tmp_path, (*overrides, "total_timesteps=300"), {"SLOW_UPDATE_MS": "20"})
    checkpoints = sorted((run.directory / "checkpoints").glob("step-*"))
    # At the first update the collector may be 100 steps ahead already; from there on every multiple of 50 is seen.
    assert {int(path.name.removeprefix("step-")) // 50 for path in checkpoints} >= {3, 4, 5, 6}
    for checkpoint in checkpoints:
        collected = json.loads((checkpoint / "collector-0.json").read_text())["env_steps"]
        assert checkpoint.name == f"step-{collected:012d}"
