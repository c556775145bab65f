"""The exact state of environments, for a resume that continues bit for bit.

What is captured, per environment and per layer (each wrapper, then the environment itself): everything in its
`__dict__` that is plain (see `plain.py`), MuJoCo data, and its random generator; or, where a layer offers
`get_state()` and `set_state(state)`, what that returns, plus the generator. Code, spaces and renderers are taken to be
what the constructor makes them. What cannot be seen is state kept outside the object, such as Python's global `random`.
"""

from __future__ import annotations

import json
import pathlib
import types
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

from offpolicy.envs import mujoco_state
from offpolicy.envs.batched import NativeVector, Stateful
from offpolicy.envs.env_adapter import EnvAdapter, digest_of
from offpolicy.envs.make import Env
from offpolicy.envs.plain import JSON, Decoder, Encoder, NotPlainError
from offpolicy.envs.vector import VectorAdapter
from offpolicy.errors import CheckpointError
from offpolicy.types import Float32

# Set by the constructor or by Gymnasium, and not part of what an episode changes.
_CONSTANT_NAMES = {
    "env",
    "metadata",
    "_metadata",
    "spec",
    "_cached_spec",
    "_saved_kwargs",
    "_ezpickle_args",
    "_ezpickle_kwargs",
}
_CONSTANT_TYPES = (
    type,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.ModuleType,
    np.dtype,
    np.ufunc,
    EnvSpec,
    pathlib.PurePath,
)
_RENDERERS = "gymnasium.envs.mujoco.mujoco_rendering"
_GENERATOR_NAMES = ("_np_random", "_np_random_seed")


@dataclass(frozen=True, slots=True)
class EnvState:
    """Plain data: `meta` survives JSON, `arrays` any array file (C order, dtypes b, i, u, f of at most 8 bytes)."""

    meta: dict[str, JSON]
    arrays: dict[str, NDArray[Any]]


def save_state(adapter: VectorAdapter) -> EnvState | None:
    """The state between two steps, or None where it cannot be exact; `why_not_exact` says why."""
    try:
        return _capture(adapter)
    except NotPlainError:
        return None


def why_not_exact(adapter: VectorAdapter) -> str | None:
    """Why `save_state` gives None, in words; None if it does not."""
    try:
        _capture(adapter)
    except NotPlainError as reason:
        return str(reason)
    return None


