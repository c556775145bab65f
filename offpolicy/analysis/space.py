"""The search space of a sweep: a YAML file of keys with what each may be, checked before anything starts."""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import math
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from offpolicy.config.overrides import NAMED_BY, as_override, group_options
from offpolicy.config.parsing import NO_CLASSES, Parser, allowed_text, is_within, nested
from offpolicy.config.run_files import read_values
from offpolicy.config.schema import RunConfig, specs
from offpolicy.errors import ConfigError

OWN_KEYS = ("seed", "run_dir", "resume")  # what the sweep sets itself, or cannot share between runs
RANGE = ("low", "high", "log", "step")
LARGEST = 2**53  # whole numbers below it are exact as floats
FORM = "{low: 0.0001, high: 0.01, log: true}, {low: 1, high: 8, step: 1} or {values: [64, 128]}"
Value = Any  # a value of the configuration: number, word, or list of numbers


@dataclass(frozen=True, slots=True)
class Parameter:
    """One key and what it may be: some values, or a range."""

    key: str
    values: tuple[Value, ...] = ()  # empty: a range
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    step: float | None = None
    is_whole: bool = False  # a range of whole numbers

    def holds(self, value: Value) -> bool:
        """True if the parameter may have this value."""
        if self.values:
            return any(is_same(each, value) for each in self.values)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not self.low <= value <= self.high or (self.is_whole and value != int(value)):
            return False
        if self.step is None:
            return True
        return math.isclose((value - self.low) / self.step, round((value - self.low) / self.step), abs_tol=1e-9)

    @property
    def extremes(self) -> tuple[Value, ...]:
        """The values that must be allowed: all of some, both ends of a range."""
        ends = (int(self.low), int(self.high)) if self.is_whole else (self.low, self.high)
        return self.values or ends


