"""The throughput of both sides of a run together, from what an env step costs each of them.

Costs vary from one step to the next. Where each side waits for the other at every step, a step takes as long as the
later side, and the mean of the later one is longer than the longer mean. So a cost is a distribution: its mean, and how
the longest phase of the side varies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from offpolicy.timing.histogram import BIN_MIDDLES_NS, Counts
from offpolicy.types import Float64

NUM_SLICES = 20
Cost = Float64  # [NUM_SLICES] seconds per env step, ascending, all as likely; of the whole run


def slices_of(counts: NDArray[np.int64] | Counts) -> Float64:
    """Returns the mean ns of each twentieth of what was counted in a histogram [NUM_BINS], the shortest first."""
    up_to = np.concatenate(([0.0], np.cumsum(counts)))
    total_ns = np.concatenate(([0.0], np.cumsum(counts * BIN_MIDDLES_NS)))
    edges = np.interp(np.linspace(0.0, up_to[-1], NUM_SLICES + 1), up_to, total_ns)
    return np.asarray(np.diff(edges) / max(up_to[-1], 1.0) * NUM_SLICES)


def cost(mean_s: float, slices_ns: Float64 | None = None, whole_ns: float = 0.0, num_summed: float = 1.0) -> Cost:
    """Returns the cost with this mean, in seconds per env step.

    `slices_ns` are those of a phase of iterations that take `whole_ns` together; each of the costs is the mean of
    `num_summed` such iterations. None: it does not vary.
    """
    if slices_ns is None or whole_ns <= 0.0:
        return np.full(NUM_SLICES, mean_s)
    deviations = (slices_ns - slices_ns.mean()) / whole_ns / math.sqrt(max(1.0, num_summed))
    varied = np.maximum(mean_s * (1.0 + deviations), 0.0)
    return np.asarray(varied * (mean_s / varied.mean()))


def later(costs: Sequence[Cost]) -> Cost:
    """Returns the distribution of the greatest of independent costs."""
    return reduce(_later, costs)


def _later(one: Cost, other: Cost) -> Cost:
    both = np.sort(np.maximum.outer(one, other), axis=None)
    return np.asarray(both.reshape(NUM_SLICES, NUM_SLICES).mean(axis=1))


def seconds_per_step(mode: str, learner: Cost, collectors: Sequence[Cost], packer_s: float = 0.0) -> float:
    """Returns the seconds per env step of all of them together. Raises KeyError on an unknown mode.

    Turns add up. Overlapping sides wait for the later one at every step; in `free`, where nobody waits at every step,
    the greater mean counts, and collectors share the steps. A packing thread works beside both sides.
    """
    slowest = later(collectors)
    shared_s = len(collectors) / sum(1.0 / each.mean() for each in collectors)
    seconds = {
        "alternate": learner.mean() + slowest.mean(),
        "overlap": later((learner, slowest)).mean(),
        "free": max(learner.mean(), shared_s),
    }[mode]
    return max(float(seconds), packer_s)
