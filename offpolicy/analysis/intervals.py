"""How sure a mean is: percentile bootstrap intervals (Efron 1979), paired where the samples are."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offpolicy.types import Float64

RESAMPLES = 10_000
AT_ONCE = 500  # resamples: their indices stay small however many values there are
LEVEL = 0.95
Indices = NDArray[np.int64]


class Interval(NamedTuple):
    """An estimate and where it lies with 95 % confidence."""

    value: float
    low: float
    high: float


def mean_interval(values: Float64) -> Interval:
    """Of the mean of values [E]."""
    return _bootstrap(len(values), lambda index: values[index].mean(axis=-1))


def difference_interval(values: Float64, others: Float64) -> Interval:
    """Of mean(values) - mean(others) where entry i of both had the same circumstances. [E], [E]."""
    return mean_interval(values - others)


def ratio_interval(values: Float64, others: Float64) -> Interval:
    """Of mean(values) / mean(others), paired as `difference_interval`; inf or NaN where a denominator is 0."""

    def ratio(index: Indices) -> Float64:
        with np.errstate(all="ignore"):
            quotient: Float64 = values[index].mean(axis=-1) / others[index].mean(axis=-1)
        return quotient

    return _bootstrap(len(values), ratio)


def _bootstrap(count: int, estimate: Callable[[Indices], Float64]) -> Interval:
    """`estimate` takes indices [..., count]; the resamples are the same at every call."""
    rng = np.random.default_rng(0)
    found = [estimate(rng.integers(count, size=(AT_ONCE, count))) for _ in range(RESAMPLES // AT_ONCE)]
    with np.errstate(all="ignore"):
        low, high = np.quantile(np.concatenate(found), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(estimate(np.arange(count))), float(low), float(high))
