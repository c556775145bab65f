"""How sure the mean of a run, or of several runs, is: bootstrap of values that follow one another.

Records of a run are autocorrelated, so they are drawn in blocks (circular block bootstrap, Politis and Romano
1992) that are a fixed share of the run (fixed b, Kiefer and Vogelsang 2005). Of several runs, runs are drawn first,
then the blocks within each. The spread of few units is itself uncertain: every draw's distance from the mean is
widened as Student's t is against the normal distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from offpolicy.analysis.intervals import LEVEL, Interval
from offpolicy.types import Float64

RESAMPLES = 4000
# Few and long: blocks that are short against the memory of the records make noise look real (measured in
# tests/runners/test_resampling.py); Student's t pays for their being few.
BLOCKS = 6


class Values(NamedTuple):
    """What one run recorded of a quantity. [n], [n]: a mean weighs value i with weight i."""

    value: Float64
    weight: Float64

    @property
    def mean(self) -> float:
        """The weighted mean."""
        return float(np.average(self.value, weights=self.weight))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A mean, its bootstrap draws [RESAMPLES], and the units that were drawn."""

    mean: float
    draws: Float64
    units: int  # runs, or blocks of records
    block: int  # records per block; 0 where runs were drawn


def draw(runs: Sequence[Values], seed: int) -> Drawn:
    """The mean over `runs` and how it varies: over runs where there are two or more, else over the run's records."""
    rng = np.random.default_rng(seed)
    if len(runs) == 1:
        return _draw_records(runs[0], rng)
    means = np.array([run.mean for run in runs])
    blocks = [_block_means(run, block_length(len(run.value)), rng) for run in runs]
    inside = np.stack([draws for draws, _ in blocks]) - means[:, None]  # [runs, RESAMPLES]
    chosen = rng.integers(len(runs), size=(len(runs), RESAMPLES))
    between = _widened(means[chosen].mean(axis=0) - means.mean(), len(runs), rng)
    # The spread inside the runs is known from all their blocks, and so far better than that between few runs.
    within = _widened(np.take_along_axis(inside, chosen, axis=0).mean(axis=0), sum(units for _, units in blocks), rng)
    return Drawn(float(means.mean()), means.mean() + between + within, len(runs), 0)


def difference_interval(drawn: Drawn, reference: Drawn) -> Interval:
    """Of the difference of two means, drawn with different seeds; NaN where one of them had a single unit."""
    draws = drawn.draws - reference.draws
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(drawn.mean - reference.mean, float(low), float(high))


def _draw_records(run: Values, rng: np.random.Generator) -> Drawn:
    length = block_length(len(run.value))
    draws, units = _block_means(run, length, rng)
    return Drawn(run.mean, run.mean + _widened(draws - run.mean, units, rng), units, length)


def _block_means(run: Values, length: int, rng: np.random.Generator) -> tuple[Float64, int]:
    """Weighted means of as many blocks as the run holds, drawn anew each time [RESAMPLES], and how many those are.

    Blocks wrap around the end, so that every record is in equally many.
    """
    count = len(run.value)
    around = np.concatenate([np.arange(count), np.arange(length - 1)]) if length > 1 else np.arange(count)
    kernel = np.ones(length)
    sums = np.convolve((run.value * run.weight)[around], kernel, mode="valid")  # [count] by start of the block
    weights = np.convolve(run.weight[around], kernel, mode="valid")
    units = max(1, count // length)
    starts = rng.integers(count, size=(RESAMPLES, units))
    with np.errstate(all="ignore"):
        means = sums[starts].sum(axis=1) / weights[starts].sum(axis=1)
    return np.where(np.isfinite(means), means, run.mean), units


def _widened(deviations: Float64, units: int, rng: np.random.Generator) -> Float64:
    """Deviations of the mean of `units` values, as wide as it is uncertain: Student's t, unbiased variance. [D]."""
    if units < 2:
        return np.full(len(deviations), np.nan)
    degrees = units - 1
    student = np.sqrt(degrees / rng.chisquare(degrees, size=len(deviations)))
    return deviations * (math.sqrt(units / degrees) * student)


def block_length(count: int) -> int:
    """How many of `count` records that follow one another are drawn together."""
    return max(1, math.ceil(count / BLOCKS))
