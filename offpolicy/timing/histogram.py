"""Histograms of a phase's time over the iterations, which two reports can be subtracted from each other.

Sixteen bins per doubling, so that a value read back from its bin is off by 3 % at most, as in HdrHistogram; everything
below a microsecond is one bin.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from offpolicy.types import HISTOGRAM_BINS

Counts = NDArray[np.int64]

FLOOR_BITS = 10  # durations below 2^10 ns are in bin 0
BINS_PER_DOUBLING = 16
DOUBLINGS = 28  # up to 2^38 ns, 275 s; longer durations are in the last bin
FLOOR_NS = 1 << FLOOR_BITS
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
