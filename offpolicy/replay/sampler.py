"""Uniform sampling from the union of several rings, on the CPU, while they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from offpolicy.replay.ring import Ring
from offpolicy.seeding import generator_state, set_generator_state
from offpolicy.types import Bool, Float32

Int64 = NDArray[np.int64]
Codes = NDArray[np.uint32]
ROWS_PER_SPARE = 32  # one row more is drawn for so many: enough where episodes have 60 steps or more
LEAST_SHARE = 0.05  # of rows that are transitions: even episodes of one step have half
MOST_TRIES = 100_000  # draws of a row that is no transition or was recycled, one after the other


@dataclass(frozen=True, slots=True)
class Bounds:
    """The rows [first, last) of every ring that may be drawn, fixed at one instant."""

    first: tuple[int, ...]  # one per ring
    last: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """Rows of all rings."""
        return sum(self.last) - sum(self.first)


@dataclass(frozen=True, slots=True)
class Draw:
    """The rows of a batch: for each, its ring and its logical index there."""

    ring: Int64  # [n]
    index: Int64  # [n]


class Sampler(Protocol):
    """Fills batches on the host."""

    def bounds(self) -> Bounds:
        """Returns the rows of the replay that are readable now. Raises RuntimeError if there are none."""
        ...

    def has_written(self, bounds: Bounds) -> bool:
        """True if every row of `bounds` was written once: not in a run that was resumed without its replay."""
        ...

    @property
    def has_preparation(self) -> bool:
        """False if `prepare` never does anything."""
        ...

    def prepare(self, num_batches: int) -> None:
        """Prepares what the next batches need besides the replay; its time counts as waiting, not as gathering."""
        ...

    def fill(self, out: Float32, bounds: Bounds | None = None) -> Draw:
        """Fills `out` [n, W], whole batches; returns which of the rows came from the replay, batch by batch."""
        ...

    def state(self) -> dict[str, Any]:
        """Returns JSON data from which another sampler fills the same batches."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        ...

    def describe(self) -> str:
        """Returns the end of a source's line in the run's header."""
        ...


