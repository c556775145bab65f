"""Environments that offer `get_state()` and `set_state(state)`: taken at their word, and checked.

`get_state` may leave something out, and `set_state` may mean another thing. So a digest of every plain attribute is
saved beside the state; after `set_state`, attributes and `get_state` must be as they were.
"""

from __future__ import annotations

import collections
import hashlib
import inspect
import traceback
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offpolicy.envs.constants import NotPlainError, types_of

_LONG = 32  # items from which numbers of one type are fed at once
_NUMBERS: dict[type, type] = {bool: np.bool_, int: np.int64, float: np.float64}


def offers_state(layer: Any) -> bool:
    """True if both methods are on the class itself, and take no argument and one: not MuJoCo's `(qpos, qvel)`."""
    if not all(callable(getattr(type(layer), name, None)) for name in ("get_state", "set_state")):
        return False
    try:
        inspect.signature(layer.get_state).bind()
        inspect.signature(layer.set_state).bind(None)
    except TypeError:
        return False
    except ValueError:  # compiled, without a signature
        pass
    return True


def get_state(layer: Any) -> Any:
    """Returns what `get_state()` returns. Raises `NotPlainError` whatever it raises."""
    return _call(layer.get_state, f"{type(layer).__name__}.get_state()")


def set_state(layer: Any, state: Any) -> None:
    """Calls `set_state(state)`. Raises `NotPlainError` whatever it raises."""
    _call(lambda: layer.set_state(state), f"{type(layer).__name__}.set_state()")


def attribute_digests(layer: Any, names: Iterable[str]) -> dict[str, str]:
    """Returns the digests of those attributes that are plain; the others are what `get_state` is for."""
    found = {name: value_digest(vars(layer)[name]) for name in names}
    return {name: digest for name, digest in found.items() if digest is not None}


def check_restored(layer: Any, digests: dict[str, str], state: Any) -> None:
    """Raises `NotPlainError` where a restored layer is not as the saved one was: `state` is what it was given."""
    name = type(layer).__name__
    for key, digest in digests.items():
        if key not in vars(layer) or value_digest(vars(layer)[key]) != digest:
            raise NotPlainError(f"{name}.set_state() does not restore {name}.{key}: get_state() leaves it out")
    if (wanted := value_digest(state)) is not None and value_digest(get_state(layer)) != wanted:
        raise NotPlainError(f"{name}.get_state() is not what {name}.set_state() was given")


def value_digest(value: Any) -> str | None:
    """Returns a digest of plain values, however they share memory; None for anything else."""
    digest = hashlib.sha256()
    try:
        _feed(value, digest.update)
    except (NotPlainError, RecursionError):
        return None
    return digest.hexdigest()


def error_text(error: BaseException) -> str:
    """Returns type and message of an error, whatever its `__str__` does."""
    return "".join(traceback.format_exception_only(error)).strip()


def _call(method: Callable[[], Any], name: str) -> Any:
    try:
        return method()
    except BaseException as error:  # of the user's code: SystemExit and KeyboardInterrupt are failures like others
        raise NotPlainError(f"{name} raised {error_text(error)}") from error


def _feed(value: Any, update: Callable[[bytes | memoryview], object]) -> None:
    kind = type(value)
    if kind in (list, tuple, collections.deque):
        update(f"[{len(value)}".encode())
        _feed_items(value, update)
    elif kind is dict:
        update(f"{{{len(value)}".encode())
        _feed_items(list(value), update)
        _feed_items(list(value.values()), update)
    elif kind is np.random.Generator:
        _feed(value.bit_generator.state, update)
    elif value is None or kind is str or (kind is int and abs(value) >= 2**63):
        update(f"{kind.__name__} {value!r}".encode())
    elif kind in _NUMBERS or isinstance(value, np.ndarray | np.generic):
        array = _NUMBERS[kind](value) if kind in _NUMBERS else value
        if array.dtype.kind not in "biufc":
            raise NotPlainError(str(array.dtype))
        update(f"{array.dtype.str} {array.shape}".encode())
        update(np.ascontiguousarray(array).data)
    else:
        raise NotPlainError(kind.__name__)


def _feed_items(items: Collection[Any], update: Callable[[bytes | memoryview], object]) -> None:
    """Feeds a sequence: many numbers of one type at once, for a history of a million takes seconds one by one."""
    types = {_NUMBERS.get(kind, kind) for kind in types_of(items)} if len(items) >= _LONG else set()
    if len(types) == 1 and (kind := types.pop()) in _NUMBERS.values():
        try:
            array: NDArray[Any] = np.fromiter(items, kind, len(items))
        except OverflowError:  # whole numbers of more than 64 bits
            pass
        else:
            update(f"numbers {array.dtype.str}".encode())
            update(array.data)
            return
    for item in items:
        _feed(item, update)
