"""Arguments of Python programs, held to what the command line allows of its own."""

from __future__ import annotations

import sys

import numpy as np

from offpolicy.errors import ConfigError


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
