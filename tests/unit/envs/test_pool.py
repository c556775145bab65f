"""EnvPool behind the contract of vectors: seeds, resets, limits, threads; refused where it is not or has no such task.

The tests that need it are skipped where it is not installed: with its assets it takes 770 MB. The others use a stand-in
with its interface.
"""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from offpolicy.collect.evaluation import random_actor, run_episodes
from offpolicy.config.overrides import load_config
from offpolicy.config.sections import EnvConfig
from offpolicy.envs import pool as pool_module
from offpolicy.envs.make import NO_LIMIT
from offpolicy.envs.pool import Pool
from offpolicy.envs.probe import probe
from offpolicy.envs.state import save_state
from offpolicy.envs.vector import NativeVector, VectorAdapter, make_vector
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
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    module = SimpleNamespace(
        make=make,
        list_all_envs=lambda: ["Pendulum-v1", "MountainCar-v0"],
        make_spec=lambda task: SimpleNamespace(config=SimpleNamespace(_fields=fields)),
    )
    monkeypatch.setattr(pool_module, "_envpool", lambda: module)
    return made


def test_a_pool_begins_anew_with_the_seeds_of_a_reset_and_goes_on_without(fake: list[FakePool]) -> None:
    vector = make(PENDULUM)
    assert vector.reset(seed=[7, 9])[0][:, :2].tolist() == [[7, 0], [9, 0]]
    assert vector.reset()[0][:, :2].tolist() == [[7, 1], [9, 1]]
    assert vector.reset(seed=4)[0][:, :2].tolist() == [[4, 0], [5, 0]]
    vector.close()
    assert [pool.given["num_threads"] for pool in fake] == [2, 2, 2]


@pytest.mark.parametrize(
    ("kwargs", "limit"),
    [
        ({}, 200),
        ({"max_episode_steps": 3}, 3),
        ({"max_episode_steps": -1}, NO_LIMIT),
        ({"max_episode_steps": None}, 200),
    ],
)
def test_a_limit_means_what_it_means_in_gymnasium(fake: list[FakePool], kwargs: dict[str, Any], limit: int) -> None:
    make(EnvConfig(id="Pendulum-v1", num_envs=2, kwargs={"g": 9.0, **kwargs})).close()
    (pool,) = fake
    assert pool.given == {"task": "Pendulum-v1", "max_episode_steps": limit, "g": 9.0, "num_threads": 2}


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
        ({"id": "MountainCar-v0"}, r"its MountainCar-v0 has obs and action of shape \(3,\) and \(1,\), Gymnasium's"),
        (
            {"id": "Pendulum-v1", "kwargs": {"render_mode": "rgb_array"}},
            r"env\.kwargs: got render_mode, allowed with Pendulum-v1 of envpool: max_episode_steps, g",
        ),
    ],
)
def test_what_it_does_not_have_is_refused(fake: list[FakePool], env: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_vector(EnvConfig(num_envs=2, vectorization="envpool", **env))


def test_a_missing_package_is_refused_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    own = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "envpool" else own(name, *rest)
    )
    with pytest.raises(ConfigError, match=r"env\.vectorization: got envpool.* pip install 'offpolicy\[envpool\]'"):
        make_vector(CHEETAH)


def test_wrappers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.vectorization: got envpool, allowed auto, sync or async with env\.wr"):
        load_config(["env.vectorization=envpool", "env.wrappers=[mine:f]"])


# -- with the package --------------------------------------------------------------------------------------------------


@pytest.fixture
def installed() -> None:
    pytest.importorskip("envpool")


def make(cfg: EnvConfig) -> Pool:
    return Pool(gymnasium.make(cfg.id, **cfg.kwargs), cfg.num_envs, 2, cfg.kwargs)


def rollout(vector: VectorAdapter, seed: int, steps: int) -> list[Any]:
    rng = np.random.default_rng(0)
    outcomes: list[Any] = [vector.reset(seed)]
    for _ in range(steps):
        action = np.repeat(rng.uniform(-1.0, 1.0, (1, vector.spec.action_dim)), vector.num_envs, 0)
        outcomes.append(vector.step(action.astype(np.float32)))
    return outcomes


@pytest.mark.usefixtures("installed")
def test_an_episode_depends_on_its_seed_alone() -> None:
    runs = []
    for threads in (1, 2):
        vector = make_vector(CHEETAH, num_threads=threads)
        runs += [rollout(vector, seed, 50) for seed in (3, 3, 4)]
        vector.close()
    for other in (1, 3, 4):  # the same pool again, and one of two threads
        for ours, theirs in zip(runs[0], runs[other], strict=True):
            np.testing.assert_array_equal(ours[0], theirs[0])
    assert (runs[0][0] != runs[2][0]).any()
    assert (runs[0][0][0] != runs[0][0][1]).any()


@pytest.mark.usefixtures("installed")
def test_its_task_is_that_of_gymnasium() -> None:
    """Returns of random actions agree within four standard errors of their difference."""
    returns = []
    for vectorization in ("envpool", "sync"):
        vector = make_vector(EnvConfig(id="HalfCheetah-v5", num_envs=16, vectorization=vectorization), num_threads=2)
        vector.reset(5)
        act = random_actor(vector.spec, 1)
        total = np.zeros(16)
        for step in range(1000):
            outcome = vector.step(act(np.zeros((16, vector.spec.obs_dim), np.float32)))
            total += outcome.reward
            assert outcome.truncated.all() == (step == 999)
        vector.close()
        returns.append(total)
    ours, theirs = returns
    error = np.sqrt((ours.var(ddof=1) + theirs.var(ddof=1)) / 16)
    assert abs(ours.mean() - theirs.mean()) < 4 * error
    assert abs(theirs.mean()) > 8 * error  # so that another reward would show


@pytest.mark.usefixtures("installed")
def test_a_probe_and_an_evaluation_take_gymnasiums_own_environment() -> None:
    assert probe(CHEETAH) == probe(EnvConfig(id="HalfCheetah-v5"))
    episodes = run_episodes(random_actor(probe(PENDULUM), 1), PENDULUM, episodes=2, seed=1)
    assert episodes.length.tolist() == [3, 3]


@pytest.mark.usefixtures("installed")
def test_a_checkpoint_says_that_it_has_no_state() -> None:
    vector = make_vector(PENDULUM)
    assert isinstance(vector.stepper, NativeVector)
    vector.reset(1)
    assert "Pool has no get_state and set_state" in str(save_state(vector))
    vector.close()
