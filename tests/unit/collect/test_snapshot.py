"""The collector's part of a checkpoint: another collector continues from it, or says why it cannot exactly."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

from offpolicy.collect import collector
from offpolicy.collect.policy import RepeatedNoise
from offpolicy.collect.snapshot import restore_snapshot, take_snapshot
from offpolicy.config.schema import RunConfig
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.vector import make_vector

ACTION = np.full((2, 2), 0.5, np.float32)


class Collector(SimpleNamespace):
    """Two point masses that have taken a step, with fakes of the policy and the writer."""

    arrays, restore = collector.Collector.arrays, collector.Collector.restore

    def __init__(self, seed: int, directory: Path = Path("none")) -> None:
        self.cfg, self.index, self.snapshot_dir, self.warn = RunConfig(), 0, directory, list[str]().append
        self.env = make_vector(EnvConfig(id="offpolicy.envs.toy:PointMass-v0", num_envs=2))
        self.policy = SimpleNamespace(
            warmup_rng=np.random.default_rng(seed),
            policy_rng=torch.Generator().manual_seed(seed),
            repeated_noise=RepeatedNoise(16, 2),
        )
        for _ in range(3):
            self.draw()
        self.reopened: list[Any] = []
        rows, sums = np.full((1, 3), seed, np.float32), np.full((1, 4), seed, np.float64)
        self.writer = SimpleNamespace(
            open_windows=lambda: (rows, sums), reopen_windows=lambda *windows: self.reopened.extend(windows)
        )
        self.env.reset(seed)
        outcome = self.env.step(ACTION)
        self.obs, self.ep_return, self.ep_length = outcome.next_obs, outcome.reward, np.ones(2, np.int64)
        self.env_steps, self.vector_steps, self.policy_steps, self.policy_lag_sum = seed, 1, 0, 0.0

    def draw(self) -> torch.Tensor:
        return self.policy.repeated_noise.draw(2, self.policy.policy_rng)


def saved(directory: Path) -> Any:
    """A fake checkpoint of the files in a directory."""
    return SimpleNamespace(
        path=directory,
        has=lambda name: (directory / f"{name}.json").exists(),
        read=lambda kind, name: kind(**json.loads((directory / f"{name}.json").read_text())),
        tensors=lambda name: load_file(directory / f"{name}.safetensors"),
    )


def test_another_collector_continues_from_a_snapshot(tmp_path: Path) -> None:
    one, other = Collector(5, tmp_path / "part"), Collector(6)
    assert take_snapshot(one) is None
    assert restore_snapshot(other, saved(tmp_path / "part")) is None
    assert (other.env_steps, other.vector_steps) == (5, 1)
    np.testing.assert_array_equal(other.obs, one.obs)
    np.testing.assert_array_equal(other.ep_return, one.ep_return)
    assert [float(windows.mean()) for windows in other.reopened] == [5.0, 5.0]
    assert other.policy.warmup_rng.random() == one.policy.warmup_rng.random()
    for _ in range(40):  # noise that is held is held on
        assert torch.equal(one.draw(), other.draw())
    np.testing.assert_array_equal(other.env.step(ACTION).next_obs, one.env.step(ACTION).next_obs)


def test_a_collector_that_was_not_there_says_so(tmp_path: Path) -> None:
    one, other = Collector(5, tmp_path / "part"), Collector(6)
    assert take_snapshot(one) is None
    assert "was not there" in str(restore_snapshot(other, saved(tmp_path / "no")))
    assert other.reopened == []


def test_a_state_that_does_not_fit_begins_new_episodes(tmp_path: Path) -> None:
    one, other = Collector(5, tmp_path / "part"), Collector(6)
    assert take_snapshot(one) is None
    path = tmp_path / "part" / "collector-0.json"
    numbers = json.loads(path.read_text())
    numbers["env"]["id"] = "Another-v0"
    path.write_text(json.dumps(numbers))
    assert "saved with id 'Another-v0'" in str(restore_snapshot(other, saved(tmp_path / "part")))
    assert other.reopened == []
