"""Whole runs of every topology, in turns: env steps per second, and where the learner's milliseconds went.

Beside the two ranks stand two runs of one rank each that share the cores and exchange nothing: what ranks wait for each
other at least, even if an exchange cost nothing, is half the mean difference of their iterations.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.children import environment, offpolicy_train
from benchmarks.parts.measurement import Measurement
from benchmarks.results import REPOSITORY
from offpolicy.timing.trace_reader import read_tracks
from offpolicy.timing.trace_writer import TRACES, Mark

COMMON = (
    *("env=halfcheetah", "total_timesteps=1500", "algo.learning_starts=500", "replay.capacity=100000"),
    *("eval.episodes=0", "checkpoint.replay=false", "log.tensorboard=false", "log.panel=off", "seed=1"),
)
TOPOLOGIES: Mapping[str, tuple[str, ...]] = {
    "single_gpu, alternate": (),
    "single_gpu, overlap": ("collect.mode=overlap",),
    "single_gpu, resident, overlap": ("replay.source=resident", "collect.mode=overlap"),
    "double_buffer": ("runner=double_buffer",),
    "multi_gpu, 1 rank": ("runner=multi_gpu",),
    "multi_gpu, 2 ranks": ("runner=multi_gpu", "runner.world_size=2"),
    "multi_gpu, 2 ranks, gloo": ("runner=multi_gpu", "runner.world_size=2", "runner.backend=gloo"),
}
APART = "2 runs of 1 rank, apart"
# What each of two ranks has: half the batch, and one thread, which `auto` gives to each of two on two cores.
ONE_OF_TWO = ("runner=multi_gpu", "threads.learner=1", "algo.batch_size=128", "timing.trace=true")
SETTLING = 100  # iterations after the warm-up that are not counted
PHASES = ("replay_batch_wait", "replay_sample", "h2d", "rank_barrier", "train", "param_sync", "weight_publish")


def measure(rounds: int) -> Iterator[Measurement]:
    """Env steps per second and milliseconds per update since learning began, `rounds` runs of each topology."""
    runs: dict[str, list[Mapping[str, Any]]] = {name: [] for name in TOPOLOGIES}
    for _ in range(rounds):
        for name, overrides in TOPOLOGIES.items():
            runs[name].append(_summary(*overrides))
    waits_ms = [_wait_of_runs_apart_ms() for _ in range(rounds)]
    for name, summaries in runs.items():
        rates = [summary["rates"]["steps_per_sec"] for summary in summaries]
        yield Measurement(name, "env steps", "1/s", rates)
        for phase in PHASES:
            samples = [
                1000 * summary["timing"]["learner"]["phases_s"][phase] / summary["updates"] for summary in summaries
            ]
            yield Measurement(name, phase, "ms/update", samples)
    yield Measurement(APART, "rank_barrier", "ms/update", waits_ms)


def _wait_of_runs_apart_ms() -> float:
    """What two runs would wait for each other in each iteration, on average, if they met at its end."""
    with tempfile.TemporaryDirectory() as directory:
        run_dirs = [Path(directory) / name for name in ("one", "other")]
        children = [
            subprocess.Popen(
                offpolicy_train(run_dir, *COMMON, *ONE_OF_TWO),
                cwd=REPOSITORY,
                env=environment(),
                stdout=subprocess.DEVNULL,
            )
            for run_dir in run_dirs
        ]
        exit_codes = [child.wait() for child in children]
        if any(exit_codes):
            raise RuntimeError("a run of one rank failed")
        one_ns, other_ns = (_iterations_ns(run_dir) for run_dir in run_dirs)
    count = min(len(one_ns), len(other_ns))
    return float(np.abs(one_ns[:count] - other_ns[:count]).mean()) / 2 / 1e6


def _iterations_ns(run_dir: Path) -> NDArray[np.int64]:
    """The duration of every iteration of the learner since it settled."""
    learner = read_tracks(next((run_dir / TRACES).iterdir()))[0]
    ends_ns = np.array([at_ns for at_ns, _ in learner.marks(Mark.ITERATION)])
    return np.diff(ends_ns)[SETTLING:]


def _summary(*overrides: str) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        command = offpolicy_train(run_dir, *COMMON, *overrides)
        subprocess.run(command, cwd=REPOSITORY, env=environment(), check=True, stdout=subprocess.DEVNULL)
        summary: Mapping[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary
