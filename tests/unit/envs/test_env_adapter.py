"""The report of a failing environment holds its index, seed, step, action and its own traceback."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.env_adapter import VectorAdapter, env_seeds
from offpolicy.envs.vector import make_vector
from offpolicy.errors import EnvFailure
from tests.toys import Counter


def faulty(num_envs: int = 1, **kwargs: Any) -> VectorAdapter:
    return make_vector(EnvConfig(id="tests.toys:Faulty-v0", kwargs=kwargs, num_envs=num_envs))


def step_until_failure(envs: VectorAdapter) -> None:
    for _ in range(5):
        envs.step(np.full((envs.num_envs, 1), 0.25, np.float32))


def failure_of(envs: VectorAdapter) -> str:
    with pytest.raises(EnvFailure) as caught:
        step_until_failure(envs)
    return str(caught.value)


def test_an_environment_that_raises_in_step_is_named_with_seed_step_and_action() -> None:
    seed = env_seeds(1, 4)[2]
    envs = faulty(4, fail="step_raise", at=3, only_seed=seed)
    envs.reset(1)
    text = failure_of(envs)
    assert text.startswith("env 2 of 4 (tests.toys:Faulty-v0) failed in step: ")
    assert text.splitlines()[0].endswith(f"seed {seed}, episode step 3, last action [0.25]: ValueError: fails in step")
    assert 'raise ValueError("fails in step")' in text
    assert text.endswith("ValueError: fails in step")


def test_an_environment_that_raises_in_reset_is_named() -> None:
    envs = faulty(2, fail="reset_raise", only_seed=env_seeds(1, 2)[1])
    with pytest.raises(EnvFailure, match=r"(?s)env 1 of 2 .* failed in reset: .*RuntimeError: fails in reset"):
        envs.reset(1)


def test_a_result_that_is_not_as_declared_is_named() -> None:
    for fail, expected in (
        ("wrong_shape", "observation: expected shape (2,) dtype float32, got shape (3,) dtype float32"),
        ("wrong_length", "step must return (obs, reward, terminated, truncated, info), got a tuple of 4"),
        ("wrong_reward", "reward: expected a number, got str 'much'"),
    ):
        envs = faulty(2, fail=fail, at=2)
        envs.reset(1)
        assert expected in failure_of(envs)


class OldReset(Counter):
    def reset(self) -> Any:
        return super().reset()[0]


class OldResult(Counter):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class OldStep(Counter):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


OldClass = type("Old", (type("Env", (), {"__module__": "gym.core"}),), {})


@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize("kind", [OldReset, OldResult, OldStep, OldClass])
def test_an_environment_of_gym_before_0_26_is_named_as_one(kind: Any, limit: int | None) -> None:
    gymnasium.register("Old-v0", kind, max_episode_steps=limit)
    try:
        with pytest.raises(EnvFailure, match=r"^.*this is the interface of gym before 0.26: pip install shimmy"):
            roll_once(EnvConfig(id="Old-v0"))
    finally:
        del gymnasium.registry["Old-v0"]


def roll_once(cfg: EnvConfig) -> None:
    envs = make_vector(cfg)
    envs.reset(1)
    envs.step(np.zeros((1, 1), np.float32))
