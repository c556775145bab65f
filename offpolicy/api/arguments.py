"""Arguments of Python programs, held to what the command line allows of its own."""

from __future__ import annotations

import sys

from offpolicy.api.runs import plain_value
from offpolicy.errors import ConfigError


def whole_number(name: str, given: object, least: int) -> int:
    """Returns a whole number, also one of NumPy's. Raises `ConfigError` for anything else and below `least`."""
    number = plain_value(given)
    if type(number) is int and number >= least:  # not a bool
        return number
    raise ConfigError(f"{name}: got {number!r}, allowed a whole number in [{least}, inf)")


def finite_number(name: str, given: object) -> float:
    """Returns a number, also one of NumPy's. Raises `ConfigError` for anything else, NaN and Inf."""
    number = plain_value(given)
    if type(number) in (int, float) and abs(number) <= sys.float_info.max:  # not math.isfinite: 10**400 raises
        return float(number)
    raise ConfigError(f"{name}: got {number!r}, allowed a finite number")
