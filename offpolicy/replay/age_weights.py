"""Weights of rows by their age: newer rows are drawn more often."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class AgeWeights:
    """Weights of rows by their age a, of which the newest has 0: w(a) = max(floor, 1 - a / decay).

    This is Sample Weight Decay (arXiv:2604.01913), which WarpSAC took over. It needs no tree: the weight of all rows
    newer than a given age is the integral of w, which has a closed form and a closed inverse, so a row's weight is that
    of its middle, at `a + 0.5`. The methods take NumPy arrays or torch tensors of any shape, float64, with their module
    as `xp`, and return such of the same shape.
    """

    decay: float  # transitions of one ring after which w would be 0
    floor: float  # in (0, 1]; with 1 all rows have the same weight

    def in_rows(self, share: float) -> AgeWeights:
        """Returns these weights with ages in rows of a ring, of which a share are transitions."""
        return replace(self, decay=self.decay / share)

    def describe(self) -> str:
        """Returns the end of a source's line in the run's header."""
        return f"; rows weighted by age, down to {self.floor:g} after {self.knee:,.0f} transitions of a ring"

    @property
    def knee(self) -> float:
        """The age at which w reaches the floor: decay (1 - floor)."""
        return self.decay * (1.0 - self.floor)

    def total(self, count: Any, xp: Any) -> Any:  # Any: an array of NumPy or torch, and that module
        """Returns the weight of the newest `count` rows. [...] -> [...].

        W(n) = m - m^2 / (2 decay) + floor (n - m), where m = min(n, knee): the integral of w from 0 to n.
        """
        falling = xp.clip(count, None, self.knee)
        return falling - falling * falling / (2.0 * self.decay) + self.floor * (count - falling)

    def age(self, weight: Any, xp: Any) -> Any:  # Any: an array of NumPy or torch, and that module
        """Returns the age up to which rows have the given weight in all: the inverse of `total`. [...] -> [...].

        With u uniform in [0, W(n)), `age(u)` is the age of a row drawn from n rows with weights w.
        W^-1(u) = decay (1 - sqrt(1 - 2 u / decay)) up to W(knee) = knee (1 + floor) / 2, then linear by 1 / floor.
        """
        at_knee = self.knee * (1.0 + self.floor) / 2.0
        root = xp.sqrt(xp.clip(1.0 - 2.0 * weight / self.decay, 0.0, None))
        return xp.where(weight < at_knee, self.decay * (1.0 - root), self.knee + (weight - at_knee) / self.floor)
