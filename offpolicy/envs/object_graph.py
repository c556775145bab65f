"""Objects that refer to each other as plain data, and back with the same references.

`Encoder` takes None, bool, int of any size, float with NaN and Inf, str, NumPy scalars; lists, tuples, dicts and deques
of anything here; NumPy arrays, with views that share memory; NumPy generators; methods of a list, dict, deque or
generator; and what the constructor makes (`constants.py`), such as a function with what its closure holds. Two names of
one object come back as two names of one object.

The result is flat: a list of nodes, which name each other by number, beside one block of bytes. So a cycle, or a chain
of a million objects, is nothing special. A node is `[kind, ...]`; a reference in it is None, a bool, an int, a float or
a str for itself, `[number]` for another node, or `[tag, ...]`.
"""

from __future__ import annotations

import collections
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias

import gymnasium
import numpy as np
from numpy.typing import NDArray

from offpolicy.envs.constants import NotPlainError, fingerprint, is_same, slots_of, types_of, write_slots

JSON: TypeAlias = Any  # Any: JSON has no closed type in Python's typing
Holder: TypeAlias = FunctionType | gymnasium.Space[Any]  # of what `slots_of` returns
Place: TypeAlias = tuple[Any, Any]  # (the place of what holds it, or None; the key in there)

_BIG_INT = 2**53  # beyond this some JSON readers round
_KINDS = "biufc"  # of arrays
_LONG = 32  # items from which a sequence of numbers of one type is stored as an array
_PACKED = {float: "<f8", int: "<i8"}
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_POSITIONS = {("MT19937", "pos"): 624, ("Philox", "buffer_pos"): 4}  # largest; NumPy reads there unchecked
_HAVE_METHODS = (list, dict, collections.deque, np.random.Generator)
_FOREIGN_ERRORS = (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError, MemoryError)


class Attribute(NamedTuple):
    """The first step of a path: an attribute of a layer of an environment."""

    env: int
    layer: int
    type_name: str
    name: str


class InHolder(NamedTuple):
    """A later step: what a function or a space holds, or what a method belongs to."""

    kind: str
    key: int | str


