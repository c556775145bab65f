"""Environments stepped together: Gymnasium's vector environments behind one contract.

Actions come in [-1, 1] and are mapped to the environment's bounds here; observations are float32 [N, O]; rewards
stay float64. Autoreset is Gymnasium's NEXT_STEP: the row that ends an episode carries its true final observation, and
the next row of that environment is a reset row (`is_valid` False, action ignored, reward 0).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.env_adapter import (
    FAILURE_KEY,
    MEASURE_KEY,
    SUCCESS_KEY,
    SUCCESS_NAMES,
    EnvAdapter,
    as_array,
    codec_of,
)
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
from offpolicy.envs.spaces import Codec, action_map, describe
from offpolicy.envs.vectorization import TOGETHER, resolve_vectorization, task_of, why_not_batched
from offpolicy.envs.worker_pool import Workers
from offpolicy.errors import ConfigError, EnvFailure
from offpolicy.types import Bool, Float32, Float64, SpaceSpec, StepOutcome

RESET_MASK = "reset_mask"  # option of a vector's reset, and a claim in its metadata that it takes the option

_LOG = logging.getLogger(__name__)


class Stepper(Protocol):
    """A vector environment as Gymnasium has them; it may reuse the observation array that it returns."""

    def reset(self, *, seed: list[int | None], options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]: ...

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]: ...

    def close(self) -> None: ...


class VectorAdapter:
    """`num_envs` environments. Every array that it returns is the caller's to keep.

    `reset` and `step` raise `EnvFailure` with the environment's own traceback, index, seed and step; with
    `env.vectorization=async` also when a worker dies, and `HangError` when one is silent for `env.step_timeout_s`.
    After a failure only `close` may be called.
    """

    def __init__(
        self,
        cfg: EnvConfig,
        codec: Codec,
        num_envs: int,
        stepper: Stepper,
        *,
        num_threads: int = 1,
        on_progress: Callable[[], object] | None = None,
    ) -> None:
        self.cfg = cfg
        self.num_threads, self._on_progress = num_threads, on_progress
        self.spec: SpaceSpec = codec.spec
        self.num_envs = num_envs
        self.stepper = stepper
        self.was_done: Bool = np.zeros(num_envs, np.bool_)  # [N] the previous row ended an episode
        self.can_reset_some = isinstance(stepper, SyncVectorEnv) or (
            isinstance(stepper, NativeVector) and stepper.can_reset_some
        )  # `reset_some` is possible
        self._action_map = action_map(codec)
        self._unknown: Float32 = np.full(num_envs, np.nan, np.float32)
        self._unknown.flags.writeable = False

    def reset(self, seed: int) -> Float32:
        """Starts an episode everywhere; environment i gets seed number i of `seed`. Returns obs [N, O]."""
        obs, infos = self.stepper.reset(seed=list(env_seeds(seed, self.num_envs)))
        _raise_failures(infos)
        self.was_done = np.zeros(self.num_envs, np.bool_)
        return np.array(obs)

    def reset_some(self, seed: int, numbers: Sequence[int], where: Bool) -> Float32:
        """Starts an episode only `where` [N]; environment i gets the seed number `numbers[i]` of `seed`.

        The others stay as they are. Returns obs [N, O] of all. Only if `can_reset_some`.
        """
        seeds: list[int | None] = [env_seeds(seed, 1, number)[0] for number in numbers]
        obs, infos = self.stepper.reset(seed=seeds, options={RESET_MASK: where.copy()})
        _raise_failures(infos)
        self.was_done = self.was_done & ~where
        return np.array(obs)

    def step(self, action: Float32) -> StepOutcome:
        """One vector step. action: [N, A] in [-1, 1], or the numbers of discrete ones; clipped to the bounds."""
        obs, reward, terminated, truncated, infos = self.stepper.step(self._action_map(action))
        _raise_failures(infos)
        success = self._at_episode_ends(infos, SUCCESS_KEY)
        measure = self._at_episode_ends(infos, MEASURE_KEY)
        is_valid = ~self.was_done
        self.was_done = terminated | truncated
        return StepOutcome(obs.copy(), reward, terminated, truncated, is_valid, success, measure)

    def _at_episode_ends(self, infos: dict[str, Any], key: str) -> Float32:
        """Returns a number of each episode that has ended, NaN where there is none that is finite. [N]."""
        if key not in infos:
            return self._unknown
        with np.errstate(over="ignore"):
            numbers: Float32 = np.where(infos[f"_{key}"], infos[key], self._unknown).astype(np.float32)
        return np.where(np.isfinite(numbers), numbers, self._unknown)

    def renew(self) -> None:
        """Replaces the environments by new ones of the same configuration, to be reset. Raises as `make_vector`."""
        self.stepper.close()
        self.stepper = make_vector(self.cfg, self.num_envs, self._on_progress, num_threads=self.num_threads).stepper
        self.was_done = np.zeros(self.num_envs, np.bool_)

    def close(self) -> None:
        """Closes every environment and ends every worker; safe after a failure."""
        self.stepper.close()


def make_vector(
    cfg: EnvConfig,
    num_envs: int | None = None,
    on_progress: Callable[[], object] | None = None,
    *,
    num_threads: int = 1,
) -> VectorAdapter:
    """Returns `num_envs` (default: `cfg.num_envs`) environments, each constructed and checked.

    `num_threads` step EnvPool's environments, and Gymnasium's MuJoCo tasks with `env.vectorization=mujoco`; others
    choose their own.
    With `env.vectorization=sync`, `on_progress` is called before each of them is constructed, reset or stepped: one
    after another, they may take long together; with `mujoco` and `envpool`, before the one call that makes them all.

    Raises `ConfigError` for what the configuration can mend (id, kwargs, spaces), `EnvFailure` for what it cannot.
    """
    count = cfg.num_envs if num_envs is None else num_envs
    cfg = resolve_vectorization(dataclasses.replace(cfg, num_envs=count))
    with contextlib.ExitStack() as undo:
        first = undo.enter_context(contextlib.closing(make_env(cfg)))
        codec = codec_of(first)
        if cfg.vectorization == "async":  # `first` served to learn the spaces and is closed on the way out
            return VectorAdapter(cfg, codec, count, Workers(cfg, count, codec))
        if cfg.vectorization in TOGETHER:
            if on_progress is not None:
                on_progress()
            native = NativeVector(cfg, codec, count, first, num_threads)
            return VectorAdapter(cfg, codec, count, native, num_threads=num_threads, on_progress=on_progress)
        envs = [EnvAdapter(cfg, index, count, codec, None if index else first, on_progress) for index in range(count)]
        for env in envs[1:]:
            undo.callback(env.close)
        stepper = SyncVectorEnv([env.opened for env in envs], copy=False)
        vector = VectorAdapter(cfg, codec, count, stepper, on_progress=on_progress)
        undo.pop_all()
    return vector


def env_seeds(seed: int, num_envs: int, first: int = 0) -> tuple[int, ...]:
    """Returns the seeds from number `first` on: distinct, below 2**31, and far from those of a neighbouring `seed`."""
    base = int(np.random.SeedSequence(seed).generate_state(1)[0]) % 2**30
    return tuple(base + first + index for index in range(num_envs))


def takes_a_seed_each(cfg: EnvConfig) -> bool:
    """True if the environments of `env.vectorization=mujoco` can be reset one by one, each with a seed of its own.

    A vector says so in the metadata of its class; a batch of Gymnasium's MuJoCo tasks always can.
    """
    creator = creator_of(find_spec(cfg.id).vector_entry_point)
    return creator is None or bool(getattr(creator, "metadata", {}).get(RESET_MASK, False))


def _raise_failures(infos: dict[str, Any]) -> None:
    if FAILURE_KEY not in infos:
        return
    failed = np.flatnonzero(infos[f"_{FAILURE_KEY}"]).tolist()
    head, newline, rest = infos[FAILURE_KEY][failed[0]].partition("\n")
    also = f"\n(so did envs {failed[1:]} in the same step)" if failed[1:] else ""
    raise EnvFailure(f"{head}{also}{newline}{rest}")


@runtime_checkable
class Stateful(Protocol):
    """A vector environment whose state can be taken and given back, exactly."""

    def observe(self) -> Any: ...

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...


class NativeVector:
    """`num_envs` environments of `cfg.id` in one, all stepped by one call.

    It is EnvPool's with `env.vectorization=envpool`; else Gymnasium's `vector_entry_point`, or for Gymnasium's MuJoCo
    tasks a batch of the simulations of `first`, one such environment that has not been reset. Raises `ConfigError` if
    the environment has none of them or resets in another way than NEXT_STEP, and `EnvFailure` for what its constructor
    raises.
    """

    def __init__(self, cfg: EnvConfig, codec: Codec, num_envs: int, first: Env, num_threads: int = 1) -> None:
        self._cfg, self._codec, self._num_envs = cfg, codec, num_envs
        self.env = _make_native(cfg, num_envs, first, num_threads)
        self.can_reset_some = bool(self.env.metadata.get(RESET_MASK, False))
        space, actions = self.env.single_observation_space, self.env.single_action_space
        own = describe(space, actions, codec.spec.max_episode_steps)
        if own != codec:
            raise EnvFailure(f"the vector of {cfg.id} has other spaces: expected {codec.spec}, got {own.spec}")

    def reset(self, *, seed: list[int | None], options: dict[str, Any] | None = None) -> tuple[Float32, dict[str, Any]]:
        """Returns obs [N, O], first ones except where `options["reset_mask"]` is False; one seed per environment.

        Vectors that do not claim the option take one number, as Gymnasium's own do: the first of the seeds.
        """
        given: Any = seed if self.can_reset_some else seed[0]  # Any: Gymnasium's type lacks the list
        try:
            obs, _ = self.env.reset(seed=given, options=options)
            return self.flatten(obs), {}
        except EnvFailure:  # it names the environment itself
            raise
        except Exception as error:
            raise self._failure("reset", error) from error

    def step(self, actions: NDArray[Any]) -> tuple[Float32, Float64, Bool, Bool, dict[str, Any]]:
        """One vector step; actions: [N, A]."""
        try:
            obs, reward, terminated, truncated, info = self.env.step(self._codec.env_actions(actions))
            is_terminated = self._of_each("terminated", terminated, np.bool_)
            is_truncated = self._of_each("truncated", truncated, np.bool_)
            done = is_terminated | is_truncated
            measured = self._measured(info, done) if info and done.any() else {}
            rewards = self._of_each("reward", reward, np.float64)
            return self.flatten(obs), rewards, is_terminated, is_truncated, measured
        except EnvFailure:  # it names the environment itself
            raise
        except Exception as error:
            raise self._failure("step", error) from error

    def _of_each(self, name: str, values: Any, dtype: type[np.generic]) -> NDArray[Any]:
        """Returns a copy of the numbers [N]. Raises `EnvFailure` for another shape, and for what is no number."""
        array = np.asarray(values)
        if array.shape != (self._num_envs,) or array.dtype.kind not in "fiub":
            got = f"{name} has shape {array.shape} and type {array.dtype}"
            raise EnvFailure(f"{self._num_envs} x {self._cfg.id}: {got}, expected numbers of shape ({self._num_envs},)")
        return array.astype(dtype)

    def _measured(self, info: dict[str, Any], done: Bool) -> dict[str, Any]:
        """Returns success, and what `env.measure` names, of the environments that are `done` [N]."""
        found: dict[str, Any] = {}
        named = {SUCCESS_KEY: SUCCESS_NAMES, MEASURE_KEY: (self._cfg.measure,) if self._cfg.measure else ()}
        for key, names in named.items():
            name = next((name for name in names if name in info), None)
            values = as_array(None if name is None else info[name])
            if values.size == self._num_envs and values.dtype.kind in "fiub":  # a number for each
                found |= {key: values.reshape(-1), f"_{key}": done & info.get(f"_{name}", True)}
        return found

    def close(self) -> None:
        """Closes the environment. What it raises is logged: its work is done."""
        try:
            self.env.close()
        except (Exception, SystemExit) as error:
            _LOG.warning("%d x %s failed in close\n%s", self._num_envs, self._cfg.id, failure_text(error))

    def flatten(self, obs: Any) -> Float32:
        """Returns observations of the environment as vectors [N, O]."""
        flat = np.empty((self._num_envs, self._codec.spec.obs_dim), np.float32)
        for leaf in self._codec.leaves:
            part = obs
            for key in leaf.path:
                part = part[key]
            if np.shape(part) != (self._num_envs, *leaf.shape):
                what = f"observation {leaf.name}".rstrip()
                shape = f"{np.shape(part)}, expected {(self._num_envs, *leaf.shape)}"
                raise EnvFailure(f"{self._num_envs} x {self._cfg.id}: {what} has shape {shape}")
            flat[:, leaf.start : leaf.stop] = np.reshape(part, (self._num_envs, -1))
        return flat

    def _failure(self, call: str, error: Exception) -> EnvFailure:
        return EnvFailure(
            f"{self._num_envs} x {self._cfg.id} failed in {call}: {cause_of(error)}\n{failure_text(error)}"
        )


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
    spec = find_spec(cfg.id)
    if (why := why_not_batched(spec, cfg.kwargs)) is not None:
        raise ConfigError(f"env.vectorization: got mujoco, allowed sync or async: {why}")
    from offpolicy.envs.batched.vector import TaskVector  # it imports MuJoCo, which other environments do not need

    cls = creator_of(task_of(spec))
    kwargs = {key: value for key, value in cfg.kwargs.items() if key != "max_episode_steps"}
    try:
        return TaskVector(cls, first, num_envs, num_threads, kwargs)
    except ValueError as error:
        raise ConfigError(f"env.vectorization: got mujoco, allowed sync or async: {cfg.id}: {error}") from error
