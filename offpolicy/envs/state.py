"""The exact state of environments, for a resume that continues bit for bit.

What is captured, per environment and per layer (each wrapper, then the environment itself): everything in its
`__dict__` that is plain (see `state_values.py`), MuJoCo data, and its random generator; or, where a layer offers
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

from offpolicy.envs.env_adapter import EnvAdapter, digest_of
from offpolicy.envs.make import Env
from offpolicy.envs.state_values import JSON, Decoder, Encoder, NotPlainError, is_mujoco, load_data, save_data
from offpolicy.envs.vector import NativeVector, Stateful, VectorAdapter
from offpolicy.errors import CheckpointError
from offpolicy.types import Float32

# Set by the constructor or by Gymnasium, and not part of what an episode changes.
_CONSTANT_NAMES = {
    *("env", "spec", "metadata", "_metadata", "_cached_spec", "_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs")
}
_CONSTANT_TYPES = (
    *(type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType),
    *(np.dtype, np.ufunc, EnvSpec, pathlib.PurePath),
)
_RENDERERS = "gymnasium.envs.mujoco.mujoco_rendering"
_GENERATOR_NAMES = ("_np_random", "_np_random_seed")


@dataclass(frozen=True, slots=True)
class EnvState:
    """Plain data: `meta` survives JSON, `arrays` any array file (C order, dtypes b, i, u, f of at most 8 bytes)."""

    meta: dict[str, JSON]
    arrays: dict[str, NDArray[Any]]


def save_state(vector: VectorAdapter) -> EnvState | None:
    """Returns the state between two steps, or None where it cannot be exact; `why_not_exact` says why."""
    try:
        return _capture(vector)
    except NotPlainError:
        return None


def why_not_exact(vector: VectorAdapter) -> str | None:
    """Returns the reason why `save_state` gives None; None if it does not."""
    try:
        _capture(vector)
    except NotPlainError as reason:
        return str(reason)
    return None


def restore_state(vector: VectorAdapter, state: EnvState) -> Float32:
    """Continues from `state` in environments made by the same configuration. Returns the current obs [N, O].

    Raises `CheckpointError` if the state does not fit, and leaves the environments to be reset or closed then.
    """
    try:
        for key, own in _identity(vector).items():
            if state.meta[key] != own:
                raise ValueError(f"it was saved with {key} {state.meta[key]!r}, this is {own!r}")
        was_done = state.arrays["vector/was_done"]
        if isinstance(vector.stepper, NativeVector):
            native = _stateful(vector.stepper)
            native.set_state(Decoder(state.arrays).decode(state.meta["native"]))
            vector.was_done = np.array(was_done)
            return vector.stepper.flatten(native.observe())
        stepper = _sync_vector(vector)
        for index, env in enumerate(_adapters(stepper)):
            _restore_env(env, state.meta["envs"][index], Decoder(state.arrays))
        # Gymnasium's own memory: which environments the next step resets, and the last observations.
        obs = state.arrays["vector/obs"]
        vector.was_done = np.array(was_done)
        stepper._autoreset_envs = np.array(was_done)
        stepper._observations[...] = obs
        return np.array(obs)
    except (NotPlainError, KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise CheckpointError(f"the environments' state does not fit {vector.cfg.id}: {error}") from error


def _capture(vector: VectorAdapter) -> EnvState:
    arrays: dict[str, NDArray[Any]] = {"vector/was_done": vector.was_done.copy()}
    if isinstance(vector.stepper, NativeVector):
        encoder = Encoder("native/")
        own = encoder.encode(_stateful(vector.stepper).get_state(), f"{vector.cfg.id}.get_state()")
        return EnvState({**_identity(vector), "native": own}, encoder.arrays | arrays)
    stepper = _sync_vector(vector)
    arrays["vector/obs"] = np.array(stepper._observations)
    envs = []
    for index, env in enumerate(_adapters(stepper)):
        encoder = Encoder(f"env{index}/")
        own = {"seed": env.seed, "episode_step": env.episode_step, "last_action": env.last_action}
        inner = env.open()
        if digest_of(inner) != env.model_digest:
            raise NotPlainError(f"{env.cfg.id} has changed its MuJoCo model since it was constructed")
        layers = [_capture_layer(layer, encoder) for layer in _layers(inner)]
        envs.append({"door": encoder.encode(own, "door"), "model": env.model_digest, "layers": layers})
        arrays |= encoder.arrays
    return EnvState({**_identity(vector), "envs": envs}, arrays)


def _stateful(native: NativeVector) -> Stateful:
    if not isinstance(native.env, Stateful):
        raise NotPlainError(f"{type(native.env).__name__} has no get_state and set_state")
    return native.env


def _sync_vector(vector: VectorAdapter) -> SyncVectorEnv[Any, Any]:
    if not isinstance(vector.stepper, SyncVectorEnv):
        raise NotPlainError("env.vectorization=async keeps the environments in other processes; use sync")
    return vector.stepper


def _adapters(stepper: SyncVectorEnv[Any, Any]) -> list[EnvAdapter]:
    return [env for env in stepper.envs if isinstance(env, EnvAdapter)]


def _identity(vector: VectorAdapter) -> dict[str, JSON]:
    """Returns what must agree before a state can fit; the keyword arguments as text, for JSON knows no tuples."""
    kwargs = json.dumps(vector.cfg.kwargs, sort_keys=True, default=str)
    return {"id": vector.cfg.id, "kwargs": kwargs, "num_envs": vector.num_envs}


def _restore_env(env: EnvAdapter, saved: JSON, decoder: Decoder) -> None:
    inner, own = env.open(), decoder.decode(saved["door"])
    if saved["model"] != env.model_digest:
        raise ValueError("its MuJoCo model is another one, or was compiled by another version of mujoco")
    env.seed, env.episode_step, env.last_action = own["seed"], own["episode_step"], own["last_action"]
    for layer, layer_state in zip(_layers(inner), saved["layers"], strict=True):
        _restore_layer(layer, layer_state, decoder)


def _layers(env: Env) -> list[Env]:
    """Returns every wrapper from the outside in, then the environment itself."""
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _capture_layer(layer: Env, encoder: Encoder) -> JSON:
    name = type(layer).__name__
    state: dict[str, JSON] = {"type": name}
    if _offers_state(layer):
        own = layer.get_state()  # type: ignore[attr-defined]  # _offers_state saw it
        state["own"] = encoder.encode(own, f"{name}.get_state()")
        values = {key: vars(layer)[key] for key in _GENERATOR_NAMES if key in vars(layer)}
    else:
        values, state["mujoco"] = {}, {}
        for key, value in vars(layer).items():
            if is_mujoco(value, "MjData"):
                state["mujoco"][key] = encoder.encode(save_data(value), f"{name}.{key}")
            elif not _is_constant(key, value, f"{name}.{key}"):
                values[key] = value
    state["values"] = {key: encoder.encode(value, f"{name}.{key}") for key, value in values.items()}
    return state


def _restore_layer(layer: Env, saved: JSON, decoder: Decoder) -> None:
    if type(layer).__name__ != saved["type"]:
        raise ValueError(f"expected a layer {saved['type']}, got {type(layer).__name__}")
    if "own" in saved:
        layer.set_state(decoder.decode(saved["own"]))  # type: ignore[attr-defined]  # saved by its get_state
    else:  # drop what the saved environment did not have, such as an attribute that only a step creates
        extra = [key for key in vars(layer) if key not in saved["values"] and key not in saved["mujoco"]]
        for key in extra:
            if not _is_constant(key, vars(layer)[key], key):
                del vars(layer)[key]
    for key, value in saved.get("mujoco", {}).items():
        load_data(vars(layer)[key], decoder.decode(value))
    for key, value in saved["values"].items():
        vars(layer)[key] = decoder.decode(value)


def _offers_state(layer: Env) -> bool:
    """True if both methods are on the class itself; MuJoCo's own `set_state(qpos, qvel)` comes without the other."""
    return callable(getattr(type(layer), "get_state", None)) and callable(getattr(type(layer), "set_state", None))


def _is_constant(key: str, value: Any, where: str) -> bool:
    """True for what the constructor fixes. Raises `NotPlainError` for a constant that has changed after all."""
    if key in _CONSTANT_NAMES or isinstance(value, _CONSTANT_TYPES) or type(value).__module__ == _RENDERERS:
        return True
    if isinstance(value, gymnasium.Space):
        if value._np_random is not None:
            raise NotPlainError(f"{where} has drawn random samples of its own")
        return True
    return is_mujoco(value, "MjModel")
