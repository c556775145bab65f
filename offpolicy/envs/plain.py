"""Python values as plain data and back, exactly: JSON-able numbers, text and lists beside named arrays.

Handled: None, bool, int of any size, float with NaN and Inf, str, NumPy scalars, arrays and generators, and lists,
tuples, dicts and deques of those. Two names of one array or generator come back as two names of one object.
"""

from __future__ import annotations

import collections
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
        self._seen: dict[
            int, tuple[Any, JSON]
        ] = {}  # id -> (the object, kept alive so that its id stays its own; its JSON)

    def encode(self, value: Any, where: str) -> JSON:
        """The JSON of `value`. Raises `NotPlainError` naming `where`."""
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return value if abs(value) < _BIG_INT else {"$int": str(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
            return {"$scalar": [str(value.dtype), value.tobytes().hex()]}
        if kind in (list, tuple, dict, collections.deque):
            return self._container(value, where)
        if kind in (np.ndarray, np.random.Generator):
            return self._shared(value, where)
        raise NotPlainError(f"{where} is a {kind.__module__}.{kind.__qualname__}")

    def _container(self, value: Any, where: str) -> JSON:
        if isinstance(value, dict):
            pairs = [[self.encode(k, where), self.encode(v, f"{where}[{k!r}]")] for k, v in value.items()]
            return {"$dict": pairs}
        items = [self.encode(item, f"{where}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, collections.deque):
            return {"$deque": items, "maxlen": value.maxlen}
        return {"$tuple": items} if isinstance(value, tuple) else items

    def _shared(self, value: Any, where: str) -> JSON:
        if id(value) not in self._seen:
            encoded = self._array(value, where) if isinstance(value, np.ndarray) else self._generator(value, where)
            self._seen[id(value)] = (value, encoded)
        return self._seen[id(value)][1]

    def _array(self, value: NDArray[Any], where: str) -> JSON:
        if value.dtype.kind not in _KINDS or value.dtype.itemsize > _MAX_ITEM_BYTES:
            raise NotPlainError(f"{where} is an array of dtype {value.dtype}")
        if not _owns_memory(value):
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
        self._made: dict[str, Any] = {}

    def decode(self, data: JSON) -> Any:
        """The value. Raises `KeyError` or `ValueError` if `data` is not an encoder's."""
        if isinstance(data, list):
            return [self.decode(item) for item in data]
        if not isinstance(data, dict):
            return data
        tag = next(iter(data))
        return _DECODERS[tag](self, data[tag], data)

    def _array(self, name: str, data: JSON) -> Any:
        if name not in self._made:
            self._made[name] = np.array(self._arrays[name], order=data["order"])
        return self._made[name]

    def _generator(self, state: JSON, data: JSON) -> Any:
        name = f"generator {data['id']}"
        if name not in self._made:
            values = self.decode(state)
            if values["bit_generator"] not in _BIT_GENERATORS:
                raise ValueError(f"unknown bit generator {values['bit_generator']!r}")
            bit_generator = getattr(np.random, values["bit_generator"])()
            bit_generator.state = values
            self._made[name] = np.random.Generator(bit_generator)
        return self._made[name]

    def _dict(self, pairs: JSON, _: JSON) -> Any:
        return {self.decode(key): self.decode(value) for key, value in pairs}

    def _deque(self, items: JSON, data: JSON) -> Any:
        return collections.deque(self.decode(items), data["maxlen"])

    def _tuple(self, items: JSON, _: JSON) -> Any:
        return tuple(self.decode(items))

    def _scalar(self, parts: JSON, _: JSON) -> Any:
        dtype, text = parts
        return np.frombuffer(bytes.fromhex(text), np.dtype(dtype))[0]

    def _number(self, text: JSON, _: JSON) -> Any:
        return float(text)

    def _int(self, text: JSON, _: JSON) -> Any:
        return int(text)


_DECODERS: dict[str, Any] = {
    "$array": Decoder._array,
    "$generator": Decoder._generator,
    "$dict": Decoder._dict,
    "$deque": Decoder._deque,
    "$tuple": Decoder._tuple,
    "$scalar": Decoder._scalar,
    "$float": Decoder._number,
    "$int": Decoder._int,
}


def _owns_memory(array: NDArray[Any]) -> bool:
    """True unless the array, or the one it is a view of, looks into somebody else's memory."""
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    return root.base is None
