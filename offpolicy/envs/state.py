"""The exact state of environments, for a resume that continues bit for bit.

Of each layer (each wrapper, then the environment itself) are saved: its plain attributes, MuJoCo's data, and the
generator; or what `get_state()` returns, where a layer has that and `set_state(state)`. Plain are numbers, texts,
arrays, NumPy's generators, and lists, tuples and dicts of these, each with one name. Spaces, classes, functions and
MuJoCo's models are compared, not saved. Where an environment holds anything else, `save_state` returns what it is.
"""

from __future__ import annotations

import copy
import json
import math
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from offpolicy.envs.batch_adapter import BatchAdapter
from offpolicy.envs.env_adapter import EnvAdapter, VectorAdapter
from offpolicy.envs.make import cause_of
from offpolicy.envs.mujoco_state import is_mujoco, load_data, model_digest, save_data
from offpolicy.errors import CheckpointError
from offpolicy.types import Json

STATE_FORMAT = 4  # version of `EnvState`
_GENERATOR_NAMES = ("_np_random", "_np_random_seed")
# What Gymnasium keeps in a layer, and no episode changes.
_GYMNASIUMS = ("spec", "_cached_spec", "metadata", "_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs")
_RENDERERS = "gymnasium.envs.mujoco.mujoco_rendering"


class NotPlainError(Exception):
    """A value that cannot be saved exactly; the message names where it is and what it is."""


@dataclass(frozen=True, slots=True)
class EnvState:
    """Plain data: `meta` survives JSON, `arrays` any array file (C order, dtypes b, i, u, f of at most 8 bytes)."""

    meta: dict[str, Json]
    arrays: dict[str, NDArray[Any]]


def save_state(vector: VectorAdapter) -> EnvState | str:
    """Returns the state between two steps, or why it cannot be exact. Raises nothing, whatever the environments do."""
    try:
        found = _Found({}, [])
        meta = {**_identity(vector), "saved": [_save_layer(layer, found) for layer in _layers(vector)]}
        arrays = {"was_done": vector.was_done.copy(), "success": vector.best_success.copy(), **_copies(found)}
        if isinstance(vector, EnvAdapter):
            arrays["obs"] = vector.obs.copy()
            meta["episodes"] = [list(pair) for pair in zip(vector.seeds, vector.episode_steps, strict=True)]
        return EnvState(meta, arrays)
    except NotPlainError as reason:
        return str(reason)
    except (Exception, SystemExit) as error:
        return f"the state of {vector.cfg.name} cannot be read: {cause_of(error)}"


def restore_state(vector: VectorAdapter, state: EnvState) -> None:
    """Continues from `state` in environments of the same configuration that have been reset.

    Raises `CheckpointError` if the state does not fit; the environments are then new ones, to be reset or closed.
    Raises as `make_vector` if those cannot be made.
    """
    meta, arrays = state.meta, state.arrays
    try:
        for key, own in _identity(vector).items():
            if meta[key] != own:
                raise ValueError(f"it was saved with {key} {meta[key]!r:.200}, this is {own!r}")
        for layer, saved in zip(_layers(vector), meta["saved"], strict=True):
            _restore_layer(layer, saved, arrays)
        vector.was_done[...] = arrays["was_done"]
        vector.best_success[...] = arrays["success"]
        if isinstance(vector, EnvAdapter):
            vector.obs[...] = arrays["obs"]
            vector.seeds, vector.episode_steps = map(list, zip(*meta["episodes"], strict=True))
    except (Exception, SystemExit) as error:
        vector.renew()  # what has been written into the others is not known
        raise CheckpointError(f"the environments' state does not fit {vector.cfg.name}: {cause_of(error)}") from error


def _identity(vector: VectorAdapter) -> dict[str, Json]:
    """Returns what must agree before a state can fit; the keyword arguments as text, for JSON knows no tuples."""
    cfg, layers = vector.cfg, [type(layer).__name__ for layer in _layers(vector)]
    kwargs = json.dumps(cfg.kwargs, sort_keys=True, default=str)
    found = {"format": STATE_FORMAT, "id": cfg.name, "vectorization": cfg.vectorization, "kwargs": kwargs}
    return found | {"num_envs": vector.num_envs, "layers": layers}


def _layers(vector: VectorAdapter) -> list[Any]:
    """Returns what holds the state: every wrapper from the outside in, then its environment; or the one vector."""
    if isinstance(vector, BatchAdapter):
        batch = getattr(vector.batch, "env", vector.batch)  # an adapter's simulator
        if not _offers_state(batch):
            raise NotPlainError(f"{type(batch).__name__} has no get_state and set_state")
        return [batch]
    if not isinstance(vector, EnvAdapter):
        raise NotPlainError("env.vectorization=async keeps the environments in other processes; use sync")
    layers: list[Any] = []
    for env in vector.envs:
        layers.append(env)
        while isinstance(layers[-1], gymnasium.Wrapper):
            layers.append(layers[-1].env)
    return layers


def _attributes(layer: Any) -> dict[str, Any]:
    """Returns the attributes of a layer that an episode may change; with `get_state`, only the generator."""
    left_out = (*_GYMNASIUMS, "env") if isinstance(layer, gymnasium.Wrapper) else _GYMNASIUMS
    own = {name: value for name, value in vars(layer).items() if name not in left_out}
    return {name: value for name, value in own.items() if name in _GENERATOR_NAMES or not _offers_state(layer)}


