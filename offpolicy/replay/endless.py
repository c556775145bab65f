"""A set of rows handed out for ever: cycle after cycle, each in an order of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offpolicy.seeding import generator
from offpolicy.types import Float32

Int64 = NDArray[np.int64]


class EndlessRows:
    """Every row once per cycle over all ranks; the order is a function of seed, path and cycle, so no order is saved.

    `path` tells one beginning from another: what is at the head of one's orders is not at the head of the other's.

    Rank r of R takes every R-th row of the order, beginning with number r: ranks never take the same one in a cycle.
    Raises `ValueError` if there are no rows.
    """

    def __init__(self, rows: Float32, seed: int, rank: int = 0, num_ranks: int = 1, path: Sequence[int] = ()) -> None:
        if not len(rows):
            raise ValueError("there are no rows to hand out")
        self.rows = rows  # [M, W]
        self.digest = hashlib.sha256(rows.tobytes()).hexdigest()[:16]  # which rows they are
        self.taken = 0  # rows this rank was given
        self._seed, self._rank, self._num_ranks, self._path = seed, rank, num_ranks, tuple(path)
        self._orders: dict[int, Int64] = {}  # by cycle, those in use

    @property
    def cycle(self) -> int:
        """The cycle that this rank's next row is of, from 0: as many are complete."""
        number: int = self._place(self.taken) // len(self.rows)
        return number

    def prepare(self, count: int) -> None:
        """Draw the orders that the next `count` rows need, and forget those that are done with."""
        needed = range(self.cycle, self._place(self.taken + max(count, 1) - 1) // len(self.rows) + 1)
        self._orders = {cycle: self._orders[cycle] if cycle in self._orders else self._order(cycle) for cycle in needed}

    def take(self, count: int) -> Int64:
        """Which rows are next. [count]."""
        self.prepare(count)
        place = self._place(np.arange(self.taken, self.taken + count))
        cycle, offset = np.divmod(place, len(self.rows))
        index = np.empty(count, np.int64)
        for number, order in self._orders.items():
            here = cycle == number
            index[here] = order[offset[here]]
        self.taken += count
        return index

    def state(self) -> dict[str, Any]:
        """JSON data from which another one goes on."""
        return {"taken": self.taken, "path": list(self._path)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.taken, self._path, self._orders = state["taken"], tuple(state["path"]), {}

    def _place(self, taken: Any) -> Any:  # Any: a number, or an array of them
        """Where this rank's row number `taken` stands in the cycles laid end to end."""
        return taken * self._num_ranks + self._rank

    def _order(self, cycle: int) -> Int64:
        return generator(self._seed, "demos", cycle, *self._path).permutation(len(self.rows))
