"""The small sums that every task is made of: their bits are those of the same sum over one environment."""

from __future__ import annotations

import numpy as np
import pytest

from offpolicy.envs.batched.task import is_between, length, squares


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1,), (6,), (17,), (14, 6)])
def test_squares_are_summed_as_those_of_one_environment(shape: tuple[int, ...], dtype: type) -> None:
    values = np.random.default_rng(0).standard_normal((50, *shape)).astype(dtype)
    sums = squares(values)
    assert sums.dtype == dtype
    assert sums.tolist() == [np.sum(np.square(one)).item() for one in values]


@pytest.mark.parametrize("dim", [2, 3])
def test_lengths_are_those_of_one_vector(dim: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((500, 4))[:, :dim]
    assert length(vectors).tolist() == [np.linalg.norm(one).item() for one in vectors]


def test_the_ends_of_an_interval_are_outside() -> None:
    assert is_between(np.array([0.7, 0.8, 2.0, np.nan]), (0.7, 2.0)).tolist() == [False, True, False, False]
