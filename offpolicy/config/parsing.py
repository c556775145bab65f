"""Turns a nested mapping into checked frozen dataclasses: every problem is found at once, with what is allowed.

A field of `option` carries its meaning and limits; which options there are is in `offpolicy/config/sections.py`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
KEY_ALLOWED = "letters of a to z, digits, _ and -, in parts that begin with a letter or _ and are joined by dots"
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.([A-Za-z_][A-Za-z0-9_-]*|0|[1-9][0-9]*))*")
_BARE = re.compile(r"[A-Za-z0-9_/+.%*@?|:-]+")
_NUMBER_OR_KEYWORD = re.compile(r"[+-]?[0-9._]*([0-9]|[0-9.]e[+-]?[0-9_]+|inf|nan)|true|false|null", re.IGNORECASE)


# Any: a type, or what a union is
@functools.cache  # reading the text of annotations takes twice as long as all else of `from_mapping`
def hints_of(cls: Any) -> Mapping[str, Any]:
    """Returns the types of the fields of a dataclass."""
    return MappingProxyType(typing.get_type_hints(cls))


def option(default: Any, doc: str, **limits: Any) -> Any:  # Any: dataclasses.field is typed as the field's own type
    """A config field: its default, meaning, limits (`ge gt le lt choices`) and the `only` algorithms it is for.

    One that `is_required` must be given: its default only stands in for a bad value.
    """
    metadata = {"doc": doc, **limits}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def build(  # noqa: PLR0913  # what is parsed, and what it is held against
    cls: type[T],
    raw: Any,
    problems: list[str],
    known: Sequence[str],
    prefix: str = "",
    chosen: Mapping[type, type] = MappingProxyType({}),
) -> T:
    """Returns an instance of `cls` from a mapping; problems are collected and defaults stand in for bad values.

    `known` are all dotted keys, to find the one that an unknown key may have meant. `chosen` are the classes of
    sections in place of those that are declared.
    """
    if not isinstance(raw, Mapping):
        problems.append(f"{prefix.rstrip('.')}: got {raw!r}, allowed a mapping of {', '.join(_names(cls))}")
        return cls()
    hints = hints_of(cls)  # type: ignore[arg-type]  # a class can be hashed
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]  # cls is one of our dataclasses
    problems += [_unknown(prefix, key, fields, known) for key in raw if key not in fields]
    problems += [
        f"{prefix}{name}: not given; write {prefix}{name}=<value>"
        for name, spec in fields.items()
        if spec.metadata.get("is_required") and name not in raw
    ]
    values: dict[str, Any] = {}
    for name, spec in fields.items():
        if name not in raw:
            continue
        key, hint = prefix + name, hints[name]
        nested = _nested(hint)
        if nested is not None and isinstance(raw[name], Mapping) and raw[name].keys() & _names(nested).keys():
            own: list[str] = []
            value = build(nested, raw[name], own, known, key + ".")
            own = own or value.unfit(key, spec.metadata)
            problems += own
            values[name] = _BAD if own else value
        elif dataclasses.is_dataclass(hint):
            section = chosen.get(hint, hint)  # type: ignore[arg-type]  # a class here
            values[name] = build(section, raw[name], problems, known, key + ".", chosen)
        else:
            values[name] = _value(key, raw[name], hint, spec.metadata, problems)
    return cls(**{name: value for name, value in values.items() if value is not _BAD})


_BAD = object()


class Structured(Protocol):
    """A value of several keys, such as a schedule, where a plain one is allowed too."""

    def unfit(self, key: str, limits: Mapping[str, Any]) -> list[str]:
        """Returns the problems of it as the value of an option with `limits`."""
        ...


def _nested(hint: Any) -> type[Structured] | None:
    """Returns the dataclass that a union of a plain type and a dataclass allows."""
    parts: list[Any] = [part for part in typing.get_args(hint) if isinstance(part, type)]
    found: list[Any] = [part for part in parts if dataclasses.is_dataclass(part)]
    return found[0] if found and _is_union(hint) else None


def _value(key: str, raw: Any, hint: Any, limits: Mapping[str, Any], problems: list[str]) -> Any:
    """Returns `raw` as the type `hint`, or `_BAD` after noting the problem."""
    if isinstance(raw, bool) and str(raw).lower() in limits.get("choices", ()):
        raw = str(raw).lower()  # YAML reads the word as a bool
    value = _convert(raw, hint)
    if value is _BAD:
        problems.append(f"{key}: got {raw!r} ({type(raw).__name__}), allowed {allowed_text(hint, limits)}")
    elif value is not None and not within(value, limits):
        near = difflib.get_close_matches(str(value), [str(c) for c in limits.get("choices", ())], 1)
        hint_text = f"; did you mean {near[0]}?" if near else ""
        problems.append(f"{key}: got {raw!r}, allowed {allowed_text(hint, limits)}{hint_text}")
        return _BAD
    return value


def _convert(raw: Any, hint: Any) -> Any:
    if _is_union(hint):
        if raw is None:
            return None if _is_optional(hint) else _BAD
        return raw if raw in _words(hint) else _convert(raw, typing.get_args(hint)[0])
    if hint is bool or isinstance(raw, bool):
        return raw if hint is bool and isinstance(raw, bool) else _BAD
    if hint is int:
        is_whole = isinstance(raw, int) or (isinstance(raw, float) and math.isfinite(raw) and raw == int(raw))
        return int(raw) if is_whole else _BAD
    if hint is float:
        is_finite = isinstance(raw, int | float) and abs(raw) <= sys.float_info.max  # not math.isfinite: 10**400 raises
        return float(raw) if is_finite else _BAD
    if hint is str:
        return raw if isinstance(raw, str) else _BAD
    if typing.get_origin(hint) is tuple:
        kind = typing.get_args(hint)[0]  # of texts there may be none: a list of names is one of additions
        is_list = isinstance(raw, list | tuple) and (bool(raw) or kind is str)
        items = [_convert(item, kind) for item in raw] if is_list else [_BAD]
        return _BAD if _BAD in items else tuple(items)
    return dict(raw) if isinstance(raw, Mapping) else _BAD


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)  # the first where a part is no class


def _is_optional(hint: Any) -> bool:
    return types.NoneType in typing.get_args(hint)


def _words(hint: Any) -> tuple[str, ...]:
    """Returns the words that a union such as `int | Literal["auto"]` allows beside its first type."""
    literals = [part for part in typing.get_args(hint) if typing.get_origin(part) is typing.Literal]
    return tuple(word for literal in literals for word in typing.get_args(literal))


def within(value: Any, limits: Mapping[str, Any]) -> bool:
    """True if a value, or every item of a tuple, keeps to the limits of an option."""
    if isinstance(value, tuple):
        return all(within(item, limits) for item in value)
    if "choices" in limits:
        return value in limits["choices"]
    return (
        value >= limits.get("ge", -math.inf)
        and value <= limits.get("le", math.inf)
        and value > limits.get("gt", -math.inf)
        and value < limits.get("lt", math.inf)
        if isinstance(value, int | float) and not isinstance(value, bool)
        else True
    )


def allowed_text(hint: Any, limits: Mapping[str, Any]) -> str:
    """Returns the allowed values in words, for an error message."""
    nested = _nested(hint)
    keys = f" or a mapping of {', '.join(_names(nested))}" if nested else ""
    optional = keys + "".join(f" or {word}" for word in _words(hint)) + (" or null" if _is_optional(hint) else "")
    base = typing.get_args(hint)[0] if _is_union(hint) else hint
    if "choices" in limits:
        return "one of " + ", ".join(limits["choices"]) + optional
    lists = "a list of texts" if str in typing.get_args(base) else "a list of whole numbers"
    name = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a mapping"}.get(
        typing.get_origin(base) or base, lists
    )
    low = f"[{limits['ge']}" if "ge" in limits else f"({limits['gt']}" if "gt" in limits else "(-inf"
    high = f"{limits['le']}]" if "le" in limits else f"{limits['lt']})" if "lt" in limits else "inf)"
    interval = f" in {low}, {high}" if {"ge", "gt", "le", "lt"} & limits.keys() else ""
    return name + interval + optional


def _unknown(prefix: str, key: str, fields: Mapping[str, Any], known: Sequence[str]) -> str:
    usable = [name for name in fields if any(is_within(path, (prefix + name,)) for path in known)]
    usable = usable or list(fields)  # of a value of several keys, such as a schedule
    near = difflib.get_close_matches(str(key), usable, 1)
    elsewhere = [path for path in known if path.rsplit(".", 1)[-1] == key]
    guess = prefix + near[0] if near else elsewhere[0] if elsewhere else None
    here = f"known keys here: {', '.join(usable)}"
    return f"{prefix}{key}: unknown key; " + (f"did you mean {guess}? " if guess else "") + here


def _names(cls: Any) -> dict[str, None]:
    """Returns the names of the fields of a dataclass, in order."""
    return dict.fromkeys(f.name for f in dataclasses.fields(cls))


def keys_of(cls: Any, prefix: str = "", chosen: Mapping[type, type] = MappingProxyType({})) -> list[str]:
    """Returns every dotted key of a configuration; `chosen` as for `build`."""
    keys: list[str] = []
    hints = hints_of(cls)
    for name, hint in ((spec.name, hints[spec.name]) for spec in dataclasses.fields(cls)):
        section = chosen.get(hint, hint)
        is_section = dataclasses.is_dataclass(section)
        keys += keys_of(section, f"{prefix}{name}.", chosen) if is_section else [prefix + name]
    return keys


def plain(value: Any) -> Any:
    """Returns mappings and lists of plain values, as JSON and YAML have them."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def as_override(value: Any) -> str:
    """Returns a value as it is written on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{as_override(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ",".join(map(as_override, value)) + "]"
    return quoted(value) if isinstance(value, str) and not _is_bare(value) else str(value)


def _is_bare(text: str) -> bool:
    """True if Hydra's grammar reads a text without quotes as that text, and not as a number or a keyword."""
    return bool(_BARE.fullmatch(text)) and not _NUMBER_OR_KEYWORD.fullmatch(text)