class Encoder:
    """Turns values into `nodes` and `memory`. `known` holds objects that the restored side has itself, by `id`."""

    def __init__(self, known: Mapping[int, tuple[Any, JSON]] | None = None) -> None:
        self.nodes: list[JSON] = []
        # id -> the object, kept alive so that no other gets its id, and the reference to it
        self._seen: dict[int, tuple[Any, JSON]] = dict(known or {})
        self._unfilled: list[tuple[int, Any, Place]] = []
        self._cells: dict[int, int] = {}  # id of a closure's cell, which functions may share -> its number
        self._chunks: list[bytes] = []
        self._num_bytes = 0

    def encode(self, value: Any, place: Place) -> JSON:
        """Returns the reference to `value`, which is at `place`. Raises `NotPlainError` naming the place."""
        reference = self._reference(value, place)
        while self._unfilled:
            number, container, where = self._unfilled.pop()
            self.nodes[number][1] = self._contents(container, where)
        return reference

    def memory(self) -> NDArray[np.uint8]:
        """Returns the bytes that the nodes refer to."""
        return np.frombuffer(b"".join(self._chunks), np.uint8)

    def _reference(self, value: Any, place: Place) -> JSON:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is float:
            return value if math.isfinite(value) else ["float", struct.pack("<d", value).hex()]
        if kind is int:
            return value if abs(value) < _BIG_INT else ["int", hex(value)]
        if id(value) in self._seen:
            return self._seen[id(value)][1]
        if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
            return ["scalar", value.dtype.str, value.tobytes().hex()]
        reference = [self._add(value, kind, place)]
        self._seen[id(value)] = (value, reference)
        return reference

    def _add(self, value: Any, kind: type, place: Place) -> int:
        """Adds the node of an object and returns its number: above those of the nodes that are made before it."""
        if kind in (list, dict, collections.deque):
            number = self._append([kind.__name__, None, value.maxlen if kind is collections.deque else None])
            self._seen[id(value)] = (value, [number])
            self._unfilled.append((number, value, place))
            return number
        if kind is tuple:
            try:
                return self._append(["tuple", self._items(value, place)])
            except RecursionError:
                raise NotPlainError(f"{_text(place)[:80]}... has tuples nested too deep") from None
        if kind is np.ndarray:
            return self._append(self._array(value, place))
        if kind is np.random.Generator:
            return self._append(["generator", self._reference(value.bit_generator, place)])
        if isinstance(value, np.random.BitGenerator):
            return self._append(self._bit_generator(value, place))
        if kind is np.random.SeedSequence:
            facts = value.state
            numbers = [self._reference(facts[key], place) for key in ("entropy", "spawn_key")]
            return self._append(["seeds", *numbers, facts["pool_size"], facts["n_children_spawned"]])
        if isinstance(value, BuiltinFunctionType | MethodType) and type(value.__self__) in _HAVE_METHODS:
            return self._append(
                ["method", self._reference(value.__self__, (place, InHolder("owner", 0))), value.__name__]
            )
        if isinstance(value, MethodType) and self._is_layer(value.__self__):
            return self._append(self._layer_method(value, place))
        return self._constant(value, place)

    def _append(self, node: list[JSON]) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _contents(self, container: Any, place: Place) -> JSON:
        """Returns references to what is in a container, or what `slots_of` a function or a space holds."""
        if isinstance(container, FunctionType | gymnasium.Space):
            values = [[*slot, self._reference(value, (place, InHolder(*slot)))] for slot, value in slots_of(container)]
            cells = [self._cells.setdefault(id(cell), len(self._cells)) for cell in _closure(container)]
            return [values, cells]
        if isinstance(container, dict):
            pairs = [
                (self._reference(key, place), self._reference(value, (place, key))) for key, value in container.items()
            ]
            return [reference for pair in pairs for reference in pair]
        return self._items(container, place)

    def _items(self, sequence: Any, place: Place) -> JSON:
        """Returns references to the items; `{dtype: [offset, count]}` for many numbers of one type."""
        kinds = types_of(sequence) if len(sequence) >= _LONG else ()
        if len(kinds) == 1 and (dtype := _PACKED.get(next(iter(kinds)))):
            try:
                numbers = np.fromiter(sequence, dtype, len(sequence))
                return {dtype: [self._store(numbers.tobytes()), len(sequence)]}
            except OverflowError:  # whole numbers of more than 64 bits
                pass
        return [self._reference(item, (place, index)) for index, item in enumerate(sequence)]

    def _array(self, value: NDArray[Any], place: Place) -> list[JSON]:
        if value.dtype.kind not in _KINDS:
            raise NotPlainError(f"{_text(place)} is an array of dtype {value.dtype}")
        root: Any = value
        while isinstance(root.base, np.ndarray):
            root = root.base
        if root.base is not None or not root.flags.owndata:
            raise NotPlainError(f"{_text(place)} is a view of memory that NumPy does not own")
        layout = [value.dtype.str, list(value.shape)]
        if root is not value and value.size:
            offset = value.ctypes.data - root.ctypes.data
            return ["view", *layout, self._reference(root, place), offset, list(value.strides), value.flags.writeable]
        if type(root) is not np.ndarray or not value.flags.forc:
            raise NotPlainError(f"{_text(place)} is an array of unusual strides")
        order: Literal["C", "F"] = "C" if value.flags.c_contiguous else "F"
        return ["array", *layout, self._store(value.tobytes(order)), order, value.flags.writeable]

    def _bit_generator(self, value: np.random.BitGenerator, place: Place) -> list[JSON]:
        state: Any = value.state
        if state["bit_generator"] not in _BIT_GENERATORS or type(value).__name__ != state["bit_generator"]:
            raise NotPlainError(f"{_text(place)} is a generator of an unknown kind {type(value).__name__}")
        seeds = value.seed_seq
        if seeds is not None and type(seeds) is not np.random.SeedSequence:
            raise NotPlainError(f"{_text(place)} is a generator with seeds of {type(seeds).__name__}")
        return ["bits", _numbers(state), self._reference(seeds, place)]

    def _is_layer(self, value: Any) -> bool:
        reference = self._seen.get(id(value), (None, None))[1]
        return isinstance(reference, list) and reference[0] == "layer"

    def _layer_method(self, value: MethodType, place: Place) -> list[JSON]:
        name, function = value.__func__.__name__, value.__func__
        mark = fingerprint(function)
        if mark is None or getattr(type(value.__self__), name, None) is not function:
            raise NotPlainError(f"{_text(place)} is {_kind_text(value)}")
        return ["layer method", self._reference(value.__self__, place), name, mark]

    def _constant(self, value: Any, place: Place) -> int:
        mark, path = fingerprint(value), _path(place)
        if mark is None:
            raise NotPlainError(f"{_text(place)} is {_kind_text(value)}")
        if path is None:
            raise NotPlainError(f"{_text(place)} is {_kind_text(value)}, which a restored environment cannot find")
        number = self._append(["same", [], mark, path])
        if isinstance(value, FunctionType) or isinstance(value, gymnasium.Space) and slots_of(value):
            self._unfilled.append((number, value, place))
        return number

    def _store(self, content: bytes) -> int:
        """Keeps some bytes; returns their offset."""
        offset = self._num_bytes
        self._chunks.append(content)
        self._num_bytes += len(content)
        return offset


