"""Numbers as a reader wants them: durations, rates, counts, losses; `-` where nothing is known."""

from __future__ import annotations

from collections.abc import Mapping

UNKNOWN = "-"


def number(record: Mapping[str, float | str | None], key: str) -> float | None:
    """The number under `key`, or None."""
    value = record.get(key)
    return None if value is None or isinstance(value, str) else value


def text(record: Mapping[str, float | str | None], key: str) -> str:
    """The text under `key`, or ''."""
    value = record.get(key)
    return value if isinstance(value, str) else ""


def duration(seconds: float | None) -> str:
    """`1:58`, `2:03:04` or `3d 4:05:06`."""
    if seconds is None:
        return UNKNOWN
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if not hours:
        return f"{minute}:{second:02d}"
    days, hour = divmod(hours, 24)
    clock = f"{hour}:{minute:02d}:{second:02d}"
    return f"{days}d {clock}" if days else clock


def rate(value: float | None) -> str:
    """One decimal below 1000, none from there on."""
    if value is None:
        return UNKNOWN
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


def fixed(value: float | None, decimals: int) -> str:
    """`decimals` places."""
    return UNKNOWN if value is None else f"{value:.{decimals}f}"


def significant(value: float | None) -> str:
    """Three significant digits in at most 7 characters, for losses and values of any size."""
    if value is None:
        return UNKNOWN
    mantissa, _, exponent = f"{value:#.3g}".partition("e")
    return mantissa.rstrip(".") + (f"e{int(exponent)}" if exponent else "")


def milliseconds(value: float | None) -> str:
    """Two decimals below 1000 ms, none from there on: a column of them fits 8 characters."""
    if value is None:
        return UNKNOWN
    return f"{value:.2f}" if value < 1000 else f"{value:,.0f}"


def count(value: float | None) -> str:
    """With thousands separators."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def percent(part: float | None, whole: float | None) -> str:
    """`part` of `whole` with one decimal."""
    return UNKNOWN if part is None or not whole else f"{100.0 * part / whole:.1f}%"
