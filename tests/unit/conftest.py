"""Run directories made of numbers, and a device made of queues."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

if TYPE_CHECKING:
    from tests.simulated_device import SimulatedDevice

MakeRun = Callable[..., Path]
CONFIG = {"algo": {"name": "sac", "gamma": 0.99}, "env": {"id": "Toy-v0", "kwargs": {}}, "seed": 1, "run_dir": "x"}


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """`make_run(name, count=, train=, returns=, changes=, extra=)`: a directory with configuration and records.

    `train`: ms of the learner's phase, 10 + noise by default; `changes`: of the configuration, by section;
    `extra`: more keys of every record.
    """

    def make(
        name: str,
        *,
        count: int = 40,
        train: float = 10.0,
        returns: Sequence[float] = (),
        changes: dict[str, Any] | None = None,
        extra: dict[str, float] | None = None,
    ) -> Path:
        path = tmp_path / name
        path.mkdir(parents=True)
        (path / "config.yaml").write_text(yaml.safe_dump(CONFIG | (changes or {})))
        noise = np.random.default_rng(abs(hash_of(name))).normal(size=count)
        lines = []
        for index in range(count):
            train_ms = train + 0.2 * noise[index]
            record = {
                "env_steps": 100 * (index + 1), "iteration": 100 * (index + 1), "wall_s": float(index + 1),
                "timing/learner_train_ms": train_ms, "timing/learner_collector_wait_ms": 1.0,
                "timing/learner_replay_batch_wait_ms": 0.5, "timing/learner_rank_barrier_ms": 0.25,
                "timing/learner_sync_coordination_ms": 0.25, "timing/learner_checkpoint_ms": 0.0,
                "perf/iter_ms": train_ms + 2.0, "perf/steps_per_sec": 1000.0 / (train_ms + 2.0),
                "timing/collector_env_step_ms": 3.0, "perf/collector_cycle_ms": 3.0, "train/n_updates": 100 * index,
                "rollout/ep_rew_mean": returns[index] if len(returns) else -50.0 + index,
            }  # fmt: skip
            lines.append(json.dumps(record | (extra or {})))
        (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        return path

    return make


def hash_of(name: str) -> int:
    """The same in every process."""
    return int.from_bytes(name.encode(), "little") % 2**32


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDevice]:
    """A simulated device in the place of `torch.cuda`; whatever raced on it fails the test."""
    from tests.simulated_device import SimulatedDevice  # here: not every test that uses this file needs torch

    with SimulatedDevice().installed(monkeypatch) as simulated:
        yield simulated