@dataclass(frozen=True, slots=True)
class Space:
    """The parameters of a sweep."""

    parameters: tuple[Parameter, ...]

    def digest(self, words: typing.Sequence[str]) -> str:
        """Returns a digest of the parameters and of what all trials have in common."""
        content = json.dumps([[asdict(each) for each in self.parameters], list(words)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


def read_space(file: Path) -> Space:
    """Returns the space of a YAML file. Raises `ConfigError` with every problem, each with its key."""
    tree = read_values(file, "a mapping such as {parameters: {algo.gamma: {low: 0.9, high: 0.999}}}")
    problems: list[str] = []
    if unknown := [str(key) for key in tree if key != "parameters"]:
        problems.append(f"{file}: got {', '.join(unknown)}, allowed parameters; other keys go on the command line")
    raw = tree.get("parameters")
    if not isinstance(raw, Mapping) or not raw:
        problems.append(f"{file}: parameters: got {raw!r}, allowed a mapping of keys, each with {FORM}")
        raise ConfigError(problems)
    found = [_parameter(str(key), each, f"{file}: parameters.{key}", problems) for key, each in raw.items()]
    problems += [
        f"{file}: parameters.{key}: not allowed beside parameters.{other}, which holds it"
        for key, other in itertools.permutations(map(str, raw), 2)
        if is_within(key, (other,))
    ]
    if problems:
        raise ConfigError(problems)
    return Space(tuple(each for each in found if each is not None))


def _parameter(key: str, raw: Any, where: str, problems: list[str]) -> Parameter | None:  # Any: not checked yet
    if key in (*OWN_KEYS, "config"):
        problems.append(f"{where}: not allowed, the sweep sets it")
        return None
    group, options = NAMED_BY.get(key, key), group_options()
    if group in options:
        problems.append(
            f"{where}: not allowed: one sweep for each of them, such as {group}={options[group][0]} on the command line"
        )
        return None
    if key not in specs() and not is_within(key, ("env.kwargs",)):
        near = difflib.get_close_matches(key, specs(), 1)
        problems.append(f"{where}: unknown key" + (f"; did you mean {near[0]}?" if near else ""))
        return None
    if not isinstance(raw, Mapping) or not (raw.keys() == {"values"} or {"low", "high"} <= raw.keys() <= set(RANGE)):
        problems.append(f"{where}: got {raw!r}, allowed {FORM}")
        return None
    found = _some(key, raw["values"], where, problems) if "values" in raw else _range(key, raw, where, problems)
    if found is None:
        return None
    bad = [value for value in found.extremes if not (_is_plain(value) and _is_fit(key, value))]
    problems += [f"{where}: got {value!r}, allowed {_allowed(key)}" for value in bad]
    return None if bad else found


def _is_fit(key: str, value: Value) -> bool:
    parser = Parser(specs(), NO_CLASSES)
    parser.build(RunConfig, nested({key: value}))
    return not parser.problems


def _allowed(key: str) -> str:
    """Returns what a key takes, in words."""
    if key not in specs():  # an argument of the environment
        return "a number, a text, true, false, null, or a list or mapping of them"
    return allowed_text(specs()[key].hint, specs()[key].limits)


def _is_plain(value: Any) -> bool:  # Any: not checked yet
    """True for what the command line can say; a date of YAML is not."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _some(key: str, values: Any, where: str, problems: list[str]) -> Parameter | None:
    if not isinstance(values, list) or len(values) < 2:
        problems.append(f"{where}.values: got {values!r}, allowed a list of two or more values")
        return None
    if twice := [value for index, value in enumerate(values) if any(is_same(value, each) for each in values[:index])]:
        problems.append(f"{where}.values: got {twice[0]!r} twice, allowed each value once")
        return None
    return Parameter(key, tuple(tuple(each) if isinstance(each, list) else each for each in values))


def _range(key: str, raw: Mapping[str, Any], where: str, problems: list[str]) -> Parameter | None:
    before = len(problems)
    bounds = {name: _number(raw.get(name), f"{where}.{name}", problems) for name in ("low", "high")}
    step = None if raw.get("step") is None else _number(raw["step"], f"{where}.step", problems)
    is_log = raw.get("log", False)
    if not isinstance(is_log, bool):
        problems.append(f"{where}.log: got {is_log!r}, allowed true or false")
    if len(problems) > before:
        return None
    is_whole = _is_whole(key, raw)
    if is_whole:
        given = {**bounds, **({} if step is None else {"step": step})}
        fractions = [name for name, number in given.items() if number != int(number)]
        problems += [f"{where}.{name}: got {given[name]:g}, allowed a whole number" for name in fractions]
        huge = [name for name, number in given.items() if abs(number) >= LARGEST]
        problems += [f"{where}.{name}: got {raw[name]}, allowed a number between -2**53 and 2**53" for name in huge]
    low, high = bounds["low"], bounds["high"]
    if not low < high:
        problems.append(f"{where}: got low={low:g} high={high:g}, allowed low below high")
    if is_log and (low <= 0 or step is not None):
        problems.append(f"{where}.log: got true, allowed with low above 0 and without step")
    if step is not None and not 0 < step <= high - low:
        problems.append(f"{where}.step: got {step:g}, allowed more than 0 and at most high - low")
    elif step is not None and (Fraction(str(high)) - Fraction(str(low))) % Fraction(str(step)):
        problems.append(f"{where}.step: got {step:g}, allowed one that divides high - low: high would never be tried")
    return None if len(problems) > before else Parameter(key, (), low, high, is_log, step, is_whole)


def _number(value: Any, where: str, problems: list[str]) -> float:  # Any: not checked yet
    try:  # YAML reads 1e-4 as text: it wants 1.0e-4
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        problems.append(f"{where}: got {value!r}, allowed a number")
    return number


def _is_whole(key: str, raw: Mapping[str, Any]) -> bool:
    """True for a range of whole numbers: as the key is declared, or, of an argument of the environment, as written."""
    if key not in specs():
        return all(isinstance(raw[name], int) for name in ("low", "high", "step") if raw.get(name) is not None)
    hint = specs()[key].hint
    return hint is int or int in typing.get_args(hint)


def is_same(one: Value, other: Value) -> bool:
    """True if two values are one, though written in other ways: 1 and 1.0 are, 1 and true are not."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def words_of(values: Mapping[str, Value]) -> list[str]:
    """Returns values by key as overrides of the command line."""
    return [f"{key}={as_override(value)}" for key, value in values.items()]
