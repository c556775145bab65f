"""Arguments of Python programs: the names that `algo=` and `env=` take, and numbers, checked as on the command line."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np

from offpolicy.config.overrides import environment_ids, group_options
from offpolicy.errors import ConfigError


def algorithms() -> tuple[str, ...]:
    """Returns the names of the algorithms, as `algo=` takes them."""
    return group_options()["algo"]


def environments() -> Mapping[str, str]:
    """Returns the environments that `env=` takes: their Gymnasium ids by name.

    Any other Gymnasium id is given as `env.id=...`, also as `module:EnvId-v0`.
    """
    return environment_ids()


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
