"""Turns a nested mapping into checked frozen dataclasses: every problem is found at once, with what is allowed.

A field of `option` carries its meaning and limits; which options there are is in `sections.py` and `algorithms.py`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from offpolicy.config.foreign_names import OURS
from offpolicy.types import Json

T = TypeVar("T")
Hint: TypeAlias = Any  # Any: a type, or a union of types
Limits = Mapping[str, Json]  # the metadata of an `option`
Classes = Mapping[str, type]  # the classes of plug-ins, by the key of the section that has one
NO_CLASSES: Classes = MappingProxyType({})
TYPE_NAMES: Mapping[Hint, str] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text",
    tuple[str, ...]: "a list of texts", tuple[int, ...]: "a list of whole numbers",
}  # fmt: skip


def option(default: Json, doc: str, **limits: Json) -> Any:  # Any: dataclasses.field is typed as the field's own type
    """A config field: its default, meaning, limits (`ge gt le lt choices`) and what it `needs`.

    Nothing reads it where a condition of `needs` does not hold, such as "replay.source=auto,prefetch"; `schema.py` has
    their form. One that `is_required` must be given: its default only stands in for a bad value.
    """
    metadata = {"doc": doc, **limits}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def section(cls: type[T], needs: str = "") -> T:
    """A config field that is a section; `needs` is that of each of its options."""
    made: T = field(default_factory=cls, metadata={"needs": needs})
    return made


class Spec(NamedTuple):
    """A key as it is declared."""

    hint: Hint  # a type, or a union of types
    limits: Limits
    default: Json


def specs_of(cls: Hint, classes: Classes = NO_CLASSES, prefix: str = "", needs: str = "") -> Iterator[tuple[str, Spec]]:
    """Yields every dotted key of a dataclass and its sections."""
    hints, defaults = hints_of(cls), cls()
    for spec in dataclasses.fields(cls):
        key, hint = prefix + spec.name, hints[spec.name]
        all_needs = f"{needs} {spec.metadata.get('needs', '')}".strip()
        if dataclasses.is_dataclass(hint):
            yield from specs_of(classes.get(key, hint), classes, f"{key}.", all_needs)
        else:
            default = plain(getattr(defaults, spec.name))
            yield key, Spec(hint, {**spec.metadata, "needs": all_needs}, default)
            for name in (name for name in classes if name.startswith(f"{key}.")):
                yield from specs_of(classes[name], classes, f"{name}.", all_needs)


@functools.cache  # reading the text of annotations takes twice as long as all else of `from_mapping`
def hints_of(cls: Hint) -> Mapping[str, Hint]:
    """Returns the types of the fields of a dataclass."""
    return typing.get_type_hints(cls)


_BAD = object()  # stands for a value that is not allowed


@dataclass(frozen=True, slots=True)
class Parser:
    """Builds dataclasses from nested mappings; defaults stand in for bad values, which are in `problems`."""

    known: Mapping[str, Spec]  # all keys, to find the one that an unknown key may have meant
    classes: Classes
    problems: list[str] = field(default_factory=list)

    def build(self, cls: type[T], raw: Json, prefix: str = "") -> T:
        """Returns an instance of `cls`, whose keys begin with `prefix`."""
        names = [spec.name for spec in dataclasses.fields(cls)]  # type: ignore[arg-type]  # one of our dataclasses
        if not isinstance(raw, Mapping):
            self.problems.append(f"{prefix.rstrip('.')}: got {raw!r}, allowed a mapping of {', '.join(names)}")
            return cls()
        self.problems.extend(self._unknown(prefix, key, names) for key in raw if key not in names)
        values, hints = {}, hints_of(cls)  # type: ignore[arg-type]  # a class can be hashed
        for spec in dataclasses.fields(cls):  # type: ignore[arg-type]
            key = prefix + spec.name
            if spec.name in raw:
                values[spec.name] = self._value(key, raw[spec.name], hints[spec.name], spec.metadata)
            elif spec.metadata.get("is_required"):
                self.problems.append(f"{key}: not given; write {key}=<value>")
        return cls(**{name: value for name, value in values.items() if value is not _BAD})

    def _value(self, key: str, raw: Json, hint: Hint, limits: Limits) -> Json:
        """Returns `raw` as the type `hint`, or `_BAD` after noting the problem."""
        if dataclasses.is_dataclass(hint):
            return self.build(self.classes.get(key, hint), raw, f"{key}.")  # type: ignore[arg-type]  # a class here
        structured: Hint = next(filter(dataclasses.is_dataclass, _parts(hint)), None)
        if structured is not None and isinstance(raw, Mapping) and raw.keys() & hints_of(structured).keys():
            before = len(self.problems)
            built = self.build(structured, raw, f"{key}.")
            if len(self.problems) == before:
                self.problems.extend(built.problems(key, limits))
            return built
        if isinstance(raw, bool) and str(raw).lower() in limits.get("choices", ()):
            raw = str(raw).lower()  # YAML reads the word as a bool
        value = _convert(raw, hint)
        if value is None or (value is not _BAD and within(value, limits)):
            return value
        near = difflib.get_close_matches(str(raw), limits.get("choices", ()), 1)
        guess = f"; did you mean {near[0]}?" if near else ""
        self.problems.append(f"{key}: got {raw!r}, allowed {allowed_text(hint, limits)}{guess}")
        return _BAD

    def _unknown(self, prefix: str, key: object, names: list[str]) -> str:
        """Returns the problem of an unknown key, with the one that it may have meant."""
        name = str(key)
        near = [prefix + found for found in difflib.get_close_matches(name, names, 1)]
        elsewhere = [path for path in self.known if path.rsplit(".", 1)[-1] == name]
        foreign = OURS.get(name.lower().replace("-", "_"))
        guess = foreign or (near + elsewhere + [""])[0]
        return f"{prefix}{name}: unknown key; " + (
            f"did you mean {guess}?" if guess else f"known keys here: {', '.join(names)}"
        )


def _parts(hint: Hint) -> tuple[Hint, ...]:
    """Returns the types that a union is of, or the type itself."""
    origin: Hint = typing.get_origin(hint)
    is_union = origin in (typing.Union, types.UnionType)  # the first where a part is no class
    return typing.get_args(hint) if is_union else (hint,)


def _convert(raw: Json, hint: Hint) -> Json:
    """Returns a value of JSON as the first type of `hint`, or one of the words or null beside it; else `_BAD`."""
    kind, *others = _parts(hint)
    origin: Hint = typing.get_origin(kind)
    if (raw is None and types.NoneType in others) or any(raw in typing.get_args(part) for part in others):
        return raw
    if kind in (bool, str):
        return raw if isinstance(raw, kind) else _BAD
    if kind in (int, float):
        is_number = isinstance(raw, int | float) and not isinstance(raw, bool)
        is_finite = is_number and abs(raw) <= sys.float_info.max  # not math.isfinite: 10**400 raises
        return kind(raw) if is_finite and (kind is float or raw == int(raw)) else _BAD
    if origin is tuple:
        item = typing.get_args(kind)[0]  # of texts there may be none: a list of names is one of additions
        is_list = isinstance(raw, list | tuple) and (bool(raw) or item is str)
        items = [_convert(each, item) for each in raw] if is_list else [_BAD]
        return _BAD if _BAD in items else tuple(items)
    return dict(raw) if isinstance(raw, Mapping) else _BAD


def within(value: Json, limits: Limits) -> bool:
    """True if a value, or every item of a tuple, keeps to the limits of an option."""
    if isinstance(value, tuple):
        return all(within(item, limits) for item in value)
    if "choices" in limits:
        return value in limits["choices"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    is_above = limits.get("ge", -math.inf) <= value and limits.get("gt", -math.inf) < value
    return bool(is_above and value <= limits.get("le", math.inf) and value < limits.get("lt", math.inf))


def allowed_text(hint: Hint, limits: Limits) -> str:
    """Returns the allowed values in words, for an error message."""
    kind, *others = _parts(hint)
    optional = ""
    for part in others:
        words = typing.get_args(part)  # of a Literal
        if dataclasses.is_dataclass(part):
            words = (f"a mapping of {', '.join(hints_of(part))}",)  # type: ignore[arg-type]  # a class can be hashed
        optional += f" or {' or '.join(words) or 'null'}"
    if "choices" in limits:
        return "one of " + ", ".join(limits["choices"]) + optional
    low = f"[{limits['ge']}" if "ge" in limits else f"({limits['gt']}" if "gt" in limits else "(-inf"
    high = f"{limits['le']}]" if "le" in limits else f"{limits['lt']})" if "lt" in limits else "inf)"
    interval = f" in {low}, {high}" if {"ge", "gt", "le", "lt"} & limits.keys() else ""
    return TYPE_NAMES.get(kind, "a mapping") + interval + optional


def plain(value: Json) -> Json:
    """Returns mappings and lists of plain values, as JSON and YAML have them."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def nested(values: Mapping[str, Json]) -> dict[str, Json]:
    """Returns the nested mapping of values by dotted key."""
    tree: dict[str, Json] = {}
    for key, value in values.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        tree = merge(tree, value)
    return tree


def merge(base: Mapping[str, Json], over: Mapping[str, Json]) -> dict[str, Json]:
    """Returns `base` updated with `over`: mappings merge, everything else replaces."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merge(result[key], value) if both else value
    return result


def flatten(tree: Mapping[str, Json], prefix: str = "") -> dict[str, Json]:
    """Returns the values of a nested mapping by dotted key."""
    values: dict[str, Json] = {}
    for name, value in tree.items():
        values |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return values


def is_within(key: str, sections: tuple[str, ...]) -> bool:
    """True if a dotted key is one of the sections or inside one."""
    return any(key == section or key.startswith(f"{section}.") for section in sections)
