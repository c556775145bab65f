"""Weights by age: the closed sum and its inverse, beside the weights added one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.replay.age_weights import AgeWeights

WEIGHTS = [AgeWeights(80_000, 0.1), AgeWeights(7.5, 0.3), AgeWeights(10, 1.0), AgeWeights(1, 0.5)]


def array_of(values: Any, xp: Any) -> Any:
    return xp.asarray(values, dtype=xp.float64)


@pytest.mark.parametrize("xp", [np, torch])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_sum_is_that_of_the_weights_of_the_rows(weights: AgeWeights, xp: Any) -> None:
    counts = np.array([1, 2, 5, 1000, 200_000])
    middles = np.arange(counts.max()) + 0.5
    each = np.maximum(weights.floor, 1 - middles / weights.decay)
    # The row in which the floor is reached has a weight between that of its middle and that of the line.
    np.testing.assert_allclose(
        np.asarray(weights.total(array_of(counts, xp), xp)), np.cumsum(each)[counts - 1], atol=0.13
    )


@pytest.mark.parametrize("xp", [np, torch])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_age_is_the_inverse_of_the_sum(weights: AgeWeights, xp: Any) -> None:
    ages = array_of([0.0, 0.5, 3.0, weights.knee, weights.knee + 0.5, 1e6], xp)
    np.testing.assert_allclose(np.asarray(weights.age(weights.total(ages, xp), xp)), np.asarray(ages), atol=1e-6)


def test_the_header_of_a_run_says_after_how_many_rows_the_floor_is_reached() -> None:
    assert (
        AgeWeights(80_000, 0.1).describe() == "; rows weighted by age, down to 0.1 after 72,000 transitions of a ring"
    )
