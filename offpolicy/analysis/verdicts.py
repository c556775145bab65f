"""A quantity of several labels beside that of the first: its change, and in one word what to think of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from offpolicy.analysis.intervals import Interval
from offpolicy.analysis.resampling import Drawn, Values, difference_interval, draw

LEAST_CHANGE = 0.02  # of a phase or rate: less does not matter to anybody
NOISE, UNKNOWN = "noise", ""


class Cell(NamedTuple):
    """A group's value; how it differs from the first's, as a share of that or (`is_relative` false) as it is."""

    value: float
    change: Interval | None = None
    verdict: str = UNKNOWN
    remark: str = ""  # instead of a value


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of all groups."""

    title: str
    cells: tuple[Cell, ...]
    is_relative: bool = True
    is_sum: bool = False  # of rows above it


class Section(NamedTuple):
    """Rows of one clock or kind."""

    title: str
    rows: list[Row]


class Words(NamedTuple):
    """What is said of less and of more."""

    less: str
    more: str


TIME, SPEED, AMOUNT = Words("faster", "slower"), Words("slower", "faster"), Words("lower", "higher")
RETURN = Words("worse", "better")


def drawn_of(values: list[Values], seed: int) -> Drawn | None:
    """The mean of a label's runs with its draws; None where they have no values."""
    return draw(values, seed) if values else None


def row_of(title: str, drawn: Sequence[Drawn | None], words: Words, least: float, *, is_sum: bool = False) -> Row:
    """A row of relative changes; one of less than `least`, or than `LEAST_CHANGE` of the first's value, is noise."""
    first = drawn[0]
    cells: list[Cell] = []
    for index, found in enumerate(drawn):
        if found is None:
            cells.append(Cell(math.nan))
        elif first is None or index == 0:
            cells.append(Cell(found.mean))
        else:
            difference = difference_interval(found, first)
            verdict = verdict_of(difference, words, max(least, LEAST_CHANGE * abs(first.mean)))
            cells.append(Cell(found.mean, relative(difference, first.mean), verdict))
    return Row(title, tuple(cells), is_sum=is_sum)


def relative(difference: Interval, first: float) -> Interval | None:
    """A difference of two positive quantities as a share of the first: nothing falls by more than all of it."""
    if first <= 0.0 or math.isnan(difference.low):
        return None
    return Interval(*(max(-1.0, number / first) for number in difference))


def verdict_of(difference: Interval, words: Words, least: float) -> str:
    """Noise where the interval holds 0 or the difference is below `least`; nothing where there is no interval."""
    if not math.isfinite(difference.low + difference.high):
        return UNKNOWN
    if difference.low <= 0.0 <= difference.high or abs(difference.value) < least:
        return NOISE
    return words.less if difference.value < 0.0 else words.more
