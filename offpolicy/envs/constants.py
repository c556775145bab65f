"""What an environment's constructor makes and no episode changes: code, types, spaces, renderers, MuJoCo's models.

None of it is saved. A restored environment has its own, and a fingerprint shows that it is the same: code that an
environment has exchanged since, or a space with other bounds, is noticed. What a function's closure and defaults hold
may change, and is state.
"""

from __future__ import annotations

import hashlib
import operator
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from offpolicy.envs.mujoco_state import is_mujoco, models_digest

# closure 0, default 1, keyword "x" or field "x" of a function; generator 0 of a space
Slot: TypeAlias = tuple[str, int | str]

_RENDERERS = "gymnasium.envs.mujoco.mujoco_rendering"


class NotPlainError(Exception):
    """A value that cannot be captured exactly; the message names where it is and what it is."""


def fingerprint(value: Any) -> str | None:
    """Returns a short text that differs where a constant does; None for what is no constant."""
    for kinds, text_of in _TEXTS:
        if isinstance(value, kinds):
            return text_of(value)
    if is_mujoco(value, "MjModel"):
        return f"object MjModel {models_digest([value])}"
    return f"object {type(value).__qualname__}" if type(value).__module__ == _RENDERERS else None


def is_same(value: Any, mark: Any) -> bool:
    """True if the fingerprint of a value is `mark`. A mark of an earlier version tells a model's type alone."""
    return fingerprint(value) == mark or (mark == "object MjModel" and is_mujoco(value, "MjModel"))


def slots_of(holder: FunctionType | gymnasium.Space[Any]) -> list[tuple[Slot, Any]]:
    """Returns what a function holds besides its code, if it is a closure or was made inside another function.

    Of a space: its random generator and those of the spaces in it, if there is one; Gymnasium makes them when somebody
    seeds or samples the space, and when a wrapper stacks it. Raises `NotPlainError` for a closure over a name that has
    no value yet.
    """
    if isinstance(holder, gymnasium.Space):
        generators = [part._np_random for part in _parts(holder)]
        is_used = any(generator is not None for generator in generators)
        return [(("generator", index), generator) for index, generator in enumerate(generators) if is_used]
    function = holder
    if function.__closure__ is None and "<locals>" not in function.__qualname__:
        return []  # its defaults are the module's
    try:
        slots: list[tuple[Slot, Any]] = [
            (("closure", index), cell.cell_contents) for index, cell in enumerate(function.__closure__ or ())
        ]
    except ValueError:
        raise NotPlainError(f"{function.__qualname__} uses a name without a value") from None
    slots += [(("default", index), value) for index, value in enumerate(function.__defaults__ or ())]
    slots += [(("keyword", name), value) for name, value in (function.__kwdefaults__ or {}).items()]
    return slots + [(("field", name), value) for name, value in vars(function).items()]


def write_slots(holder: FunctionType | gymnasium.Space[Any], slots: Iterable[tuple[Slot, Any]]) -> None:
    """Writes what `slots_of` returned. Raises `ValueError` if this function or space has other slots."""
    values = dict(slots)
    if isinstance(holder, gymnasium.Space):
        _write_generators(list(_parts(holder)), values)
        return
    function = holder
    own = [slot for slot, _ in slots_of(function)]
    if set(own) != set(values):
        raise ValueError(f"{function.__qualname__} holds {sorted(map(str, own))}, not {sorted(map(str, values))}")
    for slot in own:
        kind, key = slot
        if kind == "closure" and isinstance(key, int) and function.__closure__ is not None:
            function.__closure__[key].cell_contents = values[slot]
        elif kind == "field":
            vars(function)[str(key)] = values[slot]
        elif kind == "keyword" and function.__kwdefaults__ is not None:
            function.__kwdefaults__[str(key)] = values[slot]
    defaults = tuple(values[slot] for slot in own if slot[0] == "default")
    if defaults:
        function.__defaults__ = defaults


