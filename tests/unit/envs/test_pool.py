"""EnvPool behind the contract of vectors: seeds, resets, limits, threads; refused where it is not or has no such task.

A stand-in has its interface: with its assets it takes 770 MB.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.pool import Pool
from offpolicy.envs.vector import make_vector
from offpolicy.errors import ConfigError

CHEETAH = EnvConfig(id="HalfCheetah-v5", num_envs=3, vectorization="envpool")
PENDULUM = EnvConfig(id="Pendulum-v1", num_envs=2, vectorization="envpool", kwargs={"max_episode_steps": 3})


class FakePool:
    """Environments that observe their seed, the episode and the step; and what their constructor was given."""

    single_observation_space = Box(-np.inf, np.inf, (3,), np.float64)
    single_action_space = Box(-2.0, 2.0, (1,), np.float64)

    def __init__(self, task: str, num_envs: int, seed: list[int], max_episode_steps: int, **given: Any) -> None:
        self.given = {"task": task, "max_episode_steps": max_episode_steps, **given}
        self.seeds, self.limit = np.array(seed, float), max_episode_steps
        self.episode, self.age = np.full(num_envs, -1.0), np.zeros(num_envs)
        self.actions: list[np.dtype[Any]] = []

    def _obs(self) -> Any:
        return np.stack([self.seeds, self.episode, self.age], axis=1)

    def reset(self) -> Any:
        self.episode, self.age = self.episode + 1, self.age * 0
        return self._obs(), {}

    def step(self, actions: Any) -> Any:
        self.actions.append(actions.dtype)
        ended = self.age >= self.limit
        self.age = np.where(ended, 0, self.age + 1)
        self.episode = self.episode + ended
        reward = np.where(ended, 0.0, 1.0).astype(np.float32)
        return self._obs(), reward, np.zeros(len(ended), bool), self.age >= self.limit, {}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[FakePool]:
    """Puts a stand-in in EnvPool's place; returns the pools that are made."""
    made: list[FakePool] = []

    def make(task: str, env_type: str, **given: Any) -> FakePool:
        assert env_type == "gymnasium"
        made.append(FakePool(task, **given))
        return made[-1]

    fields = ("num_envs", "seed", "num_threads", "max_episode_steps", "g")
    module: Any = ModuleType("envpool")
    module.__spec__ = ModuleSpec("envpool", None)
    module.make, module.list_all_envs = make, lambda: ["Pendulum-v1"]
    module.make_spec = lambda task: SimpleNamespace(config=SimpleNamespace(_fields=fields))
    monkeypatch.setitem(sys.modules, "envpool", module)
    return made


def test_a_pool_begins_again_with_the_seeds_of_a_reset_and_goes_on_without(fake: list[FakePool]) -> None:
    vector = make(PENDULUM)
    assert vector.reset(seed=[7, 9])[0][:, :2].tolist() == [[7, 0], [9, 0]]
    assert vector.reset()[0][:, :2].tolist() == [[7, 1], [9, 1]]
    assert vector.reset(seed=4)[0][:, :2].tolist() == [[4, 0], [5, 0]]
    vector.close()
    assert [pool.given["num_threads"] for pool in fake] == [2, 2, 2]


def test_the_row_after_an_episode_is_a_reset_and_rewards_are_float64(fake: list[FakePool]) -> None:
    vector = make_vector(PENDULUM)
    vector.reset(3)
    rows = [vector.step(np.zeros((2, 1), np.float32)) for _ in range(5)]
    vector.close()
    assert [row.is_valid.tolist() for row in rows] == [[True] * 2] * 3 + [[False] * 2, [True] * 2]
    assert [row.truncated.tolist() for row in rows] == [[False] * 2] * 2 + [[True] * 2] + [[False] * 2] * 2
    assert (rows[0].reward.dtype, rows[0].next_obs.dtype) == (np.float64, np.float32)
    assert set(fake[-1].actions) == {np.dtype(np.float64)}


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({"id": "Acrobot-v1"}, r"env\.vectorization: got envpool, allowed auto, sync or async: it has no Acrobot-v1"),
        (
            {"id": "Pendulum-v1", "kwargs": {"render_mode": "rgb_array"}},
            r"env\.kwargs: got render_mode, allowed with Pendulum-v1 of envpool: max_episode_steps, g",
        ),
    ],
)
def test_what_it_does_not_have_is_refused(fake: list[FakePool], env: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_vector(EnvConfig(num_envs=2, vectorization="envpool", **env))


@pytest.mark.skipif(importlib.util.find_spec("envpool") is not None, reason="EnvPool is installed")
def test_a_missing_package_is_refused_with_what_to_type() -> None:
    with pytest.raises(ConfigError, match=r"env\.vectorization: got envpool.* pip install 'offpolicy\[envpool\]'"):
        make_vector(CHEETAH)


def make(cfg: EnvConfig) -> Pool:
    return Pool(gymnasium.make(cfg.id, **cfg.kwargs), cfg.num_envs, 2, cfg.kwargs)
