"""Makes environments that are stepped together, of the kind that the configuration names."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

import gymnasium

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.batch import Batch
from offpolicy.envs.batch_adapter import BatchAdapter
from offpolicy.envs.batches.gymnasium import RESET_MASK, GymnasiumBatch
from offpolicy.envs.env_adapter import EnvAdapter, VectorAdapter, codec_of
from offpolicy.envs.make import (
    NO_LIMIT,
    construction_problem,
    creator_of,
    find_spec,
    imported,
    make_env,
)
from offpolicy.envs.vectorization import is_batch, resolve_vectorization, why_not_batched
from offpolicy.envs.worker_pool import Workers
from offpolicy.errors import ConfigError

if TYPE_CHECKING:
    import torch


def make_vector(
    cfg: EnvConfig,
    num_envs: int | None = None,
    on_progress: Callable[[], object] = lambda: None,
    *,
    num_threads: int = 1,
    to: torch.device | None = None,
) -> VectorAdapter:
    """Returns `num_envs` (default: `cfg.num_envs`) environments, to be reset.

    `num_threads` step a batch that takes them. `on_progress` is called before each environment is constructed, reset or
    stepped with `env.vectorization=sync`; where they are one object, before the call that makes them all. A batch of
    tensors hands them over on the device `to`.
    Raises `ConfigError` for what the configuration can mend (id, kwargs, spaces), `EnvFailure` for what it cannot.
    """
    count = cfg.num_envs if num_envs is None else num_envs
    cfg = resolve_vectorization(dataclasses.replace(cfg, num_envs=count))
    if to is not None:
        from offpolicy.envs.device_adapter import DeviceAdapter

        return DeviceAdapter(cfg, count, on_progress, open_batch=lambda: open_batch(cfg, count, num_threads), to=to)
    if is_batch(cfg):
        return BatchAdapter(cfg, count, on_progress, open_batch=lambda: open_batch(cfg, count, num_threads))
    with contextlib.ExitStack() as undo:
        first = undo.enter_context(contextlib.closing(make_env(cfg)))
        codec = codec_of(first, cfg.action_bounds)
        if cfg.vectorization == "async":  # `first` served to learn the spaces and is closed on the way out
            return Workers(cfg, codec, count)
        undo.pop_all()
    return EnvAdapter(cfg, codec, count, on_progress, first=first)


def takes_a_seed_each(cfg: EnvConfig) -> bool:
    """True if the environments of an id's vector can be reset one by one, each with its own seed.

    A vector says so in the metadata of its class; a batch of Gymnasium's MuJoCo tasks always can.
    """
    creator = creator_of(find_spec(cfg.id).vector_entry_point)
    return creator is None or bool(getattr(creator, "metadata", {}).get(RESET_MASK, False))


def open_batch(cfg: EnvConfig, num_envs: int, num_threads: int = 1) -> Batch:
    """Returns the batch that the configuration names. Raises as `make_vector`."""
    if cfg.batch is not None:
        factory, kwargs = imported("env.batch", cfg.batch), dict(cfg.kwargs)
        if "num_threads" in inspect.signature(factory).parameters:
            kwargs.setdefault("num_threads", num_threads)
        try:
            batch: Batch = factory(num_envs=num_envs, **kwargs)
        except Exception as error:
            head = f"env.batch: got {cfg.batch!r}"
            raise construction_problem(head, cfg.batch, kwargs, {"num_envs": num_envs}, factory, error) from error
        return batch
    spec = find_spec(cfg.id)
    limit = cfg.kwargs.get("max_episode_steps") or spec.max_episode_steps
    limit = None if limit == -1 else limit  # an agreement of `gymnasium.make`, of which a vector knows nothing
    if spec.vector_entry_point is None:
        return _mujoco_tasks(cfg, num_envs, num_threads)
    kwargs = {key: value for key, value in cfg.kwargs.items() if (key, value) != ("max_episode_steps", None)}
    if kwargs.get("max_episode_steps") == -1:
        kwargs["max_episode_steps"] = NO_LIMIT
    try:
        env = gymnasium.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **kwargs)
        return GymnasiumBatch(env, limit)
    except Exception as error:
        head, what = f"env.id: got {cfg.id!r}", f"{num_envs} x {cfg.id} with env.vectorization={cfg.vectorization}"
        raise construction_problem(head, what, kwargs, spec.kwargs, spec.vector_entry_point, error) from error


def _mujoco_tasks(cfg: EnvConfig, num_envs: int, num_threads: int) -> GymnasiumBatch:
    """Returns one of Gymnasium's MuJoCo tasks as a batch. Raises `ConfigError` where it cannot be one."""
    if (why := why_not_batched(find_spec(cfg.id), cfg.kwargs)) is not None:
        raise ConfigError(f"env.vectorization: got {cfg.vectorization}, allowed sync or async: {why}")
    from offpolicy.envs.batched.vector import TaskVector  # it imports MuJoCo, which other environments do not need

    try:
        with contextlib.closing(make_env(cfg)) as first:
            return GymnasiumBatch(TaskVector(first, num_envs, num_threads), codec_of(first).spec.max_episode_steps)
    except ValueError as error:
        text = f"env.vectorization: got {cfg.vectorization}, allowed sync or async: {cfg.id}: {error}"
        raise ConfigError(text) from error