def _write_generators(spaces: list[gymnasium.Space[Any]], values: Mapping[Slot, Any]) -> None:
    if set(values) != {("generator", index) for index in range(len(spaces))}:
        raise ValueError(f"{len(spaces)} spaces in one hold {sorted(map(str, values))}")
    for index, space in enumerate(spaces):
        generator = values["generator", index]
        if not isinstance(generator, np.random.Generator | None):
            raise ValueError(f"expected the generator of a space, got {type(generator).__name__}")
        space._np_random = generator  # type: ignore[assignment]  # None: it has none yet


def _code_digest(function: FunctionType) -> str:
    """Returns a digest of a function's code, without names of files and numbers of lines."""
    return hashlib.sha256(_constant_text(function.__code__).encode()).hexdigest()[:16]


def _constant_text(value: Any) -> str:
    """Returns a constant of some code as text: other code that it makes functions of, with its own constants."""
    if isinstance(value, CodeType):
        constants = [_constant_text(constant) for constant in value.co_consts]
        names = value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars
        return repr((value.co_code, value.co_exceptiontable, names, constants))
    if isinstance(value, frozenset):
        return f"set {sorted(map(_constant_text, value))}"  # its order is another one in every process
    return f"tuple {[_constant_text(item) for item in value]}" if isinstance(value, tuple) else repr(value)


def _parts(space: gymnasium.Space[Any]) -> Iterator[gymnasium.Space[Any]]:
    """Yields a space and all that are in it, such as those of a Dict, a Sequence or a Graph."""
    yield space
    for value in vars(space).values():
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        for part in inner:
            if isinstance(part, gymnasium.Space):
                yield from _parts(part)


def _space_digest(space: gymnasium.Space[Any]) -> str:
    """Returns a digest of a space and of those in it, with every bound."""
    parts = [type(space).__qualname__, str(space.dtype), str(space.shape)]
    if isinstance(space, gymnasium.spaces.Box):
        parts += [space.low.tobytes().hex(), space.high.tobytes().hex()]
    elif isinstance(space, gymnasium.spaces.Dict):
        parts += [f"{key} {_space_digest(inner)}" for key, inner in space.spaces.items()]
    elif isinstance(space, gymnasium.spaces.Tuple):
        parts += [_space_digest(inner) for inner in space.spaces]
    else:
        parts.append(repr(space))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _function_text(function: FunctionType) -> str:
    return f"function {function.__module__}.{function.__qualname__} {_code_digest(function)}"


def _method_text(method: MethodType) -> str | None:
    return f"method {method.__self__.__qualname__}.{method.__name__}" if isinstance(method.__self__, type) else None


def _builtin_text(function: BuiltinFunctionType) -> str | None:
    is_plain = function.__self__ is None or isinstance(function.__self__, ModuleType | type)
    return f"function {function.__module__}.{function.__qualname__}" if is_plain else None


_TEXTS: tuple[tuple[type, Callable[[Any], str | None]], ...] = (
    (type, lambda value: f"class {value.__module__}.{value.__qualname__}"),
    (ModuleType, lambda value: f"module {value.__name__}"),
    (FunctionType, _function_text),
    (MethodType, _method_text),
    (BuiltinFunctionType, _builtin_text),
    (np.dtype, lambda value: f"dtype {value}"),
    (np.ufunc, lambda value: f"ufunc {value.__name__}"),
    (EnvSpec, lambda value: f"spec {value.id}"),
    (pathlib.PurePath, lambda value: f"path {value}"),
    (gymnasium.Space, lambda value: f"space {_space_digest(value)}"),
)


def types_of(items: Collection[Any]) -> set[type]:
    """Returns the types of the items; fast where all have that of the first one."""
    first = type(next(iter(items)))
    return {first} if operator.countOf(map(type, items), first) == len(items) else set(map(type, items))
