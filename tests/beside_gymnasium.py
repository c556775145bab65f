"""A task as a batch beside Gymnasium's own environments: the same seeds and random actions, every number compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.batched.vector import TaskVector
from offpolicy.envs.make import make_env

SEEDS = (5, 77, 1234)
ASSETS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"


def cramped_hopper() -> str:
    """Returns Hopper's model with so little memory that MuJoCo raises an error at its first forward pass."""
    return (ASSETS / "hopper.xml").read_text().replace("<option", '<size memory="4K"/><option', 1)


@dataclass(frozen=True, slots=True)
class Seen:
    """How many episodes ended, and which infos there were."""

    terminated: int
    truncated: int
    infos: frozenset[str]


def batch(env_id: str, num_envs: int = 3, num_threads: int = 2, **kwargs: Any) -> TaskVector:
    """Returns the task as a batch; `kwargs` as `env.kwargs`."""
    return TaskVector(make_env(EnvConfig(id=env_id, kwargs=kwargs)), num_envs, num_threads)


def compare(env_id: str, steps: int, **kwargs: Any) -> Seen:
    """Steps three environments of both kinds `steps` times; every number must have the same bits."""
    vector = batch(env_id, len(SEEDS), **kwargs)
    sync = SyncVectorEnv([lambda: make_env(EnvConfig(id=env_id, kwargs=kwargs))] * len(SEEDS))
    rng, space = np.random.default_rng(1), vector.single_action_space
    assert isinstance(space, gymnasium.spaces.Box)
    seeds: Any = list(SEEDS)
    _same("reset", vector.reset(seed=seeds), sync.reset(seed=seeds))
    ended, names = np.zeros(2, int), set[str]()
    for step in range(steps):
        action = rng.uniform(space.low, space.high, (len(SEEDS), *space.shape)).astype(np.float32)
        ours, theirs = vector.step(action), sync.step(action)
        _same(f"step {step}", ours, theirs)
        ended += ours[2].sum(), ours[3].sum()
        names |= ours[4].keys()
    return Seen(*ended.tolist(), frozenset(name for name in names if not name.startswith("_")))


def _same(when: str, ours: Any, theirs: Any) -> None:
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if isinstance(other, dict):
            for name in other.keys() - {f"_{name}" for name in other}:
                where = other[f"_{name}"]  # [N] the environments that say it
                np.testing.assert_array_equal(one[name][where], other[name][where], f"{when}: {name}")
        else:
            assert one.shape == other.shape, when
            np.testing.assert_array_equal(one, other, f"{when}: result {number}")
