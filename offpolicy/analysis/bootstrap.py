"""Percentile bootstrap intervals (Efron 1979): of means over independent episodes, and of means over records.

Records of a run are autocorrelated, so they are drawn in blocks (circular block bootstrap, Politis and Romano
1992) that are a fixed fraction of the run (fixed b, Kiefer and Vogelsang 2005); of several runs, runs are drawn first.
Few units have an uncertain spread: every draw is widened as Student's t is against the normal distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from offpolicy.types import Float64

LEVEL = 0.95
EPISODE_RESAMPLES, RECORD_RESAMPLES = 10_000, 4_000
AT_ONCE = 500  # resamples drawn together: their indices stay small however many values there are
# Blocks per run, few and long: blocks that are short against the memory of the records make noise look real
# (measured in tests/unit/analysis/test_bootstrap.py); Student's t pays for their being few.
BLOCKS = 6


class Interval(NamedTuple):
    """An estimate and the bounds between which it lies with 95 % confidence."""

    value: float
    low: float
    high: float


class Values(NamedTuple):
    """Values that one run recorded of a quantity, and their weights in a mean. [n], [n]."""

    value: Float64
    weight: Float64

    @property
    def mean(self) -> float:
        """The weighted mean."""
        return float(np.average(self.value, weights=self.weight))


class Drawn(NamedTuple):
    """A mean and its bootstrap draws [RECORD_RESAMPLES]."""

    mean: float
    draws: Float64


def mean_interval(values: Float64) -> Interval:
    """Returns the interval of the mean of independent values [E]; of paired differences, it is that of their mean.

    One value has no bounds: they are NaN.
    """
    return ratio_interval(values, np.ones(len(values)))


def ratio_interval(values: Float64, others: Float64) -> Interval:
    """Returns that of mean(values) / mean(others), paired: [E], [E]; inf or NaN where a denominator is 0.

    One pair has no bounds: they are NaN. The interval is the same at every call.
    """
    count = len(values)
    draws = _ratios(values, others, count, EPISODE_RESAMPLES, np.random.default_rng(0))
    with np.errstate(all="ignore"):
        value = float(values.sum() / others.sum())
        return _interval(value, value + _widened(draws - value, count, np.random.default_rng(1)))


def draw(runs: Sequence[Values], seed: int) -> Drawn:
    """Draws the mean over `runs`: over runs where there are two or more, else over blocks of the run's records."""
    rng = np.random.default_rng(seed)
    if len(runs) == 1:
        (run,) = runs
        draws, units = _block_means(run, rng)
        return Drawn(run.mean, run.mean + _widened(draws - run.mean, units, rng))
    means = np.array([run.mean for run in runs])
    blocks = [_block_means(run, rng) for run in runs]
    inside = np.stack([draws for draws, _ in blocks]) - means[:, None]  # [runs, RECORD_RESAMPLES]
    chosen = rng.integers(len(runs), size=(len(runs), RECORD_RESAMPLES))
    between = _widened(means[chosen].mean(axis=0) - means.mean(), len(runs), rng)
    # The spread inside the runs is known from all their blocks, and so far better than that between few runs.
    within = _widened(np.take_along_axis(inside, chosen, axis=0).mean(axis=0), sum(units for _, units in blocks), rng)
    return Drawn(float(means.mean()), means.mean() + between + within)


def difference_interval(drawn: Drawn, reference: Drawn) -> Interval:
    """Returns that of the difference of two means drawn with different seeds; NaN where one had a single unit."""
    return _interval(drawn.mean - reference.mean, drawn.draws - reference.draws)


def block_length(count: int) -> int:
    """Returns how many of `count` records that follow one another are drawn together."""
    return max(1, math.ceil(count / BLOCKS))


def _ratios(values: Float64, others: Float64, size: int, resamples: int, rng: np.random.Generator) -> Float64:
    """Returns sum / sum over `size` pairs drawn with replacement: [n], [n] -> [resamples]."""
    found: list[Float64] = []
    for _ in range(resamples // AT_ONCE):
        chosen = rng.integers(len(values), size=(AT_ONCE, size))
        with np.errstate(all="ignore"):
            found.append(values[chosen].sum(axis=1) / others[chosen].sum(axis=1))
    return np.concatenate(found)


def _interval(value: float, draws: Float64) -> Interval:
    with np.errstate(all="ignore"):  # a ratio may be infinite
        low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high))


def _block_means(run: Values, rng: np.random.Generator) -> tuple[Float64, int]:
    """Returns weighted means [RECORD_RESAMPLES] of as many blocks as the run holds, and how many those are.

    Blocks wrap around the end, so that every record is in equally many.
    """
    count, length = len(run.value), block_length(len(run.value))
    around, kernel = np.arange(count + length - 1) % count, np.ones(length)
    sums = np.convolve((run.value * run.weight)[around], kernel, mode="valid")  # [count] by start of the block
    weights = np.convolve(run.weight[around], kernel, mode="valid")
    units = max(1, count // length)
    means = _ratios(sums, weights, units, RECORD_RESAMPLES, rng)
    return np.where(np.isfinite(means), means, run.mean), units


def _widened(deviations: Float64, units: int, rng: np.random.Generator) -> Float64:
    """Widens deviations [D] of the mean of `units` values as far as it is uncertain: Student's t, unbiased variance."""
    if units < 2:
        return np.full(len(deviations), np.nan)
    degrees = units - 1
    student = np.sqrt(degrees / rng.chisquare(degrees, size=len(deviations)))
    return deviations * (math.sqrt(units / degrees) * student)
