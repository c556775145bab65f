"""Sums of matrix products, kept apart by shape: how many operations there are, and of which sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from offpolicy.types import Direction, Product


class Layer(NamedTuple):
    """What a row meets in one layer: `times` products of an input with the weights [inputs, outputs]."""

    inputs: int
    outputs: int
    times: int = 1

    def going(self, direction: Direction) -> Tally:
        """One pass through the layer."""
        return Tally({(direction, self): 1})


@dataclass(frozen=True, slots=True)
class Tally:
    """So many passes through each layer in each direction, per row."""

    counts: Mapping[tuple[Direction, Layer], float]

    def __add__(self, other: Tally) -> Tally:
        both = self.counts.keys() | other.counts.keys()
        return Tally({key: self.counts.get(key, 0) + other.counts.get(key, 0) for key in both})

    def __mul__(self, factor: float) -> Tally:
        return Tally({key: count * factor for key, count in self.counts.items()})

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Tally:
        return Tally({key: count / divisor for key, count in self.counts.items()})

    @property
    def flops(self) -> float:
        """Floating-point operations per row."""
        return sum(count * 2 * layer.times * layer.inputs * layer.outputs for (_, layer), count in self.counts.items())

    def products(self, rows: int) -> tuple[Product, ...]:
        """The products of a batch of `rows` rows, the same shapes joined, in a fixed order."""
        sizes: dict[tuple[Direction, int, int, int], float] = {}
        for (direction, layer), count in self.counts.items():
            size = direction, rows * layer.times, layer.inputs, layer.outputs
            sizes[size] = sizes.get(size, 0) + count
        return tuple(Product(*size, per_update=sizes[size]) for size in sorted(sizes))


def total(tallies: Iterable[Tally]) -> Tally:
    """All of them together."""
    return sum(tallies, start=Tally({}))
