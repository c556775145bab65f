"""The vector contract: NEXT_STEP autoreset, flags, seeds, success, ownership of arrays."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.env_adapter import VectorAdapter, env_seeds
from offpolicy.envs.vector import make_vector
from offpolicy.errors import ConfigError
from offpolicy.types import StepOutcome


def toy(name: str, num_envs: int = 1, **kwargs: Any) -> VectorAdapter:
    return make_vector(EnvConfig(id=f"tests.toys:{name}", kwargs=kwargs, num_envs=num_envs))


def roll(envs: VectorAdapter, steps: int) -> list[StepOutcome]:
    action = np.zeros((envs.num_envs, envs.spec.action_dim), np.float32)
    return [envs.step(action) for _ in range(steps)]


def column(outcomes: list[StepOutcome], field: str, env: int) -> list[Any]:
    return [getattr(outcome, field)[env].tolist() for outcome in outcomes]


@pytest.mark.promise("final-observation", "reset-rows")
def test_an_episode_ends_with_its_true_last_observation_and_then_comes_a_reset_row() -> None:
    envs = toy("Counter-v0", terminate_at=3)
    envs.reset(1)
    rows = roll(envs, 6)
    assert [obs[1:] for obs in column(rows, "next_obs", 0)] == [[1, 0], [2, 0], [3, 0], [0, 1], [1, 1], [2, 1]]
    assert column(rows, "reward", 0) == [1.0, 2.0, 3.0, 0.0, 1.0, 2.0]
    assert column(rows, "terminated", 0) == [False, False, True, False, False, False]
    assert column(rows, "is_valid", 0) == [True, True, True, False, True, True]


def test_environments_end_and_reset_each_at_its_own_step() -> None:
    envs = toy("Counter-v0", num_envs=4, truncate_at=2, stagger=1)
    late = [seed % 4 for seed in env_seeds(7, 4)]
    envs.reset(7)
    rows = roll(envs, 12)
    assert sorted(late) == [0, 1, 2, 3]
    for env, length in enumerate(2 + extra for extra in late):
        phase = [t % (length + 1) for t in range(1, 13)]  # 0 on the reset row
        assert [obs[1] for obs in column(rows, "next_obs", env)] == phase
        assert column(rows, "truncated", env) == [p == length for p in phase]
        assert column(rows, "is_valid", env) == [p != 0 for p in phase]
        assert column(rows, "reward", env) == phase


def test_one_environment_begins_an_episode_with_its_seed_while_the_others_continue() -> None:
    envs = toy("Counter-v0", num_envs=3, truncate_at=2)
    first, *_ = (seed % 4096 for seed in env_seeds(7, 1))
    envs.reset(7)
    roll(envs, 2)  # all have ended
    obs = envs.reset_some(7, [9, 5, 9], np.array([False, True, False]))
    assert obs[1].tolist() == [(first + 5) % 4096, 0, 1]
    assert obs[[0, 2], 1].tolist() == [2, 2]
    rows = roll(envs, 2)
    assert column(rows, "is_valid", 1) == [True, True]  # no reset row: it was reset already
    assert column(rows, "is_valid", 0) == [False, True]
    assert [obs[1] for obs in column(rows, "next_obs", 1)] == [1, 2]


def test_success_is_reported_at_an_episodes_end_and_only_there() -> None:
    """Also of a vector environment of Gymnasium's, whose info holds values and a mask."""
    gymnasium_twin = EnvConfig(id="", batch="tests.unit.envs.test_batch:gymnasium_twin")
    for key, is_vector in (("is_success", False), ("success", False), ("success", True)):
        kwargs = {"terminate_at": 2, "success_key": key}
        vector = replace(gymnasium_twin, kwargs={"mode": "NEXT_STEP", **kwargs})
        envs = make_vector(vector) if is_vector else toy("Counter-v0", **kwargs)
        envs.reset(1)
        success = [outcome.success[0] for outcome in roll(envs, 5)]
        assert np.isnan(success).tolist() == [True, False, True, True, False]
        assert (success[1], success[4]) == (0.0, 1.0)


def test_no_array_that_was_handed_out_ever_changes() -> None:
    envs = toy("Counter-v0", num_envs=2, terminate_at=3, success_key="success")
    kept = [envs.reset(1)]
    seen = [kept[0].copy()]
    for _ in range(8):
        for array in roll(envs, 1)[0][:7]:
            kept.append(array)
            seen.append(array.copy())
    envs.reset(2)
    assert all(np.array_equal(now, then, equal_nan=True) for now, then in zip(kept, seen, strict=True))


@pytest.mark.promise("action-space")
def test_actions_reach_the_environment_in_its_own_bounds_exactly() -> None:
    envs = toy("OddBounds-v0", num_envs=3)
    envs.reset(1)
    row = envs.step(np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]], np.float32))
    assert row.next_obs[0].tolist() == [-2.0, 1.0]
    assert row.next_obs[1].tolist() == pytest.approx([-0.75, 2.05])
    assert row.next_obs[2].tolist() == np.array([0.5, 3.1], np.float32).tolist()


