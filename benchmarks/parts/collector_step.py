"""One step of the collector on HalfCheetah-v5, phase by phase, in runs of SAC.

With one environment, behind an update of each step and of every 64th step: what an update leaves in the caches is the
difference. With 64 environments in one batch of MuJoCo, on one thread and on two.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.children import environment, offpolicy_train
from benchmarks.measurement import Measurement
from benchmarks.results import REPOSITORY

COMMON = (
    *("algo=sac", "env=halfcheetah", "device=cpu", "seed=1", "algo.learning_starts=500", "replay.capacity=100000"),
    *("collect.mode=alternate", "eval.episodes=0", "eval.every=0", "checkpoint.every=0", "checkpoint.replay=false"),
    *("log.panel=off", "log.tensorboard=false", "log.every_s=0.5", "threads.learner=1"),
)
MANY = ("env.num_envs=64", "algo.utd=0.0009765625", "total_timesteps=200000")  # an update of every 16 vector steps
CASES: Mapping[str, tuple[str, ...]] = {
    "1 environment, an update per step": ("total_timesteps=1500",),
    "1 environment, an update per 64 steps": ("algo.utd=0.015625", "total_timesteps=20000"),
    "64 environments, threads 1": (*MANY, "threads.collector=1"),
    "64 environments, threads 2": (*MANY, "threads.collector=2"),
}
PHASES = ("weight_apply", "action_select", "env_step", "replay_write")


def measure(rounds: int) -> Iterator[Measurement]:
    """Microseconds of each phase per vector step, and env steps per second of them all, a sample per record."""
    for name, overrides in CASES.items():
        records = [record for _ in range(rounds) for record in _records(*overrides)]
        rates = [record["perf/collector_capacity"] for record in records]
        yield Measurement("collector", name, "env steps/s", rates)
        for phase in PHASES:
            samples = [1000 * record[f"timing/collector_{phase}_ms"] for record in records]
            yield Measurement("collector", f"{name}: {phase}", "us", samples)


def _records(*overrides: str) -> list[dict[str, Any]]:
    """Returns the records of a run in which it learned, but for the first and the last one."""
    with tempfile.TemporaryDirectory(prefix="offpolicy-bench-") as scratch:
        run_dir = Path(scratch) / "run"
        command = offpolicy_train(run_dir, *COMMON, *overrides)
        subprocess.run(command, cwd=REPOSITORY, env=environment(), check=True, stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if "timing/learner_train_ms" in record][1:-1]
