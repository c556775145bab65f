"""Noise that is held: for how long, by each environment on its own, and what is drawn meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from offpolicy.collect.repeated_noise import RepeatedNoise


def runs_of(noise: np.ndarray) -> list[int]:
    """How many steps in a row each draw [T] was held, without the last one."""
    starts = np.flatnonzero(np.diff(noise)) + 1
    return np.diff(np.concatenate(([0], starts))).tolist()


@pytest.mark.parametrize("longest", [2, 16])
def test_draws_are_held_as_often_as_the_law_says(longest: int) -> None:
    noise, generator = RepeatedNoise(longest, 1), torch.Generator().manual_seed(1)
    drawn = np.stack([noise.draw(20, generator)[:, 0].numpy().copy() for _ in range(4000)])
    held = np.concatenate([runs_of(column) for column in drawn.T])
    chances = 1.0 / np.arange(1, longest + 1) ** 2
    shares = np.bincount(held, minlength=longest + 1)[1:] / len(held)
    assert len(shares) == longest
    np.testing.assert_allclose(shares, chances / chances.sum(), atol=0.01)
    fresh = drawn[0]
    assert len(np.unique(fresh)) == 20  # each environment has its own


def test_what_is_drawn_is_unit_noise_and_takes_as_many_numbers_in_every_step() -> None:
    noise, generator, other = RepeatedNoise(16, 3), torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    drawn = torch.stack([noise.draw(50, generator) for _ in range(2000)])
    assert abs(float(drawn.mean())) < 0.02
    assert abs(float(drawn.std()) - 1.0) < 0.02
    for _ in range(2000):
        torch.randn(50, 3, generator=other)
        torch.rand(50, generator=other, dtype=torch.float64)
    assert torch.equal(generator.get_state(), other.get_state())


def test_another_number_of_environments_begins_anew() -> None:
    noise, generator = RepeatedNoise(16, 2), torch.Generator().manual_seed(1)
    assert noise.draw(3, generator).shape == (3, 2)
    assert noise.draw(5, generator).shape == (5, 2)