def test_actions_have_the_shape_and_dtype_that_the_environment_declares() -> None:
    envs = toy("OddBounds-v0", matrix=True, dtype="float64")  # raises on an action that its space does not contain
    envs.reset(1)
    assert envs.step(np.array([[-1.0, 1.0]], np.float32)).next_obs[0].tolist() == pytest.approx([-2.0, 3.1])


def test_neighbouring_seeds_share_no_environment_seed() -> None:
    seeds = [env_seeds(seed, 64) for seed in range(100)]
    assert len({seed for group in seeds for seed in group}) == 6400
    assert all(0 <= seed < 2**31 for group in seeds for seed in group)


def test_discrete_actions_are_taken_by_their_number() -> None:
    cfg = EnvConfig(id="tests.toys:DiscreteToy-v0", num_envs=2)
    with contextlib.closing(make_vector(cfg)) as envs:
        envs.reset(1)
        rows = [envs.step(np.array([[0.0], [1.0]], np.float32)) for _ in range(4)]
    assert column(rows, "next_obs", 0) == [[0], [0], [0], [0]]
    assert column(rows, "next_obs", 1) == [[1], [2], [3], [4]]
    assert column(rows, "terminated", 1) == [False, False, False, True]


class OddCartPoles(CartPoleVectorEnv):
    """Gives flags of uint8, and the same array of rewards at every step, as simulators do."""

    def __init__(self, num_envs: int = 1, how: str = "") -> None:
        super().__init__(num_envs=num_envs)
        self.rewards = np.zeros(num_envs)

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(actions)
        self.rewards[:] = reward
        return obs, self.rewards, terminated.astype(np.uint8), truncated.astype(np.uint8), info


gymnasium.register("OddCartPoles-v0", lambda **_: CartPoleEnv(), vector_entry_point=OddCartPoles)


def test_a_keyword_that_the_vector_does_not_take_is_named_and_other_errors_keep_their_text() -> None:
    cfg = EnvConfig(id="OddCartPoles-v0", num_envs=2, vectorization="mujoco")
    problem = "env.kwargs.speed: 2 x OddCartPoles-v0 with env.vectorization=mujoco does not take it; allowed how"
    with pytest.raises(ConfigError, match=f"^{problem}"):
        make_vector(replace(cfg, kwargs={"how": "", "speed": 7}))
    gymnasium.register("LostCartPoles-v0", lambda **_: CartPoleEnv(), vector_entry_point="nowhere_at_all:Vector")
    with pytest.raises(ConfigError, match="got 'LostCartPoles-v0', which needs something that is not installed"):
        make_vector(replace(cfg, id="LostCartPoles-v0"))


def test_flags_of_numbers_are_flags_and_rewards_are_copies() -> None:
    """A flag of uint8 that was inverted is 254 or 255, both true: rows after an end were stored as transitions."""
    cfg = EnvConfig(id="OddCartPoles-v0", num_envs=2, vectorization="mujoco")
    with contextlib.closing(make_vector(cfg)) as envs:
        envs.reset(1)
        rows = roll(envs, 60)
        last = envs.step(np.zeros((2, 1), np.float32))
        envs.batch.env.rewards[:] = 7.0  # type: ignore[attr-defined]
    assert last.reward.tolist() != [7.0, 7.0]
    for env in range(2):
        ends, valid = column(rows, "terminated", env), column(rows, "is_valid", env)
        assert any(ends)
        assert [not is_valid for is_valid in valid[1:]] == [bool(end) for end in ends[:-1]]


@pytest.mark.parametrize(
    ("env_id", "vectorization"),
    [
        *(("Reacher-v5", way) for way in ("mujoco", "sync")),
        ("offpolicy.envs.hand:HandRotation-v1", "mujoco"),
        ("CartPole-v1", "mujoco"),
    ],
)
def test_without_a_time_limit_no_step_is_truncated(env_id: str, vectorization: str) -> None:
    """Reacher's own limit is 50 steps. Vectors of the hand and of Gymnasium ended every step."""
    cfg = EnvConfig(id=env_id, num_envs=2, vectorization=vectorization, kwargs={"max_episode_steps": -1})
    with contextlib.closing(make_vector(cfg)) as envs:
        assert envs.spec.max_episode_steps is None
        envs.reset(1)
        still = np.zeros((2, envs.spec.action_dim), np.float32)
        assert not any(envs.step(still).truncated.any() for _ in range(60))


@pytest.mark.parametrize("vectorization", ["sync", "mujoco"])
def test_only_a_number_of_each_environment_is_a_measure(vectorization: str) -> None:
    cfg = EnvConfig(id="Humanoid-v5", num_envs=2, vectorization=vectorization, kwargs={"max_episode_steps": 2})
    for measure, is_number in (("tendon_length", False), ("x_position", True), ("none", False)):
        vector = make_vector(replace(cfg, measure=measure))
        vector.reset(1)
        found = [vector.step(np.zeros((2, 17), np.float32)).measure for _ in range(2)][-1]
        assert np.isfinite(found).tolist() == [is_number] * 2
