"""Whole runs of every topology, in turns: env steps per second, and where the learner's milliseconds went."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.children import environment, offpolicy_train
from benchmarks.parts.measurement import Measurement
from benchmarks.results import REPOSITORY

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
    "multi_gpu, 2 ranks, parameters": ("runner=multi_gpu", "runner.world_size=2", "runner.sync=parameters"),
}
PHASES = ("replay_batch_wait", "replay_sample", "h2d", "rank_barrier", "train", "param_sync", "weight_publish")


def measure(rounds: int) -> Iterator[Measurement]:
    """Env steps per second and milliseconds per update since learning began, `rounds` runs of each topology."""
    runs: dict[str, list[Mapping[str, Any]]] = {name: [] for name in TOPOLOGIES}
    for _ in range(rounds):
        for name, overrides in TOPOLOGIES.items():
            runs[name].append(_summary(*overrides))
    for name, summaries in runs.items():
        rates = [summary["rates"]["steps_per_sec"] for summary in summaries]
        yield Measurement(name, "env steps per second", "1/s", rates)
        for phase in PHASES:
            samples = [
                1000 * summary["timing"]["learner"]["phases_s"][phase] / summary["updates"] for summary in summaries
            ]
            yield Measurement(name, phase, "ms/update", samples)


def _summary(*overrides: str) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        command = offpolicy_train(run_dir, *COMMON, *overrides)
        subprocess.run(command, cwd=REPOSITORY, env=environment(), check=True, stdout=subprocess.DEVNULL)
        summary: Mapping[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary
