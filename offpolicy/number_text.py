"""Texts of numbers of any size. The process that evaluates shows them, and so does the logger."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Returns `1 thread`, `2,000 threads`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def three_digits(value: float) -> str:
    """Returns three significant digits: `0.0123`, `-812`, `1.23e7`."""
    mantissa, _, exponent = f"{value:z#.3g}".partition("e")
    return mantissa.rstrip(".") + (f"e{int(exponent)}" if exponent else "")


def return_text(value: float, thousands: str = "") -> str:
    """Returns a return with one decimal, a small or huge one with three significant digits.

    `thousands` separates groups of three digits.
    """
    if value == 0.0 or 9.995 <= abs(value) < 999_999.95:  # noqa: PLR2004  # rounds to 10.0, and to 999,999.9
        return f"{value:z{thousands}.1f}"
    return three_digits(value)
