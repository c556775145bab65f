"""Sampling from the union of several rings, on the CPU, while they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offpolicy.replay.ring import Ring
from offpolicy.seeding import generator_state, set_generator_state
from offpolicy.types import Bool, Float32

Int64 = NDArray[np.int64]
ROWS_PER_SPARE = 32  # one row more is drawn for so many: enough where episodes have 60 steps or more
LEAST_SHARE = 0.05  # of rows that are transitions: even episodes of one step have half
MOST_TRIES = 100_000  # draws of a row that is no transition or was recycled, one after the other


class Bounds(NamedTuple):
    """The rows [first, last) of every ring that may be drawn, fixed at one instant."""

    first: tuple[int, ...]  # one per ring
    last: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """Rows of all rings."""
        return sum(self.last) - sum(self.first)


class Draw(NamedTuple):
    """The rows of a batch: for each, its ring and its logical index there."""

    ring: Int64  # [n]
    position: Int64  # [n]

    def part(self, start: int, stop: int) -> Draw:
        """Returns views of the rows [start, stop)."""
        return Draw(self.ring[start:stop], self.position[start:stop])


class UniformSampler:
    """Draws rows of the union of `rings` uniformly, with replacement, from the random stream `rng`.

    `guard` is the number of rows per ring that a writer may recycle before a batch is copied: those are not drawn.
    `capacity` is from how many transitions on a ring recycles, if that is more than this one holds: a ring of a short
    run has room for that run only, and never recycles. What is drawn does not depend on how long the run is to be.
    """

    def __init__(
        self, rings: Sequence[Ring], rng: np.random.Generator, guard: int, *, capacity: int | None = None
    ) -> None:
        self._rings, self.rng, self._guard = tuple(rings), rng, guard
        self._capacities = [ring.max_transitions if capacity is None else capacity for ring in self._rings]

    def bounds(self) -> Bounds:
        """Returns the rows of the replay that are readable now. Raises RuntimeError if there are none."""
        first, last = [], []
        for ring, capacity in zip(self._rings, self._capacities, strict=True):
            # `oldest` before `committed`: then first <= last, however far the writer gets in between.
            oldest, newest = ring.oldest, ring.committed
            # Rows about to be recycled are not drawn while there are plenty of others: a redraw would be likely.
            # A ring that is nearly full recycles before a batch is copied.
            is_full = oldest > 0 or ring.num_transitions + 2 * self._guard > capacity
            guard = self._guard if is_full and newest - oldest > 4 * self._guard else 0
            first.append(oldest + guard)
            last.append(newest)
        if first == last:
            raise RuntimeError("no ring holds a row to sample: the learner started before the collectors")
        return Bounds(tuple(first), tuple(last))

    def fill(self, out: Float32, bounds: Bounds | None = None) -> Draw:
        """Fills `out` [n, W] with rows of `bounds` (None: as of now) that were intact throughout the copy.

        Rows that are no transitions are drawn again, and those that the writers recycled before or during the copy,
        from those of the bounds that are not recycled, or from all that are readable by then if there are none. A few
        spare rows are drawn at once, as most often they are enough. Every transition has the same probability.
        """
        given = bounds or self.bounds()
        count = len(out)
        spare = count // ROWS_PER_SPARE if self._rings[0].num_envs else 0
        drawn = self._draw(given, count + spare)
        draw = drawn.part(0, count) if spare else drawn
        intact = self._read(draw, out, given)
        if np.count_nonzero(intact) < count:
            stale = (~intact).nonzero()[0]
            if len(stale) <= spare:
                stale = self._replace(stale, draw, drawn.part(count, count + spare), out)
            if len(stale):
                self._draw_again(stale, draw, out, given)
        return draw

    def _replace(self, stale: Int64, draw: Draw, spare: Draw, out: Float32) -> Int64:
        """Replaces the rows `stale` [m] of a batch by `spare` ones, one by one; returns those for which none is left.

        A few rows are read in less time than NumPy needs to put an array of them to their places.
        """
        left = stale.tolist()
        for ring, index in zip(spare.ring.tolist(), spare.position.tolist(), strict=True):
            if not left:
                break
            row = left[-1]
            if self._rings[ring].read_row(index, out[row]):
                draw.ring[row], draw.position[row] = ring, index
                left.pop()
        return np.array(left, np.int64)

    def _draw_again(self, stale: Int64, draw: Draw, out: Float32, given: Bounds) -> None:
        """Replaces the rows `stale` [m] of a batch by others that are transitions and intact."""
        tries = 0
        while len(stale):
            tries += 1
            if tries > MOST_TRIES:
                raise RuntimeError("no row of the replay is a transition, or all are recycled while they are read")
            left = self._left_of(given)
            again = self._draw(left, len(stale))
            rows = np.empty((len(stale), out.shape[1]), dtype=out.dtype)
            intact = self._read(again, rows, left)
            filled = stale[intact]
            out[filled] = rows[intact]
            draw.ring[filled], draw.position[filled] = again.ring[intact], again.position[intact]
            stale = stale[~intact]

    def _left_of(self, given: Bounds) -> Bounds:
        """Returns the bounds without the rows that were recycled since; those of now if that leaves none."""
        if all(ring.oldest <= first for ring, first in zip(self._rings, given.first, strict=True)):
            return given
        now = self.bounds()
        later = map(max, given.first, now.first)
        left = Bounds(tuple(map(min, later, given.last)), given.last)
        return left if left.num_rows else now

    def state(self) -> dict[str, Any]:
        """Returns JSON data from which another sampler fills the same batches."""
        return generator_state(self.rng)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        set_generator_state(self.rng, state)

    def describe(self) -> str:
        """Returns the end of a source's line in the run's header."""
        return ""

    def _draw(self, bounds: Bounds, count: int) -> Draw:
        """Draws positions in the rings laid end to end: every row has the same probability, but for 2^-53 of them all.

        A double in [0, 1) times their number is drawn in half the time of a bounded integer.
        """
        share = self.rng.random(count)
        np.multiply(share, np.array(float(bounds.num_rows)), out=share)  # arrays: NumPy takes longer for a number
        position = np.empty(count, np.int64)
        position[:] = share  # rounds down
        if len(self._rings) == 1:
            if bounds.first[0]:
                np.add(position, np.array(bounds.first[0]), out=position)
            return Draw(np.zeros(count, np.int64), position)
        first, last = np.array(bounds.first), np.array(bounds.last)
        ends = np.cumsum(last - first)
        ring = np.searchsorted(ends, position, side="right")
        return Draw(ring, position + (last - ends)[ring])

    def _read(self, draw: Draw, out: Float32, bounds: Bounds) -> Bool:
        """Copies rows of `bounds` into `out` [n, W]; returns a mask [n] of those that were intact throughout."""
        if len(self._rings) == 1:
            return self._rings[0].read(draw.position, out, bounds.first[0])
        intact = np.empty(len(out), dtype=np.bool_)
        for number, ring in enumerate(self._rings):
            here = np.flatnonzero(draw.ring == number)
            rows = np.empty((len(here), out.shape[1]), dtype=out.dtype)
            intact[here] = ring.read(draw.position[here], rows, bounds.first[number])
            out[here] = rows
        return intact


class SampleAges:
    """Age of the rows handed out.

    An age is the number of transitions written since, to all rings of this host. Rings are written at the same pace, so
    it is the age in the row's own ring times the number of rings.
    """

    def __init__(self, rings: Sequence[Ring]) -> None:
        self._rings = tuple(rings)
        self.samples = 0
        self._age_sum = 0.0  # in transitions, of those that were converted
        self._rows = 0  # ages in rows of the own ring, which were not

    def convert(self) -> float:
        """Returns the sum of the ages over `samples`, in transitions.

        Those of rows since the last call are converted by the share of transitions of now.
        """
        self._age_sum += len(self._rings) * share_of_transitions(self._rings) * self._rows
        self._rows = 0
        return self._age_sum

    def add(self, draw: Draw) -> None:
        """Counts rows that are handed out now."""
        self.samples += len(draw.position)
        if len(self._rings) == 1:
            newest = len(draw.position) * self._rings[0].committed
        else:
            newest = int(np.array([ring.committed for ring in self._rings])[draw.ring].sum())
        self._rows += newest - int(draw.position.sum())


def share_of_transitions(rings: Sequence[Ring]) -> float:
    """Returns the share of the rows of `rings` that are transitions; nearly, while they are written."""
    if not rings[0].num_envs:
        return 1.0
    num_rows = sum(ring.committed - ring.kept_from for ring in rings)
    num_transitions = sum(ring.num_transitions for ring in rings)
    return min(max(num_transitions / num_rows, LEAST_SHARE), 1.0) if num_rows > 0 else 1.0
