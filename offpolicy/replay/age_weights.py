"""Weights of rows by their age: newer rows are drawn more often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AgeWeights:
    """Weights `max(floor, 1 - age / decay)` of rows, of which the newest has the age 0.

    This is Sample Weight Decay (arXiv:2604.01913), which WarpSAC took over. It needs no tree: the weights of all rows
    newer than a given one have a closed sum, and that sum has a closed inverse. A row's weight is that of its middle,
    at `age + 0.5`, as the sum is the integral of the weight over the age. `decay` is in rows of one ring; `floor` is
    in (0, 1], and 1 gives all rows the same weight. Arguments and results are arrays of `xp`, NumPy or torch, of
    float64.
    """

    decay: float
    floor: float

    def describe(self) -> str:
        """Returns the end of a source's line in the run's header."""
        return f"; rows weighted by age, down to {self.floor:g} after {self.knee:,.0f} rows of a ring"

    @property
    def knee(self) -> float:
        """The age at which the weight reaches the floor."""
        return self.decay * (1.0 - self.floor)

    def total(self, count: Any, xp: Any) -> Any:
        """Returns the weight of the newest `count` rows."""
        falling = xp.clip(count, None, self.knee)
        return falling - falling * falling / (2.0 * self.decay) + self.floor * (count - falling)

    def age(self, weight: Any, xp: Any) -> Any:
        """Returns the age up to which rows have the given weight in all: the inverse of `total`."""
        at_knee = self.knee * (1.0 + self.floor) / 2.0
        root = xp.sqrt(xp.clip(1.0 - 2.0 * weight / self.decay, 0.0, None))
        return xp.where(weight < at_knee, self.decay * (1.0 - root), self.knee + (weight - at_knee) / self.floor)
