"""The exact state of environments, for a resume that continues bit for bit.

What is captured, of each layer (each wrapper, then the environment itself): everything in its `__dict__` that is plain
(`object_graph.py`), MuJoCo data, and its random generator; or, where a layer offers `get_state()` and
`set_state(state)`, what that returns, plus the generator (`own_state.py`). The environments of a vector are one graph:
what they share they share again. What the constructor makes is compared (`constants.py`). What cannot be seen is state
kept outside the objects, such as Python's global `random`.
"""

from __future__ import annotations

import collections
import json
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import EzPickle, RecordConstructorArgs
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

from offpolicy.envs.constants import NotPlainError, fingerprint, slots_of
from offpolicy.envs.env_adapter import EnvAdapter, digest_of
from offpolicy.envs.make import Env
from offpolicy.envs.mujoco_state import is_mujoco, load_data, save_data
from offpolicy.envs.object_graph import JSON, Attribute, Decoder, Encoder
from offpolicy.envs.own_state import attribute_digests, check_restored, error_text, get_state, offers_state, set_state
from offpolicy.envs.vector import NativeVector, Stateful, VectorAdapter
from offpolicy.errors import CheckpointError
from offpolicy.types import Float32

STATE_FORMAT = 2  # version of `EnvState`
_GENERATOR_NAMES = ("_np_random", "_np_random_seed")
_CONTAINERS = (list, tuple, dict, collections.deque)


@dataclass(frozen=True, slots=True)
class EnvState:
    """Plain data: `meta` survives JSON, `arrays` any array file (C order, dtypes b, i, u, f of at most 8 bytes)."""

    meta: dict[str, JSON]
    arrays: dict[str, NDArray[Any]]


def save_state(vector: VectorAdapter) -> EnvState | str:
    """Returns the state between two steps, or why it cannot be exact. Raises nothing, whatever the environments do."""
    try:
        return _capture(vector)
    except NotPlainError as reason:
        return str(reason)
    except (Exception, SystemExit) as error:
        return f"the state of {vector.cfg.id} cannot be read: {error_text(error)}"


def restore_state(vector: VectorAdapter, state: EnvState) -> Float32:
    """Continues from `state` in environments made by the same configuration. Returns the current obs [N, O].

    Raises `CheckpointError` if the state does not fit; the environments are then new ones, to be reset or closed.
    Raises as `make_vector` if those cannot be made.
    """
    try:
        return _restore(vector, state)
    except (Exception, SystemExit) as error:
        vector.renew()  # what has been written into the others is not known
        reason = str(error) if isinstance(error, NotPlainError | ValueError) else error_text(error)
        raise CheckpointError(f"the environments' state does not fit {vector.cfg.id}: {reason:.400}") from error


def _capture(vector: VectorAdapter) -> EnvState:
    envs = _envs(vector)
    layers = [_layers(env.open()) for env in envs]
    encoder = Encoder(_known(layers))
    content: dict[str, JSON] = {"format": STATE_FORMAT, **_identity(vector)}
    arrays: dict[str, NDArray[Any]] = {"vector/was_done": vector.was_done.copy()}
    if isinstance(vector.stepper, NativeVector):
        content["native"] = _capture_own(_stateful(vector.stepper), vars(vector.stepper.env), encoder)
    else:
        arrays["vector/obs"] = np.array(_sync_vector(vector)._observations)
        content["envs"] = [
            _capture_env(env, index, own, encoder) for index, (env, own) in enumerate(zip(envs, layers, strict=True))
        ]
    content["nodes"] = encoder.nodes
    return EnvState(content, arrays | {"memory": encoder.memory()})


