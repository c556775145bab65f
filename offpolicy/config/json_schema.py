"""The configuration as a JSON Schema, for editors: completion, meanings and limits while a YAML file is written."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from offpolicy.config.parsing import hints_of
from offpolicy.config.rules import owners
from offpolicy.config.schedules import Ramp
from offpolicy.config.sections import RunSections

DIALECT = "https://json-schema.org/draft/2020-12/schema"
BOUNDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
CLOSED = {"gt": "ge", "lt": "le"}
# YAML 1.1, which the program reads, takes 20_000 for a number; editors, which read YAML 1.2, take it for text.
GROUPED_DIGITS = {"type": "string", "pattern": "^[0-9]{1,3}(_[0-9]{3})+$"}
Schema = dict[str, Any]  # Any: JSON values
Limits = Mapping[str, Any]  # Any: the metadata of an `option`


def json_schema(section: str | None = None) -> Schema:
    """Returns the schema of a whole configuration, or of the file of one section, such as `algo`.

    It allows part of the keys, as a file of `conf/` or `config.yaml` has them. Rules that join several keys are not in
    it: the program checks them. Raises `KeyError` for an unknown section.
    """
    whole = _object(RunSections)
    found = whole if section is None else whole["properties"][section]
    if "properties" not in found:
        raise KeyError(section)
    properties = found["properties"] | {"defaults": {"type": "array", "description": "Hydra's list of groups"}}
    title = "offpolicy" if section is None else f"offpolicy {section}"
    return {"$schema": DIALECT, "title": title} | found | {"properties": properties}


def section_names() -> tuple[str, ...]:
    """Returns the names of the sections of a configuration."""
    hints = hints_of(RunSections)
    return tuple(name for name, hint in hints.items() if dataclasses.is_dataclass(hint))


def _object(cls: Any) -> Schema:  # Any: one of our configuration dataclasses
    hints = hints_of(cls)
    properties = {}
    for spec in dataclasses.fields(cls):
        hint = hints[spec.name]
        if dataclasses.is_dataclass(hint):
            doc = (hint.__doc__ or "").splitlines()[0]
            properties[spec.name] = {"description": doc} | _object(hint)
        else:
            properties[spec.name] = _key(spec, hint)
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _key(spec: dataclasses.Field[Any], hint: Any) -> Schema:  # Any: a type, or a union of types
    limits = spec.metadata
    names = ", ".join(owners(limits.get("only", ()))).upper()
    default: Schema = {} if spec.default is dataclasses.MISSING else {"default": _plain(spec.default)}
    return {"description": f"{names}: {limits['doc']}" if names else limits["doc"]} | default | _value(hint, limits)


def _plain(value: Any) -> Any:  # Any: a value of the configuration, and as JSON has it
    return list(value) if isinstance(value, tuple) else value


def _value(hint: Any, limits: Limits) -> Schema:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _any_of([_part(part, limits) for part in typing.get_args(hint)])
    return _part(hint, limits)


def _any_of(parts: list[Schema]) -> Schema:
    """Returns the alternatives, those of an alternative among them."""
    flat: list[Schema] = []
    for part in parts:
        flat += part.get("anyOf", [part])
    return flat[0] if len(flat) == 1 else {"anyOf": flat}


def _part(hint: Any, limits: Limits) -> Schema:
    if hint is types.NoneType:
        return {"type": "null"}
    if typing.get_origin(hint) is typing.Literal:
        return {"enum": list(typing.get_args(hint))}
    if hint is Ramp:
        return _ramp(limits)
    if typing.get_origin(hint) is tuple:
        (item, _) = typing.get_args(hint)
        return {"type": "array", "minItems": int(item is int), "items": _part(item, limits)}
    bounds = {word: limits[name] for name, word in BOUNDS.items() if name in limits}
    if hint is int:
        return {"anyOf": [{"type": "integer"} | bounds, GROUPED_DIGITS]}
    if hint is float:
        return {"type": "number"} | bounds
    if hint is bool:
        return {"type": "boolean"}
    if "choices" in limits:
        words = list(limits["choices"])
        return {"enum": words + [word == "true" for word in words if word in ("true", "false")]}
    return {"type": "string"} if hint is str else {"type": "object"}


def _ramp(limits: Limits) -> Schema:
    """Returns the schema of a schedule, whose ends may be at an open bound."""
    closed = {CLOSED.get(name, name): bound for name, bound in limits.items() if name in BOUNDS}
    schema = _object(Ramp)
    for end in ("start", "end"):
        schema["properties"][end] |= _part(float, closed)
    return schema | {"required": ["start", "end", "over"]}
