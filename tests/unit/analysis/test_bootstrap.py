"""Bootstrap intervals: they cover, they pair, they are the same at every call, and noise is seldom called real."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from offpolicy.analysis.bootstrap import Interval, Values, difference_interval, draw, mean_interval, ratio_interval
from offpolicy.types import Float64

TRIALS = 200
Rng = np.random.Generator


def holds(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution_for_many_values() -> None:
    values = np.random.default_rng(1).normal(10.0, 2.0, 400)
    interval = mean_interval(values)
    half = 1.96 * values.std() / math.sqrt(400)
    assert interval.value == pytest.approx(values.mean())
    assert (interval.low, interval.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)


def test_pairs_take_away_what_both_have_in_common() -> None:
    rng = np.random.default_rng(3)
    luck = rng.normal(0.0, 50.0, 60)
    first, second = luck + rng.normal(1.0, 0.5, 60), luck + rng.normal(0.0, 0.5, 60)
    assert not holds(mean_interval(first - second), 0.0)
    assert holds(mean_interval(first - rng.permutation(second)), 0.0)


def test_a_ratio_to_nothing_and_the_spread_of_one_value_are_not_known() -> None:
    assert ratio_interval(np.array([1.0, 9.0]), np.array([2.0, 8.0])).value == 1.0, "not the mean of ratios"
    assert math.isnan(ratio_interval(np.zeros(3), np.zeros(3)).value)
    assert math.isinf(ratio_interval(np.ones(3), np.zeros(3)).value)
    for interval in (mean_interval(np.array([4.0])), ratio_interval(np.array([4.0]), np.array([1.0]))):
        assert interval.value == 4.0
        assert np.isnan(interval[1:]).all()


def test_intervals_of_few_values_cover_the_truth_as_often_as_they_say() -> None:
    for count in (2, 5):
        rng = np.random.default_rng(5)
        assert sum(holds(mean_interval(rng.normal(3.0, 1.0, count)), 3.0) for _ in range(200)) >= 182


@pytest.fixture(autouse=True)
def _fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough to tell one share from another, and quick."""
    monkeypatch.setattr("offpolicy.analysis.bootstrap.RECORD_RESAMPLES", 500)


def autocorrelated(rng: Rng, count: int, memory: float) -> Float64:
    """AR(1) of mean 0 and variance 1: each value is `memory` of the one before, plus noise. [count]."""
    noise = rng.normal(size=count + 50) * np.sqrt(1.0 - memory**2)
    values = np.zeros(count + 50)
    for index in range(1, count + 50):
        values[index] = memory * values[index - 1] + noise[index]
    return values[50:]


def run(rng: Rng, count: int, memory: float, shift: float = 0.0) -> Values:
    return Values(10.0 + shift + autocorrelated(rng, count, memory), np.ones(count))


def share_called_real(make: Callable[[Rng], tuple[list[Values], list[Values]]]) -> float:
    """Of pairs of groups, the share whose interval of the difference leaves 0 out."""
    found = 0
    for trial in range(TRIALS):
        one, other = make(np.random.default_rng(trial))
        interval = difference_interval(draw(other, 1), draw(one, 0))
        found += not interval.low <= 0.0 <= interval.high
    return found / TRIALS


@pytest.mark.parametrize(("count", "memory"), [(20, 0.5), (200, 0.8)])
def test_two_runs_of_one_configuration_are_noise(count: int, memory: float) -> None:
    assert share_called_real(lambda rng: ([run(rng, count, memory)], [run(rng, count, memory)])) <= 0.07


def test_seeds_of_one_configuration_are_noise_though_every_run_differs() -> None:
    def groups(rng: Rng) -> tuple[list[Values], list[Values]]:
        one, other = ([run(rng, 30, 0.5, rng.normal()) for _ in range(3)] for _ in range(2))
        return one, other

    assert share_called_real(groups) <= 0.05


def test_a_change_of_a_fifth_is_seen_in_one_run_and_in_three_seeds() -> None:
    assert share_called_real(lambda rng: ([run(rng, 60, 0.5)], [run(rng, 60, 0.5, 2.0)])) > 0.95

    def seeds(rng: Rng) -> tuple[list[Values], list[Values]]:
        one, other = ([run(rng, 60, 0.5, shift + 0.2 * rng.normal()) for _ in range(3)] for shift in (0.0, 2.0))
        return one, other

    assert share_called_real(seeds) > 0.95


def test_runs_count_alike_however_many_records_they_have() -> None:
    runs = [Values(np.full(count, level), np.ones(count)) for count, level in ((5, 1.0), (50, 3.0))]
    assert draw(runs, 0).mean == 2.0
