"""Arguments of Python programs: the names that `algo=` and `env=` take, and numbers, checked as on the command line."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from offpolicy.config.overrides import environment_ids, group_options
from offpolicy.errors import ConfigError
from offpolicy.runs import find_run


def algorithms() -> tuple[str, ...]:
    """Returns the names of the algorithms, as `algo=` takes them."""
    return group_options()["algo"]


def environments() -> Mapping[str, str]:
    """Returns the environments that `env=` takes: their Gymnasium ids by name.

    Any other Gymnasium id is given as `env.id=...`, also as `module:EnvId-v0`.
    """
    return environment_ids()


@runtime_checkable
class HasRunDir(Protocol):
    """A run as an object: a `TrainedRun`, which imports this module."""

    @property
    def run_dir(self) -> Path:
        """Its directory."""
        ...


AnyRun = str | Path | HasRunDir


def path_of(run: object) -> Path:
    """Returns the directory of a run that a program names. Raises `ConfigError` where it names none, or several."""
    if isinstance(run, HasRunDir) and isinstance(run.run_dir, Path):  # a configuration's is text, or None
        return run.run_dir
    if isinstance(run, str | Path):
        return find_run(run)
    allowed = "a directory, latest, the beginning of a run's name, or a TrainedRun"
    raise ConfigError(f"run: got {kind(run)}, allowed {allowed}")


def kind(given: object) -> str:
    """Returns what a program has given in place of something else: None, or its type."""
    return "None" if given is None else f"a {type(given).__name__}"


def whole_number(name: str, given: object, least: int) -> int:
    """Returns a whole number, also one of NumPy's. Raises `ConfigError` for anything else and below `least`."""
    number = given.item() if isinstance(given, np.generic) else given
    if type(number) is int and number >= least:  # not a bool
        return number
    raise ConfigError(f"{name}: got {number!r}, allowed a whole number in [{least}, inf)")


def finite_number(name: str, given: object) -> float:
    """Returns a number, also one of NumPy's. Raises `ConfigError` for anything else, NaN and Inf."""
    number = given.item() if isinstance(given, np.generic) else given
    if isinstance(number, int | float) and not isinstance(number, bool) and abs(number) <= sys.float_info.max:
        return float(number)  # not math.isfinite: it raises for 10**400
    raise ConfigError(f"{name}: got {number!r}, allowed a finite number")