class Decoder:
    """The inverse of `Encoder`. `find` returns what the restored side has itself: by a path, or by a known reference.

    Raises `ValueError` for content that no encoder writes. Only `fill_holders` changes anything of the restored side.
    """

    def __init__(self, nodes: list[JSON], memory: NDArray[np.uint8], find: Callable[[JSON], Any]) -> None:
        self._memory, self._find = memory, find
        self._made: dict[int, Any] = {}
        self._locked: list[NDArray[Any]] = []  # after all views are made: one may be older than the lock, and writeable
        try:
            containers = [number for number, node in enumerate(nodes) if node[0] in ("list", "dict", "deque")]
            for number in containers:
                self._made[number] = _EMPTY[nodes[number][0]](nodes[number][2])
            for number, node in enumerate(nodes):
                if number not in self._made:
                    self._made[number] = self._make(node)
            for array in self._locked:
                array.flags.writeable = False
            for number in containers:
                self._fill(self._made[number], nodes[number][1])
            held = [(self._made[number], node[1]) for number, node in enumerate(nodes) if node[0] == "same" and node[1]]
            _check_distinct([(function, cells) for function, (_, cells) in held])
            self._slots = [
                (function, [((kind, key), self.decode(value)) for kind, key, value in slots])
                for function, (slots, _) in held
            ]
        except _FOREIGN_ERRORS as error:
            raise ValueError(f"it holds what no environment saves: {error!r:.200}") from error

    def fill_holders(self) -> None:
        """Writes what the restored side's own functions and spaces hold: closures, defaults and generators."""
        for function, slots in self._slots:
            write_slots(function, slots)

    def decode(self, reference: JSON) -> Any:
        """Returns the value that a reference stands for."""
        if not isinstance(reference, list):
            if isinstance(reference, dict):
                raise ValueError("a reference is no mapping")
            return reference
        match reference:
            case [int(number)]:
                return self._made[number]
            case ["float", str(content)]:
                return struct.unpack("<d", bytes.fromhex(content))[0]
            case ["int", str(content)]:
                return int(content, 16)
            case ["scalar", dtype, str(content)]:
                return np.frombuffer(bytes.fromhex(content), _dtype(dtype))[0]
        return self._find(reference)

    def _make(self, node: JSON) -> Any:
        match node:
            case ["tuple", items]:
                return tuple(self._items(items))
            case ["array", dtype, shape, offset, "C" | "F" as order, is_writeable]:
                content = self._numbers(offset, math.prod(shape), _dtype(dtype))
                array = np.array(content.reshape(shape, order=order), order=order)
                if not is_writeable:
                    self._locked.append(array)
                return array
            case ["view", dtype, shape, root, offset, strides, is_writeable]:
                return _view(self.decode(root), _dtype(dtype), shape, offset, strides, bool(is_writeable))
            case ["method", owner, str(name)]:
                return _method(self.decode(owner), name)
            case ["layer method", layer, str(name), mark]:
                return _layer_method(self.decode(layer), name, mark)
            case ["same", _, mark, path]:
                found = self._find(path)
                if not is_same(found, mark):
                    is_now = fingerprint(found) or _kind_text(found)
                    raise ValueError(f"{'.'.join(map(str, path))} was {mark}, this is {is_now}")
                return found
        return self._make_generator(node)

    def _make_generator(self, node: JSON) -> Any:
        match node:
            case ["seeds", entropy, spawn_key, pool_size, num_spawned]:
                return _seeds(self.decode(entropy), self.decode(spawn_key), pool_size, num_spawned)
            case ["bits", state, seeds]:
                return _bit_generator(state, self.decode(seeds))
            case ["generator", bits]:
                return np.random.Generator(self.decode(bits))
        raise ValueError(f"unknown {node!r:.80}")

    def _fill(self, container: Any, items: JSON) -> None:
        values = self._items(items)
        if isinstance(container, dict):
            container.update(zip(values[::2], values[1::2], strict=True))
        else:
            container.extend(values)

    def _items(self, items: JSON) -> list[Any]:
        if not isinstance(items, dict):
            return [self.decode(item) for item in items]
        ((dtype, (offset, count)),) = items.items()
        if dtype not in _PACKED.values():
            raise ValueError(f"unknown numbers {dtype!r:.80}")
        numbers: list[Any] = self._numbers(offset, count, np.dtype(dtype)).tolist()
        return numbers

    def _numbers(self, offset: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Returns a view of stored numbers; the offset need not be aligned."""
        if min(offset, count) < 0 or offset + count * dtype.itemsize > self._memory.size:
            raise ValueError(f"{count} numbers at {offset} of {self._memory.size} bytes")
        return self._memory[offset : offset + count * dtype.itemsize].view(dtype)


_EMPTY: dict[str, Callable[[JSON], Any]] = {
    "list": lambda _: [],
    "dict": lambda _: {},
    "deque": lambda maxlen: collections.deque(maxlen=maxlen),
}


def _check_distinct(holders: list[tuple[Holder, list[int]]]) -> None:
    """Raises `ValueError` unless holders and cells here are shared as the saved ones were: a cell has one number."""
    pairs = {
        (number, id(cell))
        for holder, numbers in holders
        for number, cell in zip(numbers, _closure(holder), strict=True)
    }
    counts = {len(holders) - len({id(holder) for holder, _ in holders})}
    counts |= {len(pairs) - len({pair[side] for pair in pairs}) for side in (0, 1)}
    if counts != {0}:
        raise ValueError("its functions or spaces share other things now")


def _closure(holder: Holder) -> Iterable[CellType]:
    """Returns the cells of a function's closure; a space has none."""
    return (holder.__closure__ or ()) if isinstance(holder, FunctionType) else ()


def _dtype(text: JSON) -> np.dtype[Any]:
    """Returns the dtype of a name. Raises `ValueError` for one that does not stand for numbers."""
    if not isinstance(text, str) or len(text) > 5 or np.dtype(text).kind not in _KINDS:
        raise ValueError(f"unknown dtype {text!r:.80}")
    return np.dtype(text)


def _view(root: Any, dtype: np.dtype[Any], shape: JSON, offset: int, strides: JSON, is_writeable: bool) -> NDArray[Any]:
    """Returns a view of the array `root`; NumPy refuses one that reaches beyond it."""
    if type(root) is not np.ndarray or root.base is not None:
        raise ValueError(f"a view of {type(root).__name__}")
    flat = (root if root.flags.c_contiguous else root.T).reshape(-1).view(np.uint8)
    view: NDArray[Any] = np.ndarray(shape, dtype, flat, offset, strides)
    if is_writeable and not root.flags.writeable:
        raise ValueError("a writeable view of an array that is read-only here")
    view.flags.writeable = is_writeable
    return view


def _numbers(state: Any) -> JSON:
    """Returns the state of a bit generator as JSON."""
    if isinstance(state, dict):
        return {key: _numbers(value) for key, value in state.items()}
    if isinstance(state, np.ndarray):
        return [state.dtype.str, *state.tolist()]
    return state if isinstance(state, str) else hex(state)


def _bit_generator(state: JSON, seeds: Any) -> np.random.BitGenerator:
    kind = state["bit_generator"]
    if kind not in _BIT_GENERATORS or not isinstance(seeds, np.random.SeedSequence | None):
        raise ValueError(f"unknown bit generator {kind!r:.80}")
    made: np.random.BitGenerator = getattr(np.random, kind)(0 if seeds is None else seeds)
    made.state = _checked_numbers(state, made.state, kind)
    return made


def _checked_numbers(state: JSON, own: Any, kind: str) -> Any:
    """Returns the state that `_numbers` gave, after a look at its shape: NumPy takes it as it comes."""
    if set(state) != set(own):
        raise ValueError(f"unknown state of {kind}")
    values: dict[str, Any] = {}
    for key, before in own.items():
        value = state[key]
        if isinstance(before, dict):
            values[key] = _checked_numbers(value, before, kind)
        elif isinstance(before, np.ndarray):
            values[key] = np.array(value[1:], before.dtype)
            if value[0] != before.dtype.str or values[key].shape != before.shape:
                raise ValueError(f"unknown {key} of {kind}")
        elif isinstance(before, str):
            values[key] = kind
        else:
            values[key] = int(value, 16)
            if not 0 <= values[key] <= _POSITIONS.get((kind, key), 2**128):
                raise ValueError(f"{key} of {kind}: got {value!r:.80}")
    return values


def _seeds(entropy: Any, spawn_key: Any, pool_size: int, num_spawned: int) -> np.random.SeedSequence:
    if not 4 <= pool_size <= 64:
        raise ValueError(f"pool_size: got {pool_size!r:.80}, allowed 4 to 64")
    return np.random.SeedSequence(entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=num_spawned)


def _method(owner: Any, name: str) -> Any:
    """Returns the method of a container or a generator: nothing else, whatever a file says."""
    if type(owner) not in _HAVE_METHODS or name.startswith("_"):
        raise ValueError(f"a method {name!r:.80} of {type(owner).__name__}")
    method = getattr(owner, name)
    if not isinstance(method, BuiltinFunctionType | MethodType):
        raise ValueError(f"{name!r:.80} is no method")
    return method


def _layer_method(layer: Any, name: str, mark: JSON) -> MethodType:
    """Returns the method of a restored layer that the saved one had there."""
    function = getattr(type(layer), name, None)
    if not isinstance(function, FunctionType) or fingerprint(function) != mark:
        raise ValueError(f"{type(layer).__name__} has no method that was {mark}")
    return MethodType(function, layer)


def _text(place: Place) -> str:
    """Returns a place as one would write it in Python, or the beginning of a long one."""
    keys: list[Any] = []
    rest: Any = place
    while rest is not None:
        rest, key = rest
        keys.append(key)
    parts = [_key_text(key, is_first=index == 0) for index, key in enumerate(reversed(keys[-20:]))]
    return "".join(parts) + ("..." if len(keys) > 20 else "")


def _key_text(key: Any, *, is_first: bool) -> str:
    if type(key) is Attribute:
        return f"{key.type_name}.{key.name}"
    if type(key) is InHolder:
        return f" {key.kind} {key.key}"
    return str(key) if is_first else f"[{key!r:.40}]"


def _path(place: Place) -> list[JSON] | None:
    """Returns a place as JSON, from the attribute of a layer on; None if it does not begin at one or has odd keys."""
    steps: list[JSON] = []
    rest: Any = place
    first: type | None = None
    while rest is not None:
        rest, key = rest
        if type(key) not in (int, str, Attribute, InHolder):
            return None
        steps.append(list(key) if isinstance(key, tuple) else key)
        first = type(key)
    return steps[::-1] if first is Attribute else None


def _kind_text(value: Any) -> str:
    """Returns what a value is, for a message."""
    is_method = isinstance(value, MethodType | BuiltinFunctionType) and not isinstance(value.__self__, ModuleType)
    kind = type(value.__self__) if is_method else type(value)
    return f"a {'method of a ' if is_method else ''}{kind.__module__}.{kind.__qualname__}"
