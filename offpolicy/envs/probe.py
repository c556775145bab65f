"""A look at an environment before anything starts, in a short-lived process that may crash or hang."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import Any

import numpy as np

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.env_adapter import EnvAdapter, VectorAdapter, codec_of
from offpolicy.envs.make import find_spec, make_env
from offpolicy.envs.vector import NativeVector
from offpolicy.envs.vectorization import TOGETHER, resolve_vectorization
from offpolicy.envs.worker_pool import OPEN_GRACE_S
from offpolicy.errors import EnvFailure, HangError
from offpolicy.processes.children import module_path
from offpolicy.processes.fork_server import ChildError, ChildTimeout, ForkServer, call_in_child
from offpolicy.types import SpaceSpec


def check_id(env_id: str) -> None:
    """Refuses an id that Gymnasium does not know, in this process and without constructing anything.

    `module:EnvId` is left to `probe`, which imports the module. Raises `ConfigError` with the closest ids.
    """
    if ":" not in env_id:
        find_spec(env_id)


def probe(cfg: EnvConfig, server: ForkServer | None = None) -> SpaceSpec:
    """Returns the spaces of `cfg`'s environment, after one construction, reset and step in another process.

    That process is a fork of `server`, or a fresh interpreter. Raises `ConfigError` (unknown id, wrong kwargs,
    unsupported spaces), `EnvFailure` (the environment raised or its process died) or `HangError` (no answer within
    `cfg.step_timeout_s` and the time to import it).
    """
    check_id(cfg.id)
    request, timeout_s = {"env": dataclasses.asdict(cfg), "sys_path": module_path()}, cfg.step_timeout_s + OPEN_GRACE_S
    try:
        found = call_in_child("offpolicy.envs.probe:try_out", request, timeout_s=timeout_s, server=server)
    except ChildTimeout as error:
        raise HangError(f"{cfg.id} was not created, reset and stepped once within {timeout_s:g} s") from error
    except ChildError as error:
        raise EnvFailure(f"{cfg.id}: the process that tried it {error.reason}\n{error.output}") from error
    return SpaceSpec.from_json(found)


def try_out(request: dict[str, Any]) -> dict[str, Any]:  # Any: JSON values
    """Runs in the child: constructs, resets and steps the environment once; returns its spaces."""
    sys.path += [entry for entry in request["sys_path"] if entry not in sys.path]
    cfg = resolve_vectorization(EnvConfig(**request["env"]))
    env = make_env(cfg)
    codec = codec_of(env)
    tried: list[VectorAdapter] = [NativeVector(cfg, codec, 1, first=env)] if cfg.vectorization in TOGETHER else []
    tried.append(EnvAdapter(cfg, codec, 1, first=env))
    for vector in tried:
        with contextlib.closing(vector):
            vector.reset(0)
            vector.step(np.zeros((1, codec.spec.action_dim), np.float32))
    draws = "rgb_array" in ((env.metadata or {}).get("render_modes") or ())
    return dataclasses.asdict(dataclasses.replace(codec.spec, draws=draws))