def _restore(vector: VectorAdapter, state: EnvState) -> Float32:
    for key, own in {"format": STATE_FORMAT, **_identity(vector)}.items():
        if state.meta[key] != own:
            raise ValueError(f"it was saved with {key} {state.meta[key]!r:.200}, this is {own!r}")
    envs = _envs(vector)
    layers = [_layers(env.open()) for env in envs]

    def decoder() -> Decoder:
        return Decoder(state.meta["nodes"], state.arrays["memory"], lambda reference: _find(layers, reference))

    if ("native" in state.meta) is not isinstance(vector.stepper, NativeVector):
        raise ValueError("it was saved with another env.vectorization")
    was_done = _shaped(state.arrays["vector/was_done"], vector.was_done)
    if isinstance(vector.stepper, NativeVector):
        native, own = _stateful(vector.stepper), state.meta["native"]
        set_state(native, decoder().decode(own["state"]))
        check_restored(native, own["attributes"], decoder().decode(own["state"]))
        vector.was_done = was_done
        return vector.stepper.flatten(native.observe())
    stepper = _sync_vector(vector)
    obs = _shaped(state.arrays["vector/obs"], stepper._observations)
    first, second = decoder(), decoder()
    first.fill_holders()
    for env, own, saved in zip(envs, layers, state.meta["envs"], strict=True):
        _restore_env(env, own, saved, first, second)
    # Gymnasium's own memory: which environments the next step resets, and the last observations.
    vector.was_done, stepper._autoreset_envs = was_done, was_done.copy()
    stepper._observations[...] = obs
    return obs


def _shaped(saved: NDArray[Any], own: Any) -> NDArray[Any]:
    """Returns a copy of a saved array. Raises `ValueError` if it is not like the one that is there."""
    if saved.shape != own.shape or saved.dtype != own.dtype:
        raise ValueError(f"expected {own.dtype} {own.shape}, got {saved.dtype} {saved.shape}")
    return saved.copy()


def _envs(vector: VectorAdapter) -> list[EnvAdapter]:
    if isinstance(vector.stepper, NativeVector):
        return []
    return [env for env in _sync_vector(vector).envs if isinstance(env, EnvAdapter)]


def _known(layers: list[list[Env]]) -> dict[int, tuple[Any, JSON]]:
    """Returns what restored environments have themselves: their layers, and the bounds of their spaces."""
    known: dict[int, tuple[Any, JSON]] = {}
    for env_index, own in enumerate(layers):
        for index, layer in enumerate(own):
            known.setdefault(id(layer), (layer, ["layer", env_index, index]))
            for name, value in vars(layer).items():
                if isinstance(value, gymnasium.spaces.Box):
                    for bound in ("low", "high"):
                        array = getattr(value, bound)
                        known.setdefault(id(array), (array, [bound, env_index, index, name]))
    return known


def _find(layers: list[list[Env]], reference: JSON) -> Any:
    """Returns the part of these environments that a reference or a path of the saved ones names."""
    match reference:
        case ["layer", int(env), int(layer)]:
            return layers[env][layer]
        case ["low" | "high" as bound, int(env), int(layer), str(name)]:
            space = vars(layers[env][layer])[name]
            if not isinstance(space, gymnasium.spaces.Box):
                raise ValueError(f"{name} is no Box")
            return getattr(space, bound)
        case [[int(env), int(layer), _, str(name)], *steps]:
            found = vars(layers[env][layer])[name]
            for step in steps:
                found = _step_into(found, step)
            return found
    raise ValueError(f"unknown {reference!r:.80}")


def _step_into(holder: Any, step: JSON) -> Any:
    if isinstance(holder, FunctionType):
        return dict(slots_of(holder))[tuple(step)]
    if isinstance(holder, BuiltinFunctionType | MethodType) and step == ["owner", 0]:
        return holder.__self__
    kind: type = type(holder)
    if kind not in _CONTAINERS:
        raise ValueError(f"nothing is in a {kind.__name__}")
    container: Any = holder
    return container[step]


def _stateful(native: NativeVector) -> Stateful:
    if not isinstance(native.env, Stateful):
        raise NotPlainError(f"{type(native.env).__name__} has no get_state and set_state")
    return native.env


def _sync_vector(vector: VectorAdapter) -> SyncVectorEnv[Any, Any]:
    if not isinstance(vector.stepper, SyncVectorEnv):
        raise NotPlainError("env.vectorization=async keeps the environments in other processes; use sync")
    return vector.stepper


def _identity(vector: VectorAdapter) -> dict[str, JSON]:
    """Returns what must agree before a state can fit; the keyword arguments as text, for JSON knows no tuples."""
    kwargs = json.dumps(vector.cfg.kwargs, sort_keys=True, default=str)
    return {"id": vector.cfg.id, "kwargs": kwargs, "num_envs": vector.num_envs}


def _layers(env: Env) -> list[Env]:
    """Returns every wrapper from the outside in, then the environment itself."""
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _capture_env(env: EnvAdapter, index: int, layers: list[Env], encoder: Encoder) -> JSON:
    if digest_of(layers[0]) != env.model_digest:
        raise NotPlainError(f"{env.cfg.id} has changed its MuJoCo model since it was constructed")
    door = [env.seed, env.episode_step, env.last_action]
    return {
        "door": encoder.encode(door, (None, "door")),
        "model": env.model_digest,
        "layers": [_capture_layer(layer, (index, number), encoder) for number, layer in enumerate(layers)],
    }