def restore_state(adapter: VectorAdapter, state: EnvState) -> Float32:
    """Continue from `state` in environments made by the same configuration. Returns the current obs [N, O].

    Raises `CheckpointError` if the state does not fit, and leaves the adapter to be reset or closed then.
    """
    try:
        _check_fit(adapter, state.meta)
        if isinstance(adapter.stepper, NativeVector):
            return _restore_native(adapter, adapter.stepper, state)
        vec = _sync_vector(adapter)
        for index, door in enumerate(_doors(vec)):
            _restore_door(door, state, index)
        return _restore_vector(adapter, vec, state)
    except (NotPlainError, KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise CheckpointError(f"the environments' state does not fit {adapter.cfg.id}: {error}") from error


def _capture(adapter: VectorAdapter) -> EnvState:
    if isinstance(adapter.stepper, NativeVector):
        return _capture_native(adapter, adapter.stepper)
    vec = _sync_vector(adapter)
    arrays: dict[str, NDArray[Any]] = {
        "vector/obs": np.array(vec._observations),
        "vector/was_done": adapter.was_done.copy(),
    }
    envs = []
    for index, door in enumerate(_doors(vec)):
        encoder = Encoder(f"env{index}/")
        envs.append(_capture_door(door, encoder))
        arrays |= encoder.arrays
    return EnvState({**_identity(adapter), "envs": envs}, arrays)


def _capture_native(adapter: VectorAdapter, vec: NativeVector) -> EnvState:
    encoder = Encoder("native/")
    own = encoder.encode(_stateful(vec).get_state(), f"{adapter.cfg.id}.get_state()")
    encoder.arrays["vector/was_done"] = adapter.was_done.copy()
    return EnvState({**_identity(adapter), "native": own}, encoder.arrays)


def _restore_native(adapter: VectorAdapter, vec: NativeVector, state: EnvState) -> Float32:
    env = _stateful(vec)
    env.set_state(Decoder(state.arrays).decode(state.meta["native"]))
    adapter.was_done = np.array(state.arrays["vector/was_done"])
    return vec.flat(env.observe())


def _stateful(vec: NativeVector) -> Stateful:
    if not isinstance(vec.env, Stateful):
        raise NotPlainError(f"{type(vec.env).__name__} has no get_state and set_state")
    return vec.env


def _sync_vector(adapter: VectorAdapter) -> SyncVectorEnv[Any, Any]:
    if not isinstance(adapter.stepper, SyncVectorEnv):
        raise NotPlainError("env.vectorization=async keeps the environments in other processes; use sync")
    return adapter.stepper


def _doors(vec: SyncVectorEnv[Any, Any]) -> list[EnvAdapter]:
    return [door for door in vec.envs if isinstance(door, EnvAdapter)]


def _check_fit(adapter: VectorAdapter, meta: dict[str, JSON]) -> None:
    for key, own in _identity(adapter).items():
        if meta[key] != own:
            raise ValueError(f"it was saved with {key} {meta[key]!r}, this is {own!r}")


def _identity(adapter: VectorAdapter) -> dict[str, JSON]:
    """What must agree before a state can fit; the keyword arguments as text, for JSON knows no tuples."""
    kwargs = json.dumps(adapter.cfg.kwargs, sort_keys=True, default=str)
    return {"id": adapter.cfg.id, "kwargs": kwargs, "num_envs": adapter.num_envs}


def _restore_vector(adapter: VectorAdapter, vec: SyncVectorEnv[Any, Any], state: EnvState) -> Float32:
    """Gymnasium's own memory: who is to be reset at the next step, and the last observations."""
    obs, was_done = state.arrays["vector/obs"], state.arrays["vector/was_done"]
    adapter.was_done = np.array(was_done)
    vec._autoreset_envs = np.array(was_done)
    vec._observations[...] = obs
    return np.array(obs)


def _capture_door(door: EnvAdapter, encoder: Encoder) -> JSON:
    own = {"seed": door.seed, "episode_step": door.episode_step, "last_action": door.last_action}
    env = door.open()
    if digest_of(env) != door.model_digest:
        raise NotPlainError(f"{door.cfg.id} has changed its MuJoCo model since it was constructed")
    layers = [_capture_layer(layer, encoder) for layer in _layers(env)]
    return {"door": encoder.encode(own, "door"), "model": door.model_digest, "layers": layers}


def _restore_door(door: EnvAdapter, state: EnvState, index: int) -> None:
    saved, decoder = state.meta["envs"][index], Decoder(state.arrays)
    env, own = door.open(), decoder.decode(saved["door"])
    if saved["model"] != door.model_digest:
        raise ValueError("its MuJoCo model is another one, or was compiled by another version of mujoco")
    door.seed, door.episode_step, door.last_action = own["seed"], own["episode_step"], own["last_action"]
    for layer, layer_state in zip(_layers(env), saved["layers"], strict=True):
        _restore_layer(layer, layer_state, decoder)


def _layers(env: Env) -> list[Env]:
    """Every wrapper from the outside in, then the environment itself."""
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _capture_layer(layer: Env, encoder: Encoder) -> JSON:
    name = type(layer).__name__
    if _offers_state(layer):
        own = layer.get_state()  # type: ignore[attr-defined]  # _offers_state saw it
        values = {key: vars(layer)[key] for key in _GENERATOR_NAMES if key in vars(layer)}
        return {"type": name, "own": encoder.encode(own, f"{name}.get_state()"), **_encode_all(values, encoder, name)}
    values, data = {}, {}
    for key, value in vars(layer).items():
        if mujoco_state.is_data(value):
            data[key] = encoder.encode(mujoco_state.save_data(value), f"{name}.{key}")
        elif not _is_constant(key, value, f"{name}.{key}"):
            values[key] = value
    return {"type": name, "mujoco": data, **_encode_all(values, encoder, name)}


def _encode_all(values: dict[str, Any], encoder: Encoder, name: str) -> JSON:
    return {"values": {key: encoder.encode(value, f"{name}.{key}") for key, value in values.items()}}


def _restore_layer(layer: Env, saved: JSON, decoder: Decoder) -> None:
    if type(layer).__name__ != saved["type"]:
        raise ValueError(f"expected a layer {saved['type']}, got {type(layer).__name__}")
    if "own" in saved:
        layer.set_state(decoder.decode(saved["own"]))  # type: ignore[attr-defined]  # saved by its get_state
    else:
        _forget(layer, saved)
    for key, value in saved.get("mujoco", {}).items():
        mujoco_state.load_data(vars(layer)[key], decoder.decode(value))
    for key, value in saved["values"].items():
        vars(layer)[key] = decoder.decode(value)


def _forget(layer: Env, saved: JSON) -> None:
    """Drop what the saved environment did not have, such as an attribute that only a step creates."""
    extra = [key for key in vars(layer) if key not in saved["values"] and key not in saved["mujoco"]]
    for key in extra:
        if not _is_constant(key, vars(layer)[key], key):
            del vars(layer)[key]


def _offers_state(layer: Env) -> bool:
    """Both methods, on the class itself; MuJoCo environments have a `set_state(qpos, qvel)` of another meaning."""
    return callable(getattr(type(layer), "get_state", None)) and callable(getattr(type(layer), "set_state", None))


def _is_constant(key: str, value: Any, where: str) -> bool:
    """True for what the constructor fixes. Raises `NotPlainError` for a constant that has changed after all."""
    if key in _CONSTANT_NAMES or isinstance(value, _CONSTANT_TYPES) or type(value).__module__ == _RENDERERS:
        return True
    if isinstance(value, gymnasium.Space):
        if value._np_random is not None:
            raise NotPlainError(f"{where} has drawn random samples of its own")
        return True
    return mujoco_state.is_model(value)