def _offers_state(layer: Any) -> bool:
    return hasattr(type(layer), "get_state") and hasattr(type(layer), "set_state")


def _save_layer(layer: Any, found: _Found) -> Json:
    name = type(layer).__name__
    saved: dict[str, Json] = {"constants": {}, "mujoco": {}, "values": {}}
    if _offers_state(layer):
        saved["state"] = _encoded(copy.deepcopy(layer.get_state()), f"{name}.get_state()", found)
    for key, value in _attributes(layer).items():
        if (text := _constant_text(value)) is not None:
            saved["constants"][key] = text
        elif is_mujoco(value, "MjData"):
            saved["mujoco"][key] = _encoded(save_data(value), f"{name}.{key}", found)
        else:
            saved["values"][key] = _encoded(value, f"{name}.{key}", found)
    return saved


def _restore_layer(layer: Any, saved: Json, arrays: dict[str, NDArray[Any]]) -> None:
    own = _attributes(layer)
    for key, text in saved["constants"].items():
        if (is_now := _constant_text(own.get(key))) != text:
            raise ValueError(f"{type(layer).__name__}.{key} was {text}, this is {is_now}")
    for key, value in saved["mujoco"].items():
        load_data(own[key], _decoded(value, arrays))
    if "state" in saved:
        layer.set_state(_decoded(saved["state"], arrays))
    for key in own.keys() - saved["constants"].keys() - saved["mujoco"].keys():
        del vars(layer)[key]  # the saved environment may not have had it, such as one that only a step creates
    vars(layer).update({key: _decoded(value, arrays) for key, value in saved["values"].items()})


def _constant_text(value: Any) -> str | None:
    """Returns a text that differs where something that the constructor makes does; None for what may be state."""
    if isinstance(value, gymnasium.Space):  # with a generator, it has been sampled or seeded
        return repr(value) if value._np_random is None else None
    if isinstance(value, type) or isinstance(value, FunctionType) and value.__closure__ is None:
        return f"{value.__module__}.{value.__qualname__}"
    if is_mujoco(value, "MjModel"):
        return f"MjModel {model_digest(value)}"
    return type(value).__name__ if type(value).__module__ == _RENDERERS else None


class _Found(NamedTuple):
    """What has been encoded, with its names."""

    names: dict[int, tuple[str, Any]]  # by id; the object is kept, so that no other gets its id
    arrays: list[tuple[str, NDArray[Any]]]


def _encoded(value: Any, name: str, found: _Found) -> Json:
    """Returns a plain value as JSON, its arrays by their numbers in `found`. Raises `NotPlainError` naming it.

    What has two names is refused: it would come back as two objects.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str) or kind is float and math.isfinite(value):
        return value
    if kind is float:
        return {"float": str(value)}
    if isinstance(value, np.bool_ | np.number) or kind is np.ndarray:
        array = np.asarray(value)
        _check_array(array, name)
        found.arrays.append((name, array))
        return {kind.__name__: [str(len(found.arrays) - 1), array.shape]}
    if kind not in (list, tuple, dict, np.random.Generator):
        raise NotPlainError(f"{name} is a {kind.__module__}.{kind.__qualname__}")
    if found.names.setdefault(id(value), (name, value))[0] != name and kind is not tuple:
        raise NotPlainError(f"{name} is also {found.names[id(value)][0]}")
    if kind is dict:
        return {"dict": [[_encoded(k, name, found), _encoded(v, f"{name}[{k!r}]", found)] for k, v in value.items()]}
    if kind is np.random.Generator:
        bits = value.bit_generator
        return {"generator": [_encoded(part, name, found) for part in (bits.state, bits.seed_seq.state)]}
    items = [_encoded(item, f"{name}[{index}]", found) for index, item in enumerate(value)]
    return items if kind is list else {"tuple": items}


def _check_array(array: NDArray[Any], name: str) -> None:
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    if not isinstance(owner, np.ndarray):
        raise NotPlainError(f"{name} is a view of a {type(owner).__module__}.{type(owner).__qualname__}")
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8 or not array.flags.c_contiguous:
        raise NotPlainError(f"{name} is an array of dtype {array.dtype} and strides {array.strides}")


def _copies(found: _Found) -> dict[str, NDArray[Any]]:
    """Returns the arrays by their numbers. Raises `NotPlainError` for two that share memory."""
    spans = sorted((*np.lib.array_utils.byte_bounds(array), name) for name, array in found.arrays if array.size)
    for (_, end, name), (start, _, other) in zip(spans, spans[1:], strict=False):
        if start < end:
            raise NotPlainError(f"{other} shares memory with {name}")
    return {str(number): array.copy() for number, (_, array) in enumerate(found.arrays)}


def _decoded(saved: Json, arrays: dict[str, NDArray[Any]]) -> Any:
    """The inverse of `_encoded`."""
    if not isinstance(saved, dict):
        return [_decoded(item, arrays) for item in saved] if isinstance(saved, list) else saved
    ((kind, content),) = saved.items()
    if kind == "float":
        return float(content)
    if kind == "tuple":
        return tuple(_decoded(content, arrays))
    if kind == "dict":
        return {_decoded(key, arrays): _decoded(value, arrays) for key, value in content}
    if kind == "generator":
        state, seeds = _decoded(content, arrays)
        bits = getattr(np.random, state["bit_generator"])(np.random.SeedSequence(**seeds))
        bits.state = state
        return np.random.Generator(bits)
    array = arrays[content[0]].reshape(content[1])
    return array.copy() if kind == "ndarray" else array[()]
