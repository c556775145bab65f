"""Values as plain data and back, exactly: JSON-able numbers, text and lists beside named arrays; and MuJoCo's data.

`Encoder` handles None, bool, int of any size, float with NaN and Inf, str, NumPy scalars, arrays and generators, and
lists, tuples, dicts and deques of those. Two names of one array or generator come back as two names of one object.

MuJoCo: `mjSTATE_INTEGRATION` (time, positions, velocities, activations, warm start, controls, applied forces, ...)
determines the next `mj_step`. But environments also read derived quantities before they step (Humanoid: the centre of
mass; Ant: contact forces), and after a step those are one substep behind the positions, so recomputing them changes the
result. They are therefore saved too and written over what `mj_forward` computes.
"""

from __future__ import annotations

import collections
import hashlib
import importlib
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

JSON: TypeAlias = Any  # Any: JSON has no closed type in Python's typing

_BIG_INT = 2**53  # beyond this some JSON readers round
_KINDS = "biuf"  # dtypes that every array file format holds
_MAX_ITEM_BYTES = 8
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


class NotPlainError(Exception):
    """A value that cannot be captured exactly; the message names where it is and what it is."""


class Encoder:
    """Turns values into JSON, collecting their arrays in `arrays` under `prefix`."""

    def __init__(self, prefix: str) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self._prefix = prefix
        # id -> the object, kept alive so that no other gets its id, and its JSON
        self._seen: dict[int, tuple[Any, JSON]] = {}

    def encode(self, value: Any, where: str) -> JSON:
        """Returns the JSON of `value`. Raises `NotPlainError` naming `where`."""
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return value if abs(value) < _BIG_INT else {"$int": str(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind in (list, tuple, dict, collections.deque):
            if isinstance(value, dict):
                return {"$dict": [[self.encode(k, where), self.encode(v, f"{where}[{k!r}]")] for k, v in value.items()]}
            items = [self.encode(item, f"{where}[{index}]") for index, item in enumerate(value)]
            if isinstance(value, collections.deque):
                return {"$deque": items, "maxlen": value.maxlen}
            return {"$tuple": items} if isinstance(value, tuple) else items
        if kind in (np.ndarray, np.random.Generator):
            if id(value) not in self._seen:
                encoded = self._array(value, where) if kind is np.ndarray else self._generator(value, where)
                self._seen[id(value)] = (value, encoded)
            return self._seen[id(value)][1]
        if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
            return {"$scalar": [str(value.dtype), value.tobytes().hex()]}
        raise NotPlainError(f"{where} is a {kind.__module__}.{kind.__qualname__}")

    def _array(self, value: NDArray[Any], where: str) -> JSON:
        if value.dtype.kind not in _KINDS or value.dtype.itemsize > _MAX_ITEM_BYTES:
            raise NotPlainError(f"{where} is an array of dtype {value.dtype}")
        root: Any = value
        while isinstance(root.base, np.ndarray):
            root = root.base
        if root.base is not None:
            raise NotPlainError(f"{where} is a view of memory that NumPy does not own")
        name = f"{self._prefix}{len(self.arrays)}"
        self.arrays[name] = np.array(value, order="C")
        is_fortran = value.flags.f_contiguous and not value.flags.c_contiguous
        return {"$array": name, "order": "F" if is_fortran else "C"}

    def _generator(self, value: np.random.Generator, where: str) -> JSON:
        state = value.bit_generator.state
        if state["bit_generator"] not in _BIT_GENERATORS:
            raise NotPlainError(f"{where} is a generator of an unknown kind {state['bit_generator']}")
        return {"$generator": self.encode(state, where), "id": len(self._seen)}


class Decoder:
    """The inverse of `Encoder`, for one encoder's arrays."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        self._made: dict[str, Any] = {}  # arrays and generators by name: several values may refer to one

    def decode(self, data: JSON) -> Any:
        """Returns the value. Raises `KeyError` or `ValueError` if `data` is not an encoder's."""
        if isinstance(data, list):
            return [self.decode(item) for item in data]
        if not isinstance(data, dict):
            return data
        tag = next(iter(data))
        content = data[tag]
        match tag:
            case "$array":
                return self._array(content, data["order"])
            case "$generator":
                return self._generator(content, f"generator {data['id']}")
            case "$dict":
                return {self.decode(key): self.decode(value) for key, value in content}
            case "$deque":
                return collections.deque(self.decode(content), data["maxlen"])
            case "$tuple":
                return tuple(self.decode(content))
            case "$scalar":
                return np.frombuffer(bytes.fromhex(content[1]), np.dtype(content[0]))[0]
            case "$float" | "$int":
                return (float if tag == "$float" else int)(content)
        raise KeyError(tag)

    def _array(self, name: str, order: Any) -> Any:  # Any: NumPy's literal type of an order
        if name not in self._made:
            self._made[name] = np.array(self._arrays[name], order=order)
        return self._made[name]

    def _generator(self, state: JSON, name: str) -> Any:
        if name not in self._made:
            values = self.decode(state)
            if values["bit_generator"] not in _BIT_GENERATORS:
                raise ValueError(f"unknown bit generator {values['bit_generator']!r}")
            bit_generator = getattr(np.random, values["bit_generator"])()
            bit_generator.state = values
            self._made[name] = np.random.Generator(bit_generator)
        return self._made[name]


def is_mujoco(value: Any, name: str) -> bool:
    """True for an object of MuJoCo's class `name`, such as MjModel, without importing MuJoCo."""
    return type(value).__name__ == name and type(value).__module__.startswith("mujoco")


def models_digest(models: list[Any]) -> str | None:
    """Returns a fingerprint of every number of some MuJoCo models, which shows any change; None without models."""
    if not models:
        return None
    mujoco = _mujoco()
    digest = hashlib.sha256()
    for model in models:
        buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
        mujoco.mj_saveModel(model, None, buffer)
        digest.update(buffer.tobytes())
    return digest.hexdigest()


def save_data(data: Any) -> dict[str, Any]:
    """Returns the integration state of MuJoCo data, and its derived arrays as one row of bytes with their names."""
    mujoco = _mujoco()
    spec = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    state = np.empty(mujoco.mj_stateSize(data.model, spec), np.float64)
    mujoco.mj_getState(data.model, data, state, spec)
    derived = _derived(data)
    packed = np.frombuffer(b"".join(array.tobytes() for array in derived.values()), np.uint8)
    return {"integration": state, "names": list(derived), "derived": packed.copy()}


def load_data(data: Any, saved: dict[str, Any]) -> None:
    """Restores what `save_data` returned. Raises `ValueError` if the arrays do not fit the model."""
    mujoco = _mujoco()
    derived = _derived(data)
    if saved["names"] != list(derived) or saved["derived"].size != sum(array.nbytes for array in derived.values()):
        raise ValueError("the MuJoCo data has other fields; was it saved by another version of mujoco?")
    mujoco.mj_resetData(data.model, data)
    mujoco.mj_setState(data.model, data, saved["integration"], int(mujoco.mjtState.mjSTATE_INTEGRATION))
    # Gives the arena (contacts, constraints) contents that fit the positions, for environments that look at it.
    mujoco.mj_forward(data.model, data)
    start = 0
    for array in derived.values():
        part = saved["derived"][start : start + array.nbytes]
        array[...] = part.view(array.dtype).reshape(array.shape)
        start += array.nbytes


def _mujoco() -> Any:  # Any: an extension module without type stubs
    """Returns the module, imported only when one of its environments is here."""
    return importlib.import_module("mujoco")


def _derived(data: Any) -> dict[str, NDArray[Any]]:
    """Returns views of the arrays in the data's main buffer, whose sizes the model alone decides.

    The others lie in an arena (contacts, constraints, islands): they change size at every step, and every step computes
    them again. The buffer starts with `qpos`.
    """
    start = data.qpos.ctypes.data
    arrays = {}
    for name in dir(data):
        value = None if name.startswith("_") or name == "plugin_data" else getattr(data, name)
        if isinstance(value, np.ndarray) and value.size and start <= value.ctypes.data < start + data.nbuffer:
            arrays[name] = value
    return arrays
