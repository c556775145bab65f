"""Sampling from the union of several rings, on the CPU, while they are written; demonstrations are mixed in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offpolicy.replay.demonstrations import Demonstrations
from offpolicy.replay.replay_ring import ReplayRing
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


class Draw(NamedTuple):
    """The rows of a batch: for each, its ring and its logical index there."""

    ring: Int64  # [n]
    position: Int64  # [n]

    def part(self, start: int, stop: int) -> Draw:
        """Returns views of the rows [start, stop)."""
        return Draw(self.ring[start:stop], self.position[start:stop])


class Sampler:
    """Draws rows of the union of `rings` uniformly, with replacement, from the random stream `rng`.

    `guard` is the number of rows per ring that a writer may recycle before a batch is copied: those are not drawn.
    `capacity` is from how many transitions on a ring recycles, if that is more than this one holds: a ring of a short
    run has room for that run only, and never recycles. What is drawn does not depend on how long the run is to be.
    In every batch `demos` come last. They have no age, so they are in no `Draw`, and take no number from `rng`.
    """

    def __init__(
        self,
        rings: Sequence[ReplayRing],
        rng: np.random.Generator,
        guard: int,
        *,
        capacity: int | None = None,
        demos: Demonstrations | None = None,
    ) -> None:
        self.rings, self._rng, self._guard, self._demos = tuple(rings), rng, guard, demos
        self.description = "" if demos is None else demos.description  # the end of a source's line in the run's header
        self._capacities = [ring.max_transitions if capacity is None else capacity for ring in self.rings]
        self.samples = 0  # rows of the replay that were handed out
        self._age_sum = 0.0  # in transitions, of those that were converted
        self._rows = 0  # ages in rows of the own ring, which were not

    def bounds(self) -> Bounds:
        """Returns the rows of the replay that are readable now. Raises RuntimeError if there are none."""
        first, last = [], []
        for ring, capacity in zip(self.rings, self._capacities, strict=True):
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
        """Fills `out` [U * B, W] with batches of rows of `bounds`, None: as of now; returns those of the replay."""
        if self._demos is None:
            return self._fill(out, bounds or self.bounds())
        demos, width = self._demos, out.shape[1]
        num_fresh = demos.batch_size - demos.per_batch
        batches = out.reshape(-1, demos.batch_size, width)
        fresh = np.empty((len(batches) * num_fresh, width), np.float32)
        draw = self._fill(fresh, bounds or self.bounds())
        batches[:, :num_fresh] = fresh.reshape(len(batches), num_fresh, width)
        batches[:, num_fresh:] = demos.rows[demos.take(len(batches))].reshape(len(batches), demos.per_batch, width)
        return draw

    def _fill(self, out: Float32, given: Bounds) -> Draw:
        """Fills `out` [n, W] with rows of `given` that were intact throughout the copy.

        Rows that are no transitions are drawn again, and those that the writers recycled before or during the copy,
        from those of the bounds that are not recycled, or from all that are readable by then if there are none. A few
        spare rows are drawn at once, as most often they are enough. Every transition has the same probability.
        """
        count = len(out)
        drawn = self._draw(given, count + count // ROWS_PER_SPARE)
        draw = drawn.part(0, count)
        intact = self._read(draw, out, given)
        if np.count_nonzero(intact) < count:
            stale = (~intact).nonzero()[0]
            if len(stale) <= count // ROWS_PER_SPARE:
                stale = self._replace(stale, draw, drawn.part(count, len(drawn.position)), out)
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
            if self.rings[ring].read_row(index, out[row]):
                draw.ring[row], draw.position[row] = ring, index
                left.pop()
        return np.array(left, np.int64)

    def _draw_again(self, stale: Int64, draw: Draw, out: Float32, given: Bounds) -> None:
        """Replaces the rows `stale` [m] of a batch by others that are transitions and intact."""
        for _ in range(MOST_TRIES):
            left = self._left_of(given)
            again = self._draw(left, len(stale))
            rows = np.empty((len(stale), out.shape[1]), dtype=out.dtype)
            intact = self._read(again, rows, left)
            filled = stale[intact]
            out[filled] = rows[intact]
            draw.ring[filled], draw.position[filled] = again.ring[intact], again.position[intact]
            stale = stale[~intact]
            if not len(stale):
                return
        raise RuntimeError("no row of the replay is a transition, or all are recycled while they are read")

    def _left_of(self, given: Bounds) -> Bounds:
        """Returns the bounds without the rows that were recycled since; those of now if that leaves none."""
        if all(ring.oldest <= first for ring, first in zip(self.rings, given.first, strict=True)):
            return given
        now = self.bounds()
        later = map(max, given.first, now.first)
        left = Bounds(tuple(map(min, later, given.last)), given.last)
        return now if left.first == left.last else left

    def _draw(self, bounds: Bounds, count: int) -> Draw:
        """Draws positions in the rings laid end to end: every row has the same probability, but for 2^-53 of them all.

        A double in [0, 1) times their number is drawn in half the time of a bounded integer.
        """
        share = self._rng.random(count)
        num_rows = sum(bounds.last) - sum(bounds.first)
        np.multiply(share, np.array(float(num_rows)), out=share)  # arrays: NumPy takes longer for a number
        position = np.empty(count, np.int64)
        position[:] = share  # rounds down
        if len(self.rings) == 1:
            if bounds.first[0]:
                np.add(position, np.array(bounds.first[0]), out=position)
            return Draw(np.zeros(count, np.int64), position)
        first, last = np.array(bounds.first), np.array(bounds.last)
        ends = np.cumsum(last - first)
        ring = np.searchsorted(ends, position, side="right")
        return Draw(ring, position + (last - ends)[ring])

    def _read(self, draw: Draw, out: Float32, bounds: Bounds) -> Bool:
        """Copies rows of `bounds` into `out` [n, W]; returns a mask [n] of those that were intact throughout."""
        if len(self.rings) == 1:
            return self.rings[0].read(draw.position, out, bounds.first[0])
        intact = np.empty(len(out), dtype=np.bool_)
        for number, ring in enumerate(self.rings):
            here = np.flatnonzero(draw.ring == number)
            rows = np.empty((len(here), out.shape[1]), dtype=out.dtype)
            intact[here] = ring.read(draw.position[here], rows, bounds.first[number])
            out[here] = rows
        return intact

    def hand_out(self, draw: Draw) -> None:
        """Counts rows that are handed out now, and their ages."""
        self.samples += len(draw.position)
        if len(self.rings) == 1:
            newest = len(draw.position) * self.rings[0].committed
        else:
            newest = int(np.array([ring.committed for ring in self.rings])[draw.ring].sum())
        self._rows += newest - int(draw.position.sum())

    @property
    def age_sum(self) -> float:
        """Sum over `samples` of the row's age: the transitions written since, to all rings of this host.

        Rings are written at the same pace, so it is the age in the row's own ring times the number of rings. Ages of
        rows since the last call are converted by the share of transitions of now.
        """
        self._age_sum += len(self.rings) * share_of_transitions(self.rings) * self._rows
        self._rows = 0
        return self._age_sum

    def state(self) -> dict[str, Any]:
        """Returns JSON data from which another sampler fills the same batches."""
        state = generator_state(self._rng)
        return state if self._demos is None else {**state, "demos": self._demos.state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        set_generator_state(self._rng, state)
        if self._demos is not None:
            self._demos.set_state(state["demos"])


def share_of_transitions(rings: Sequence[ReplayRing]) -> float:
    """Returns the share of the rows of `rings` that are transitions; nearly, while they are written."""
    num_rows = sum(ring.committed - ring.kept_from for ring in rings)
    num_transitions = sum(ring.num_transitions for ring in rings)
    return min(max(num_transitions / num_rows, LEAST_SHARE), 1.0) if num_rows > 0 else 1.0
