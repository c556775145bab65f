"""What `env.vectorization=auto` stands for, and why an environment is in no batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import ClipReward

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.vector import make_vector
from offpolicy.envs.vectorization import resolve_vectorization, slower_because, why_not_batched
from offpolicy.errors import ConfigError

WRAPPED = "WrappedHopper-v0"


@pytest.fixture
def wrapped() -> Any:
    """Hopper registered with a wrapper."""
    spec = dataclasses.replace(gymnasium.spec("Hopper-v5"), id=WRAPPED)
    spec.additional_wrappers = (ClipReward.wrapper_spec(min_reward=-1.0, max_reward=1.0),)
    gymnasium.registry[WRAPPED] = spec
    yield spec
    del gymnasium.registry[WRAPPED]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"id": "HalfCheetah-v5", "num_envs": 4}, "mujoco"),
        ({"id": "HalfCheetah-v5", "num_envs": 3}, "sync"),
        ({"id": "HalfCheetah-v5", "num_envs": 64, "vectorization": "sync"}, "sync"),
        ({"id": "HalfCheetah-v5", "num_envs": 4, "wrappers": ("mine:f",)}, "sync"),
        ({"id": "HalfCheetah-v4", "num_envs": 8}, "sync"),
        ({"id": "CartPole-v1", "num_envs": 8}, "sync"),  # it has a vector environment, which was not asked for
        ({"id": "offpolicy.envs.toy:PointMass-v0", "num_envs": 8}, "sync"),
        ({"id": "offpolicy.envs.hand:HandRotation-v1", "num_envs": 8}, "vector"),  # another package's has one
    ],
)
def test_four_or_more_of_gymnasiums_tasks_are_a_batch(env: dict[str, Any], expected: str) -> None:
    assert resolve_vectorization(EnvConfig(**env)).vectorization == expected


def test_a_module_of_the_users_is_not_imported_where_it_may_not_be() -> None:
    cfg = EnvConfig(id="no_such_module:Reach-v0", num_envs=8)
    assert resolve_vectorization(cfg, may_import=False) == cfg


def test_a_registration_with_wrappers_stays_as_it_is(wrapped: EnvSpec) -> None:
    cfg = EnvConfig(id=WRAPPED, num_envs=8)
    why = "WrappedHopper-v0 is registered with wrappers (ClipReward), which a batch does not have"
    assert resolve_vectorization(cfg).vectorization == "sync"
    assert slower_because(resolve_vectorization(cfg)) == why
    with pytest.raises(ConfigError) as caught:
        make_vector(dataclasses.replace(cfg, vectorization="mujoco"))
    assert str(caught.value) == f"env.vectorization: got mujoco, allowed sync or async: {why}"


def test_an_unknown_environment_is_no_task() -> None:
    assert why_not_batched(gymnasium.spec("Pendulum-v1")) == (
        "Pendulum-v1 has no vector environment, and is none of Gymnasium's MuJoCo v5 tasks"
    )
    with pytest.raises(ConfigError, match="unknown to Gymnasium"):
        resolve_vectorization(EnvConfig(id="NoSuchEnv-v0", num_envs=8))
