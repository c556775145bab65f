"""Environments stepped together: Gymnasium's vector environments behind one contract.

Actions come in [-1, 1] and are mapped to the environment's bounds here; observations leave as float32 [N, O]; rewards
stay float64. Autoreset is Gymnasium's NEXT_STEP: the row that ends an episode carries its true final observation, and
the next row of that environment is a reset row (`is_valid` False, action ignored, reward 0).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import SyncVectorEnv

from offpolicy.config.schema import EnvConfig
from offpolicy.envs.batched import NativeVector
from offpolicy.envs.env_adapter import FAILURE_KEY, MEASURE_KEY, SUCCESS_KEY, EnvAdapter, EnvFactory, codec_of, nobody
from offpolicy.envs.make import make_env
from offpolicy.envs.spaces import Codec, action_map
from offpolicy.envs.worker_pool import Workers
from offpolicy.errors import EnvFailure
from offpolicy.types import Bool, Float32, SpaceSpec, StepOutcome


class Stepper(Protocol):
    """What the adapter needs of a vector environment of doors, without copies: it may reuse the observation array."""

    def reset(self, *, seed: list[int | None], options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]: ...

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]: ...

    def close(self) -> None: ...


class VectorAdapter:
    """`num_envs` environments. Every array that it returns is the caller's to keep.

    `reset` and `step` raise `EnvFailure` with the environment's own traceback, index, seed and step; with
    `env.vectorization=async` also when a worker dies, and `HangError` when one is silent for `env.step_timeout_s`.
    After a failure only `close` may be called.
    """

    def __init__(self, cfg: EnvConfig, codec: Codec, num_envs: int, stepper: Stepper) -> None:
        self.cfg = cfg
        self.spec: SpaceSpec = codec.spec
        self.num_envs = num_envs
        self.stepper = stepper
        self.was_done: Bool = np.zeros(num_envs, np.bool_)  # [N] the previous row ended an episode
        self.begins_singly = isinstance(stepper, SyncVectorEnv) or (
            isinstance(stepper, NativeVector) and stepper.begins_singly
        )  # whether `begin` is possible
        self._action_map = action_map(codec)
        self._untold: Float32 = np.full(num_envs, np.nan, np.float32)
        self._untold.flags.writeable = False

    def reset(self, seed: int, first: int = 0) -> Float32:
        """Start an episode everywhere; environment i gets the seed number `first + i` of `seed`. Returns obs [N, O]."""
        obs, infos = self.stepper.reset(seed=list(env_seeds(seed, self.num_envs, first)))
        _raise_failures(infos)
        self.was_done = np.zeros(self.num_envs, np.bool_)
        return np.array(obs)

    def begin(self, seed: int, numbers: Sequence[int], where: Bool) -> Float32:
        """Start an episode only `where` [N]; environment i gets the seed number `numbers[i]` of `seed`.

        The others stay as they are. Returns obs [N, O] of all. Only where `begins_singly`.
        """
        seeds: list[int | None] = [env_seeds(seed, 1, number)[0] for number in numbers]
        obs, infos = self.stepper.reset(seed=seeds, options={"reset_mask": where.copy()})
        _raise_failures(infos)
        self.was_done = self.was_done & ~where
        return np.array(obs)

    def step(self, action: Float32) -> StepOutcome:
        """One vector step. action: [N, A] in [-1, 1], or the numbers of discrete ones; clipped to the bounds."""
        obs, reward, terminated, truncated, infos = self.stepper.step(self._action_map.apply(action))
        _raise_failures(infos)
        success = self._told(infos, SUCCESS_KEY)
        measure = self._told(infos, MEASURE_KEY)
        is_valid = ~self.was_done
        self.was_done = terminated | truncated
        return StepOutcome(obs.copy(), reward, terminated, truncated, is_valid, success, measure)

    def _told(self, infos: dict[str, Any], key: str) -> Float32:
        """A number of each episode that has ended, NaN where it is not told. [N]."""
        if key not in infos:
            return self._untold
        return np.where(infos[f"_{key}"], infos[key], self._untold).astype(np.float32)

    def close(self) -> None:
        """Close every environment and end every worker; safe after a failure."""
        self.stepper.close()


def make_vector(cfg: EnvConfig, num_envs: int | None = None, on_turn: Callable[[], object] = nobody) -> VectorAdapter:
    """The environments of a collector (`cfg.num_envs` unless told otherwise), each constructed and checked.

    With `env.vectorization=sync`, `on_turn` is called before each of them is constructed or reset: one after another,
    they may take long together; with `mujoco`, before the one call that makes them all.

    Raises `ConfigError` for what the configuration can mend (id, kwargs, spaces), `EnvFailure` for what it cannot.
    """
    count = cfg.num_envs if num_envs is None else num_envs
    with contextlib.ExitStack() as undo:
        first = undo.enter_context(contextlib.closing(make_env(cfg)))
        codec = codec_of(first)
        if cfg.vectorization == "async":  # `first` has told its spaces and is closed on the way out
            factories = [EnvFactory(cfg, index, count, codec, os.getpid()) for index in range(count)]
            return VectorAdapter(cfg, codec, count, Workers(factories, cfg.step_timeout_s))
        if cfg.vectorization == "mujoco":
            on_turn()
            return VectorAdapter(cfg, codec, count, NativeVector(cfg, codec, count))
        doors = [EnvAdapter(cfg, index, count, codec, first if index == 0 else None, on_turn) for index in range(count)]
        for door in doors[1:]:
            undo.callback(door.close)
        adapter = VectorAdapter(cfg, codec, count, SyncVectorEnv([door.opened for door in doors], copy=False))
        undo.pop_all()
    return adapter


def env_seeds(seed: int, num_envs: int, first: int = 0) -> tuple[int, ...]:
    """The seeds number `first` and on: distinct, below 2**31, and far from those of a neighbouring `seed`."""
    base = int(np.random.SeedSequence(seed).generate_state(1)[0]) % 2**30
    return tuple(base + first + index for index in range(num_envs))


def _raise_failures(infos: dict[str, Any]) -> None:
    if FAILURE_KEY not in infos:
        return
    failed = np.flatnonzero(infos[f"_{FAILURE_KEY}"]).tolist()
    also = f"(so did envs {failed[1:]} in the same step)\n" if failed[1:] else ""
    raise EnvFailure(also + infos[FAILURE_KEY][failed[0]])
