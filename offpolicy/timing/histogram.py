"""Histograms of a phase's time over the iterations, which two reports can be subtracted from each other.

Sixteen bins per doubling, so that a value read back from its bin is off by 3 % at most; everything below a microsecond
is one bin. Counts are cumulative, like every other counter of a report: a lost report costs freshness only, and the
percentiles of a window are those of the difference. (The idea is that of HdrHistogram.)
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from offpolicy.types import HISTOGRAM_BINS

Counts = NDArray[np.int64]

FLOOR_BITS = 10  # durations below 2^10 ns are in bin 0
BINS_PER_DOUBLING = 16
DOUBLINGS = 28  # up to 2^38 ns, 275 s; longer durations are in the last bin
FLOOR_NS = 1 << FLOOR_BITS
SLICE = 128  # iterations that are noted before they are counted: some 50 us at a time
assert HISTOGRAM_BINS == 1 + BINS_PER_DOUBLING * DOUBLINGS


def bins_of(ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bins of durations in ns."""
    bits = np.frexp(ns.astype(np.float64))[1]  # 2^(bits-1) <= ns < 2^bits, exact below 2^53
    step = np.right_shift(ns, np.maximum(bits - 5, 0)) & 15
    return np.where(ns < FLOOR_NS, 0, np.minimum(((bits - FLOOR_BITS - 1) << 4) + step + 1, HISTOGRAM_BINS - 1)).astype(
        np.int64
    )


_OCTAVE, _STEP = np.divmod(np.arange(HISTOGRAM_BINS - 1), BINS_PER_DOUBLING)
BIN_MIDDLES_NS: NDArray[np.float64] = np.concatenate(
    ([2.0 ** (FLOOR_BITS - 1)], (BINS_PER_DOUBLING + _STEP + 0.5) * 2.0 ** (FLOOR_BITS + _OCTAVE) / BINS_PER_DOUBLING)
)


class HistogramRecorder:
    """Histograms of several cumulative durations, and of their sum, all counted once per iteration.

    An iteration is only noted; it is counted when counts are read, or with a slice of others: a note takes well below a
    microsecond.
    """

    __slots__ = ("_before_ns", "_counts", "_full", "_notes", "_num_phases", "_offsets")

    def __init__(self, num_phases: int) -> None:
        self._num_phases, self._full = num_phases, SLICE * num_phases
        self._before_ns = np.zeros(num_phases, dtype=np.int64)  # the totals of the last iteration counted
        self._counts = np.zeros((num_phases + 1, HISTOGRAM_BINS), dtype=np.int64)
        self._offsets = HISTOGRAM_BINS * np.arange(num_phases + 1)  # of each row in the flat counts
        self._notes = array("q")  # the totals of every iteration since

    def add(self, total_ns: list[int]) -> None:
        """Notes the time of each phase since the start."""
        self._notes.extend(total_ns)
        if len(self._notes) >= self._full:
            self._count()

    def last_ns(self, phase: int) -> int:
        """The time of a phase from the start to the end of the last iteration."""
        return self._notes[phase - self._num_phases] if self._notes else int(self._before_ns[phase])

    def counts(self) -> Counts:
        """Returns the counts [phases + 1, HISTOGRAM_BINS]; the last row is that of whole iterations."""
        self._count()
        return self._counts.copy()

    def _count(self) -> None:
        counted, self._notes = self._notes, array("q")
        notes = np.frombuffer(counted, dtype=np.int64).reshape(-1, self._num_phases)
        total_ns = np.concatenate((self._before_ns[np.newaxis], notes))
        took_ns = np.empty((len(notes), self._num_phases + 1), dtype=np.int64)
        np.subtract(total_ns[1:], total_ns[:-1], out=took_ns[:, :-1])
        np.sum(took_ns[:, :-1], axis=1, out=took_ns[:, -1])
        flat = np.bincount((bins_of(took_ns) + self._offsets).ravel(), minlength=self._counts.size)
        self._counts += flat.reshape(self._counts.shape)
        self._before_ns = total_ns[-1]
