"""Bootstrap intervals: they cover, they pair, and they are the same at every call."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from offpolicy.analysis.intervals import Interval, difference_interval, mean_interval, ratio_interval


def holds(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution_for_many_values() -> None:
    values = np.random.default_rng(1).normal(10.0, 2.0, 400)
    interval = mean_interval(values)
    half = 1.96 * values.std() / math.sqrt(400)
    assert interval.value == pytest.approx(values.mean())
    assert (interval.low, interval.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)


def test_95_of_100_intervals_cover_the_truth() -> None:
    rng = np.random.default_rng(2)
    covered = sum(holds(mean_interval(rng.normal(3.0, 1.0, 40)), 3.0) for _ in range(100))
    assert 88 <= covered <= 99


def test_pairs_take_away_what_both_have_in_common() -> None:
    rng = np.random.default_rng(3)
    luck = rng.normal(0.0, 50.0, 60)
    first, second = luck + rng.normal(1.0, 0.5, 60), luck + rng.normal(0.0, 0.5, 60)
    assert not holds(difference_interval(first, second), 0.0)
    assert holds(difference_interval(first, rng.permutation(second)), 0.0)


def test_a_ratio_is_that_of_the_means_not_the_mean_of_ratios() -> None:
    values, others = np.array([1.0, 9.0]), np.array([2.0, 8.0])
    assert ratio_interval(values, others).value == pytest.approx(1.0)
    same = ratio_interval(others, others)
    assert same == Interval(1.0, 1.0, 1.0)


def test_a_ratio_to_nothing_is_nan_or_infinite_and_no_warning() -> None:
    assert math.isnan(ratio_interval(np.zeros(3), np.zeros(3)).value)
    assert math.isinf(ratio_interval(np.ones(3), np.zeros(3)).value)


def test_many_values_need_little_memory() -> None:
    tracemalloc.start()
    mean_interval(np.arange(2000.0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20


def test_one_value_has_no_spread() -> None:
    assert mean_interval(np.array([4.0])) == Interval(4.0, 4.0, 4.0)


def test_the_same_values_give_the_same_interval() -> None:
    values = np.random.default_rng(4).normal(size=30)
    assert mean_interval(values) == mean_interval(values.copy())
