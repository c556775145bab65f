"""Makes environments that are stepped together, of the kind that `env.vectorization` names; and those in one batch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.env_adapter import SUCCESS_NAMES, EnvAdapter, VectorAdapter, close_env, codec_of, measured
from offpolicy.envs.make import (
    NO_LIMIT,
    Env,
    cause_of,
    construction_problem,
    creator_of,
    failure_text,
    find_spec,
    make_env,
)
from offpolicy.envs.pool import Pool
from offpolicy.envs.spaces import Codec, as_array, describe, env_actions, flatten
from offpolicy.envs.vectorization import TOGETHER, resolve_vectorization, why_not_batched
from offpolicy.envs.worker_pool import Workers
from offpolicy.errors import ConfigError, EnvFailure
from offpolicy.types import Bool, Float32, StepOutcome

RESET_MASK = "reset_mask"  # option of a vector's reset, and a claim in its metadata that it takes the option


def make_vector(
    cfg: EnvConfig,
    num_envs: int | None = None,
    on_progress: Callable[[], object] = lambda: None,
    *,
    num_threads: int = 1,
) -> VectorAdapter:
    """Returns `num_envs` (default: `cfg.num_envs`) environments, to be reset.

    `num_threads` step EnvPool's environments, and Gymnasium's MuJoCo tasks with `env.vectorization=mujoco`.
    `on_progress` is called before each of them is constructed, reset or stepped, with `env.vectorization=sync`; with
    `mujoco` and `envpool` before the one call that makes them all.
    Raises `ConfigError` for what the configuration can mend (id, kwargs, spaces), `EnvFailure` for what it cannot.
    """
    count = cfg.num_envs if num_envs is None else num_envs
    cfg = resolve_vectorization(dataclasses.replace(cfg, num_envs=count))
    with contextlib.ExitStack() as undo:
        first = undo.enter_context(contextlib.closing(make_env(cfg)))
        codec = codec_of(first)
        if cfg.vectorization == "async":  # `first` served to learn the spaces and is closed on the way out
            return Workers(cfg, codec, count)
        if cfg.vectorization in TOGETHER:
            return NativeVector(cfg, codec, count, on_progress, first=first, num_threads=num_threads)
        undo.pop_all()
    return EnvAdapter(cfg, codec, count, on_progress, first=first)


def takes_a_seed_each(cfg: EnvConfig) -> bool:
    """True if the environments of `env.vectorization=mujoco` can be reset one by one, each with its own seed.

    A vector says so in the metadata of its class; a batch of Gymnasium's MuJoCo tasks always can.
    """
    creator = creator_of(find_spec(cfg.id).vector_entry_point)
    return creator is None or bool(getattr(creator, "metadata", {}).get(RESET_MASK, False))


class NativeVector(VectorAdapter):
    """Environments of `cfg.id` that are one object, all stepped by one call.

    It is EnvPool's with `env.vectorization=envpool`; else Gymnasium's `vector_entry_point`, or for Gymnasium's MuJoCo
    tasks a batch of the simulations of `first`, one such environment that has not been reset. Raises `ConfigError`
    where there is none or it resets in another way than NEXT_STEP, and `EnvFailure` for what its constructor raises.
    """

    def __init__(  # noqa: PLR0913  # as the other kinds, and threads
        self,
        cfg: EnvConfig,
        codec: Codec,
        num_envs: int,
        on_progress: Callable[[], object] = lambda: None,
        *,
        first: Env,
        num_threads: int = 1,
    ) -> None:
        super().__init__(cfg, codec, num_envs, on_progress)
        self._num_threads = num_threads
        self._open(first)

    def _open(self, first: Env) -> None:
        self.on_progress()
        self.env = _make_native(self.cfg, self.num_envs, first, self._num_threads)
        self.can_reset_some = bool(self.env.metadata.get(RESET_MASK, False))
        space, actions = self.env.single_observation_space, self.env.single_action_space
        own = describe(space, actions, self.spec.max_episode_steps)
        if own != self.codec:
            raise EnvFailure(f"the vector of {self.cfg.id} has other spaces: expected {self.spec}, got {own.spec}")

    def renew(self) -> None:
        """Replaces the environments by new ones of the same configuration, to be reset. Raises as `make_vector`."""
        self.close()
        with contextlib.closing(make_env(self.cfg)) as first:
            self._open(first)

    def begin(self, seeds: Sequence[int], where: Bool) -> Float32:
        """Starts an episode with its seed `where` [N]. Returns obs [N, O] of all.

        Vectors that do not claim to reset some take one number, as Gymnasium's own do: the first of the seeds.
        """
        given: Any = list(seeds) if self.can_reset_some else seeds[0]  # Any: Gymnasium's type lacks the list
        try:
            obs, _ = self.env.reset(seed=given, options={RESET_MASK: where.copy()} if self.can_reset_some else None)
            self.was_done = self.was_done & ~where
            return self._flat(obs)
        except EnvFailure:  # it names the environment itself
            raise
        except Exception as error:
            raise self._failure("reset", error) from error

    def step(self, action: Float32) -> StepOutcome:
        """One vector step. action: [N, A] in [-1, 1], or the numbers of discrete ones; clipped to the bounds."""
        try:
            result = self.env.step(env_actions(self.codec, self.to_env(action)))
            obs, reward = self._flat(result[0]), self._of_each("reward", result[1], np.float64)
            terminated = self._of_each("terminated", result[2], np.bool_)
            truncated = self._of_each("truncated", result[3], np.bool_)
            is_valid, self.was_done = ~self.was_done, terminated | truncated
            success = self._measured(result[4], SUCCESS_NAMES)
            measure = self._measured(result[4], (self.cfg.measure,))
            return StepOutcome(obs, reward, terminated, truncated, is_valid, success, measure)
        except EnvFailure:  # it names the environment itself
            raise
        except Exception as error:
            raise self._failure("step", error) from error

    def _flat(self, obs: Any) -> Float32:
        flat = np.empty((self.num_envs, self.spec.obs_dim), np.float32)
        try:
            flatten(self.codec, obs, flat)
        except EnvFailure as error:
            raise EnvFailure(f"{self.num_envs} x {self.cfg.id}: {error}") from None
        return flat

    def _of_each(self, name: str, values: Any, dtype: type[np.generic]) -> NDArray[Any]:
        """Returns a copy of the numbers [N]. Raises `EnvFailure` for another shape, and for what is no number."""
        array = np.asarray(values)
        if array.shape != (self.num_envs,) or array.dtype.kind not in "fiub":
            got = f"{name} has shape {array.shape} and type {array.dtype}"
            raise EnvFailure(f"{self.num_envs} x {self.cfg.id}: {got}, expected numbers of shape ({self.num_envs},)")
        return array.astype(dtype)

    def _measured(self, info: dict[str, Any], names: tuple[str | None, ...]) -> Float32:
        """Returns what the first of the names that is there says of each episode that has ended, else NaN. [N]."""
        found: Float32 = np.full(self.num_envs, np.nan, np.float32)
        name = next((name for name in names if name in info), None)
        values = as_array(None if name is None else info[name]).reshape(-1)
        if values.size == self.num_envs:  # a number for each
            for env in np.flatnonzero(self.was_done & info.get(f"_{name}", True)):
                found[env] = measured(values[env])
        return found

    def close(self) -> None:
        """Closes the environments."""
        close_env(self.env, f"{self.num_envs} x {self.cfg.id}")

    def _failure(self, call: str, error: Exception) -> EnvFailure:
        return EnvFailure(f"{self.num_envs} x {self.cfg.id} failed in {call}: {cause_of(error)}\n{failure_text(error)}")


def _make_native(cfg: EnvConfig, num_envs: int, first: Env, num_threads: int) -> VectorEnv[Any, Any, Any]:
    if cfg.vectorization == "envpool":
        return Pool(first, num_envs, num_threads, cfg.kwargs)
    spec = find_spec(cfg.id)
    if spec.vector_entry_point is None:
        return _make_batched(cfg, num_envs, first, num_threads)
    kwargs = {key: value for key, value in cfg.kwargs.items() if (key, value) != ("max_episode_steps", None)}
    if kwargs.get("max_episode_steps") == -1:  # an agreement of `gymnasium.make`, of which a vector knows nothing
        kwargs["max_episode_steps"] = NO_LIMIT
    try:
        env = gymnasium.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **kwargs)
    except ConfigError:
        raise
    except Exception as error:
        what = f"{num_envs} x {cfg.id} with env.vectorization=mujoco"
        raise construction_problem(what, kwargs, spec, spec.vector_entry_point, error) from error
    if env.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
        env.close()
        mode = env.metadata.get("autoreset_mode")
        raise ConfigError(f"env.vectorization=mujoco: {cfg.id} resets by {mode}, allowed NEXT_STEP")
    return env


def _make_batched(cfg: EnvConfig, num_envs: int, first: Env, num_threads: int) -> VectorEnv[Any, Any, Any]:
    """Returns one of Gymnasium's MuJoCo tasks as a batch. Raises `ConfigError` where it cannot be one."""
    if (why := why_not_batched(find_spec(cfg.id), cfg.kwargs)) is not None:
        raise ConfigError(f"env.vectorization: got mujoco, allowed sync or async: {why}")
    from offpolicy.envs.batched.vector import TaskVector  # it imports MuJoCo, which other environments do not need

    try:
        return TaskVector(first, num_envs, num_threads)
    except ValueError as error:
        raise ConfigError(f"env.vectorization: got mujoco, allowed sync or async: {cfg.id}: {error}") from error