def is_key(text: str) -> bool:
    """True if Hydra's grammar reads a text as a dotted key."""
    return bool(_KEY.fullmatch(text))


def quoted(text: str) -> str:
    """Returns a text in the quotes of Hydra's grammar, in which it may hold anything."""
    # Backslashes are doubled before a quote alone: elsewhere they are what they are.
    escaped = re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + ("\\" if found[2] else "") + found[2], text)
    return f'"{escaped}"'


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the nested mapping of values by dotted key."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        tree = merge(tree, value)
    return tree


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `base` updated with `over`: mappings merge, everything else replaces."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merge(result[key], value) if both else value
    return result


def clash(tree: Mapping[str, Any], key: str) -> str | None:
    """Returns the problem of a dotted key below one that has a plain value in `tree`; None where there is none.

    `merge` would drop the plain value without a word.
    """
    node, path = tree, ""
    for part in key.split(".")[:-1]:
        if part not in node:
            return None
        node, path = node[part], f"{path}.{part}".lstrip(".")
        if not isinstance(node, Mapping):
            return f"{path}: got {node!r}, and {key} beside it; allowed one of both"
    return None


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the values of a nested mapping by dotted key."""
    values: dict[str, Any] = {}
    for name, value in tree.items():
        values |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return values


def is_within(key: str, sections: tuple[str, ...]) -> bool:
    """True if a dotted key is one of the sections or inside one."""
    return any(key == section or key.startswith(f"{section}.") for section in sections)
