"""The three numbers that stand for repeated measurements."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple


class Spread(NamedTuple):
    """Median and range of repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """The spread of at least one sample."""
        return cls(median(samples), min(samples), max(samples))
