"""Values of a saved JSON mapping, each checked when it is read: right digests prove nothing about the content."""

from __future__ import annotations

import math
import reprlib
from typing import Any

from offpolicy.errors import CheckpointError

LARGEST_COUNT = 2**53 - 1  # the largest count: all counters are exact as float64

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxstring = 2, 4, 4, 60


class Fields:
    """A saved mapping. Every reader raises `CheckpointError` with `where`, the key, what it got and what is allowed."""

    def __init__(self, where: object, value: Any) -> None:  # Any: JSON data of unknown shape, here and below
        if not isinstance(value, dict):
            raise CheckpointError(f"{where}: got {short(value)}, allowed a mapping")
        self.where, self._values = where, value

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def value(self, key: str) -> Any:
        """Returns a value of any type."""
        if key not in self._values:
            raise CheckpointError(f"{self.where}: {key}: got nothing, allowed a value: it is missing")
        return self._values[key]

    def refused(self, key: str, allowed: str) -> CheckpointError:
        """Returns the error of a value that is not allowed."""
        return CheckpointError(f"{self.where}: {key}: got {short(self.value(key))}, allowed {allowed}")

    def count(self, key: str, most: int = LARGEST_COUNT) -> int:
        """Returns a whole number from 0 to `most`."""
        value = self.value(key)
        if not is_count(value, most):
            raise self.refused(key, f"a whole number from 0 to {most}")
        return int(value)

    def number(self, key: str) -> float:
        """Returns a finite number."""
        value = self.value(key)
        if type(value) not in (int, float) or not -1e300 < value < 1e300:  # false for NaN; an int may be huge
            raise self.refused(key, "a finite number")
        return float(value)

    def flag(self, key: str) -> bool:
        """Returns true or false."""
        value = self.value(key)
        if type(value) is not bool:
            raise self.refused(key, "true or false")
        return value

    def text(self, key: str, most: int = 4096) -> str:
        """Returns a text of at most `most` characters."""
        value = self.value(key)
        if not isinstance(value, str) or len(value) > most:
            raise self.refused(key, f"a text of at most {most} characters")
        return value

    def optional_text(self, key: str) -> str | None:
        """Returns a text; None where it is null or missing."""
        return None if key not in self or self.value(key) is None else self.text(key)

    def counts(self, key: str, length: int | None = None, most: int = LARGEST_COUNT) -> list[int]:
        """Returns a list of `length` whole numbers from 0 to `most`; None: of any length."""
        value = self.value(key)
        is_list = isinstance(value, list) and length in (None, len(value))
        if not is_list or not all(is_count(number, most) for number in value):
            many = "" if length is None else f"{length} "
            raise self.refused(key, f"a list of {many}whole numbers from 0 to {most}")
        return list(value)

    def fields(self, key: str) -> Fields:
        """Returns a mapping inside this one."""
        return Fields(f"{self.where}: {key}", self.value(key))

    def octets(self, key: str, length: int | None = None) -> bytes:
        """Returns bytes that were saved as hexadecimal digits; `length`: how many, None: any number."""
        try:
            found = bytes.fromhex(self.text(key, most=1 << 20))
        except ValueError as error:
            raise self.refused(key, "hexadecimal digits") from error
        if length not in (None, len(found)):
            raise self.refused(key, f"{length} bytes in hexadecimal digits (it has {len(found)})")
        return found

    def digits(self, key: str, most: int) -> int:
        """Returns a whole number that was saved as text, from 0 to `most`."""
        value = self.value(key)
        is_number = isinstance(value, str) and len(value) <= len(str(most)) and value.isascii() and value.isdigit()
        if not is_number or int(value) > most:
            raise self.refused(key, f"the digits of a whole number from 0 to {most}")
        return int(value)

    def as_mapping(self) -> dict[str, Any]:
        """Returns a copy of the mapping."""
        return dict(self._values)


def is_count(value: Any, most: int = LARGEST_COUNT) -> bool:
    """True for a whole number from 0 to `most`; True and False are none."""
    return type(value) is int and 0 <= value <= most


def short(value: Any) -> str:
    """Returns a value in words, of at most a few hundred characters, however large or deep it is."""
    if type(value) is int and abs(value) > LARGEST_COUNT:
        return f"a whole number of {math.ceil(value.bit_length() * math.log10(2))} digits"
    text = _SHORT.repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