class UniformSampler:
    """Draws rows of the union of `rings` uniformly, with replacement, from the random stream `rng`.

    `guard` is the number of rows per ring that a writer may recycle before a batch is copied: those are not drawn.
    """

    def __init__(self, rings: Sequence[Ring], rng: np.random.Generator, guard: int) -> None:
        self._rings, self.rng, self._guard = tuple(rings), rng, guard

    def bounds(self) -> Bounds:
        first, last = [], []
        for ring in self._rings:
            # `oldest` before `committed`: then first <= last, however far the writer gets in between.
            oldest, newest = ring.oldest, ring.committed
            # Rows about to be recycled are not drawn while there are plenty of others: a redraw would be likely.
            guard = self._guard if oldest and newest - oldest > 4 * self._guard else 0
            first.append(oldest + guard)
            last.append(newest)
        bounds = Bounds(tuple(first), tuple(last))
        if not bounds.num_rows:
            raise RuntimeError("no ring holds a row to sample: the learner started before the collectors")
        return bounds

    def fill(self, out: Float32, bounds: Bounds | None = None) -> Draw:
        """Fills `out` [n, W] with rows of `bounds` (None: as of now) that were intact throughout the copy.

        Rows that are no transitions are drawn again, and those that the writers recycled before or during the copy,
        from those of the bounds that are not recycled, or from all that are readable by then if there are none.
        """
        given = bounds or self.bounds()
        draw, codes = self._draw(given, len(out))
        intact = self._read(draw, codes, out)
        if np.count_nonzero(intact) < len(intact):
            self._draw_again(np.flatnonzero(~intact), draw, out, given)
        return draw

    def _draw_again(self, stale: Int64, draw: Draw, out: Float32, given: Bounds) -> None:
        """Replaces the rows `stale` [m] of a batch by others that are transitions and intact."""
        tries = 0
        while len(stale):
            tries += 1
            if tries > MOST_TRIES:
                raise RuntimeError("no row of the replay is a transition, or all are recycled while they are read")
            again, codes = self._draw(self._left_of(given), len(stale))
            rows = np.empty((len(stale), out.shape[1]), dtype=out.dtype)
            intact = self._read(again, codes, rows)
            filled = stale[intact]
            out[filled], draw.ring[filled], draw.index[filled] = rows[intact], again.ring[intact], again.index[intact]
            stale = stale[~intact]

    def _left_of(self, given: Bounds) -> Bounds:
        """Returns the bounds without the rows that were recycled since; those of now if that leaves none."""
        if all(ring.oldest <= first for ring, first in zip(self._rings, given.first, strict=True)):
            return given
        now = self.bounds()
        later = map(max, given.first, now.first)
        left = Bounds(tuple(map(min, later, given.last)), given.last)
        return left if left.num_rows else now

    def has_written(self, bounds: Bounds) -> bool:
        return all(ring.committed >= last for ring, last in zip(self._rings, bounds.last, strict=True))

    has_preparation = False

    def prepare(self, num_batches: int) -> None:
        """Nothing: the rows all come from the replay."""

    def state(self) -> dict[str, Any]:
        return generator_state(self.rng)

    def set_state(self, state: dict[str, Any]) -> None:
        set_generator_state(self.rng, state)

    def describe(self) -> str:
        return ""

    def _draw(self, bounds: Bounds, count: int) -> tuple[Draw, Codes | None]:
        """Draws rows, transitions as far as possible; returns them and their codes, if the rings have any.

        Of `count` and some spare ones, the first `count` that are transitions are taken, so all are equally likely. If
        there are not as many, others come last. To read the codes alone is quick, and brings the rows nearer.
        """
        draw = self._positions(bounds, count + count // ROWS_PER_SPARE if self._rings[0].num_envs else count)
        codes = self._codes(draw)
        if codes is None:
            return draw, None
        chosen: slice | Int64 = slice(count)
        if np.count_nonzero(codes[chosen]) < count:
            chosen = np.argsort(codes == 0, kind="stable")[:count]
        return Draw(draw.ring[chosen], draw.index[chosen]), codes[chosen]

    def _positions(self, bounds: Bounds, count: int) -> Draw:
        """Draws positions in the rings laid end to end: every row has the same probability, but for 2^-53 of them all.

        A double in [0, 1) times their number is drawn in half the time of a bounded integer.
        """
        share = self.rng.random(count)
        share *= bounds.num_rows
        position = share.astype(np.int64)
        if len(self._rings) == 1:
            position += bounds.first[0]
            return Draw(np.zeros(count, dtype=np.int64), position)
        first, last = np.array(bounds.first), np.array(bounds.last)
        ends = np.cumsum(last - first)
        ring = np.searchsorted(ends, position, side="right")
        return Draw(ring, position + (last - ends)[ring])

    def _codes(self, draw: Draw) -> Codes | None:
        """Returns the codes [n] of rows, or None if they have none."""
        if len(self._rings) == 1 or not self._rings[0].num_envs:
            return self._rings[0].codes(draw.index)
        found = np.zeros(len(draw.index), np.uint32)
        for number, ring in enumerate(self._rings):
            here = np.flatnonzero(draw.ring == number)
            found[here] = ring.codes(draw.index[here])
        return found

    def _read(self, draw: Draw, codes: Codes | None, out: Float32) -> Bool:
        """Copies the rows into `out` [n, W]; returns a mask [n] of those that were intact throughout."""
        if len(self._rings) == 1:
            return self._rings[0].read(draw.index, out, codes)
        intact = np.empty(len(out), dtype=np.bool_)
        for number, ring in enumerate(self._rings):
            here = np.flatnonzero(draw.ring == number)
            rows = np.empty((len(here), out.shape[1]), dtype=out.dtype)
            intact[here] = ring.read(draw.index[here], rows, None if codes is None else codes[here])
            out[here] = rows
        return intact


class SampleAges:
    """Age of the rows handed out.

    An age is the number of transitions written since, to all rings. Rings are written at the same pace, so it is the
    age in the row's own ring times the number of rings.
    """

    def __init__(self, rings: Sequence[Ring]) -> None:
        self._rings = tuple(rings)
        self.samples = 0
        self.age_sum = 0.0  # in transitions, over `samples`

    def add(self, draw: Draw) -> None:
        """Counts rows that are handed out now."""
        newest = np.array([ring.committed for ring in self._rings])
        self.samples += len(draw.index)
        share = share_of_transitions(self._rings)
        self.age_sum += len(self._rings) * share * float((newest[draw.ring] - draw.index).sum())


def share_of_transitions(rings: Sequence[Ring]) -> float:
    """Returns the share of the rows of `rings` that are transitions; nearly, while they are written."""
    if not rings[0].num_envs:
        return 1.0
    num_rows = sum(ring.committed - ring.kept_from for ring in rings)
    num_transitions = sum(ring.num_transitions for ring in rings)
    return min(max(num_transitions / num_rows, LEAST_SHARE), 1.0) if num_rows > 0 else 1.0