def _restore_env(env: EnvAdapter, layers: list[Env], saved: JSON, first: Decoder, second: Decoder) -> None:
    if saved["model"] != env.model_digest:
        raise ValueError("its MuJoCo model is another one, or was compiled by another version of mujoco")
    seed, episode_step, last_action = first.decode(saved["door"])
    if not (isinstance(seed, int | None) and isinstance(episode_step, int)):
        raise ValueError(f"expected a seed and a step, got {seed!r:.80} and {episode_step!r:.80}")
    env.seed, env.episode_step, env.last_action = seed, episode_step, last_action
    for layer, layer_state in zip(layers, saved["layers"], strict=True):
        _restore_layer(layer, layer_state, first, second)


def _capture_layer(layer: Env, position: tuple[int, int], encoder: Encoder) -> JSON:
    name = type(layer).__name__
    attributes = {key: value for key, value in vars(layer).items() if not _is_gymnasiums(layer, key, value)}
    state: dict[str, JSON] = {"type": name}
    if offers_state(layer):
        state["own"] = _capture_own(layer, attributes, encoder)
        attributes = {key: value for key, value in attributes.items() if key in _GENERATOR_NAMES}
    elif slots := _slots_of_class(type(layer)):
        raise NotPlainError(f"{name} keeps {', '.join(slots)} in __slots__, which a checkpoint does not save")
    data = {key: value for key, value in attributes.items() if is_mujoco(value, "MjData")}
    state["mujoco"] = {key: encoder.encode(save_data(value), (None, f"{name}.{key}")) for key, value in data.items()}
    state["values"] = {
        key: encoder.encode(value, (None, Attribute(*position, name, key)))
        for key, value in attributes.items()
        if key not in data
    }
    return state


def _restore_layer(layer: Env, saved: JSON, first: Decoder, second: Decoder) -> None:
    if type(layer).__name__ != saved["type"]:
        raise ValueError(f"expected a layer {saved['type']!r:.80}, got {type(layer).__name__}")
    for key, value in saved["mujoco"].items():
        load_data(vars(layer)[key], first.decode(value))
    if "own" in saved:
        set_state(layer, first.decode(saved["own"]["state"]))
    for key, value in saved["values"].items():
        vars(layer)[key] = first.decode(value)
    if "own" in saved:  # made once more: `set_state` may have changed what it was given
        check_restored(layer, saved["own"]["attributes"], second.decode(saved["own"]["state"]))
        return
    # drop what the saved environment did not have, such as an attribute that only a step creates
    kept = {*saved["values"], *saved["mujoco"]}
    for key, value in list(vars(layer).items()):
        if key not in kept and not _is_gymnasiums(layer, key, value) and fingerprint(value) is None:
            del vars(layer)[key]


def _slots_of_class(cls: type) -> list[str]:
    """Returns the names of a class and its bases that are not in the `__dict__` of its objects."""
    found = [vars(base).get("__slots__", ()) for base in cls.__mro__]
    names = [name for slots in found for name in ([slots] if isinstance(slots, str) else slots)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _is_gymnasiums(layer: Env, name: str, value: Any) -> bool:
    """True for what Gymnasium itself keeps in a layer, which no episode changes."""
    match name:
        case "env":
            return isinstance(layer, gymnasium.Wrapper)  # the next layer
        case "spec" | "_cached_spec":
            return isinstance(value, EnvSpec)
        case "metadata":
            return value is getattr(type(layer), name, None)  # of the class, not its own
        case "_saved_kwargs":
            return isinstance(layer, RecordConstructorArgs)
        case "_ezpickle_args" | "_ezpickle_kwargs":
            return isinstance(layer, EzPickle)
    return False


def _capture_own(layer: Any, attributes: dict[str, Any], encoder: Encoder) -> JSON:
    """Returns what `get_state` returns, and the digests of the attributes that it should cover."""
    own = encoder.encode(get_state(layer), (None, f"{type(layer).__name__}.get_state()"))
    names = [key for key in attributes if key not in _GENERATOR_NAMES]
    return {"state": own, "attributes": attribute_digests(layer, names)}
