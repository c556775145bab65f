"""The throughput of both sides of a run together, from what an env step costs each of them.

Costs vary from one step to the next. Where each side waits for the other at every step, a step takes as long as the
later side, and the mean of the later one is longer than the longer mean. So a cost is a distribution: its mean, and how
the longest phase of the side varies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from offpolicy.model.windows import NS_PER_S, CollectorWindow, Elapsed
from offpolicy.timing.histogram import BIN_MIDDLES_NS, Counts
from offpolicy.timing.phases import (
    COLLECTOR_PAUSES,
    FOR_COLLECTORS,
    LEARNER_PERIODIC,
    LEARNER_WAITS,
    CollectorPhase,
)
from offpolicy.types import Float64

NUM_SLICES = 20
Cost = Float64  # [NUM_SLICES] seconds per env step, ascending, all as likely; of the whole run
STEADY: Cost = np.ones(NUM_SLICES)
LEARNER_PAUSES = (*LEARNER_WAITS, *LEARNER_PERIODIC)  # phases without work on updates


def slices_of(counts: NDArray[np.int64] | Counts) -> Float64:
    """Returns the mean ns of each twentieth of what was counted in a histogram [NUM_BINS], the shortest first."""
    up_to = np.concatenate(([0.0], np.cumsum(counts)))
    total_ns = np.concatenate(([0.0], np.cumsum(counts * BIN_MIDDLES_NS)))
    edges = np.interp(np.linspace(0.0, up_to[-1], NUM_SLICES + 1), up_to, total_ns)
    return np.asarray(np.diff(edges) / max(up_to[-1], 1.0) * NUM_SLICES)


def spread_of(window: Elapsed, pauses: Sequence[str], num_summed: float) -> Cost:
    """Returns how the cost of an env step varied for a side: slices with a mean of 1.

    They vary as the longest phase of its iterations but `pauses`; a cost is the mean of `num_summed` iterations.
    """
    active_ns = {name: ns for name, ns in window.phases_ns.items() if name not in pauses}
    whole_ns = sum(active_ns.values()) / max(1, window.iterations)
    if window.histogram is None or whole_ns <= 0.0:
        return STEADY
    longest = max(active_ns, key=lambda name: active_ns[name])
    slices_ns = slices_of(window.histogram[list(window.phases_ns).index(longest)])
    deviations = (slices_ns - slices_ns.mean()) / whole_ns / math.sqrt(max(1.0, num_summed))
    varied = np.maximum(1.0 + deviations, 0.0)
    return np.asarray(varied / varied.mean())


def later(costs: Sequence[Cost]) -> Cost:
    """Returns the distribution of the greatest of independent costs."""
    return reduce(_later, costs)


def _later(one: Cost, other: Cost) -> Cost:
    both = np.sort(np.maximum.outer(one, other), axis=None)
    return np.asarray(both.reshape(NUM_SLICES, NUM_SLICES).mean(axis=1))


def seconds_per_step(mode: str, learner: Cost, collectors: Sequence[Cost], num_groups: int = 1) -> float:
    """Returns the seconds per env step of all of them together. Raises KeyError on an unknown mode.

    Turns add up. Overlapping sides wait for the later one at every step. In `free` nobody waits at every step: the
    greater mean counts, and collectors share the steps. Where ranks learn from collectors of their own, those of one
    rank are a group, and the slowest group counts. Collector i is one of group `i % num_groups`.
    """
    slowest = later(collectors)
    groups = [collectors[number::num_groups] for number in range(num_groups)]
    shared_s = max(len(collectors) / num_groups / sum(1.0 / each.mean() for each in group) for group in groups)
    seconds = {
        "alternate": learner.mean() + slowest.mean(),
        "overlap": later((learner, slowest)).mean(),
        "free": max(learner.mean(), shared_s),
    }[mode]
    return float(seconds)


def collector_pauses(mode: str) -> tuple[CollectorPhase, ...]:
    """The collector's phases without work on env steps: its wait for the learner, and snapshots for checkpoints.

    In turns also its handshake: the learner that it wakes is at work, and may take its core, before it returns.
    """
    return (*COLLECTOR_PAUSES, CollectorPhase.HANDSHAKE) if mode == "alternate" else COLLECTOR_PAUSES


def collector_active_ns(phases_ns: Mapping[str, int], mode: str) -> int:
    """The collector's work on env steps."""
    pauses = collector_pauses(mode)
    return sum(ns for name, ns in phases_ns.items() if name not in pauses)


def timed_ranks(ranks: Sequence[Elapsed | None]) -> list[Elapsed]:
    """Returns the windows of the ranks that have steady time."""
    return [window for window in ranks if window is not None and window.wall_ns > 0]


def learner_side_ns(ranks: Sequence[Elapsed | None]) -> float:
    """The time that the learners need for their updates, with their waits for each other and for packed batches.

    That is the wall of rank 0 without evaluation and checkpoints, and without waiting for collectors: if one of the
    ranks waits for its collectors, the others wait for it.
    """
    timed = timed_ranks(ranks)
    if not timed:
        return 0.0
    first = timed[0]
    periodic_ns = sum(first.phases_ns.get(phase, 0) for phase in LEARNER_PERIODIC)
    waits = [sum(window.phases_ns.get(phase, 0) for phase in FOR_COLLECTORS) / window.wall_ns for window in timed]
    return first.wall_ns * (1.0 - max(waits)) - periodic_ns


def predicted_steps_per_sec(
    mode: str,
    learner: Elapsed | None,
    collectors: Sequence[CollectorWindow],
    absorbed: float | None,
    num_groups: int = 1,
) -> float | None:
    """Env steps per second of both sides together, each as it was in the window; groups as in `seconds_per_step`."""
    if learner is None or not absorbed:
        return None
    costs = []
    for window in collectors:
        done = window.elapsed
        active_ns = collector_active_ns(done.phases_ns, mode) if done is not None else 0
        if done is not None and active_ns > 0 and window.steady_steps > 0:
            mean_s = active_ns / NS_PER_S / window.steady_steps / len(collectors)
            num_summed = done.iterations / max(1, learner.iterations)
            costs.append(mean_s * spread_of(done, collector_pauses(mode), num_summed))
    timed = [window.elapsed for window in collectors if window.elapsed is not None]
    if not costs:
        return None
    side = spread_of(learner, LEARNER_PAUSES, learner.iterations / max(1, timed[0].iterations)) / absorbed
    # Only where all collectors are known: a late report would leave a group without one.
    is_grouped = len(costs) == len(collectors) and len(collectors) % num_groups == 0
    return 1.0 / seconds_per_step(mode, side, costs, num_groups if is_grouped else 1)


def bound_steps_per_sec(collector: float | None, learner: float | None, mode: str) -> float | None:
    """Env steps per second of the two sides together: turns add up (alternate), overlapped work is bound by the slower.

    `collector` and `learner` are I and T. Raises KeyError on an unknown mode.
    """
    if not collector or not learner:
        return None
    overlapped, in_turns = min(collector, learner), 1.0 / (1.0 / collector + 1.0 / learner)
    return {"overlap": overlapped, "free": overlapped, "alternate": in_turns}[mode]
