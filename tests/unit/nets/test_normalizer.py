from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offpolicy.nets.normalizer import ObsNormalizer, ReturnScale, RunningMoments, block_moments


def test_forward_subtracts_the_mean_and_divides_by_the_std() -> None:
    normalizer = ObsNormalizer(1)
    normalizer.absorb(block_moments(torch.tensor([[0.0], [4.0]])))  # mean 2, variance 4
    assert torch.allclose(normalizer(torch.tensor([[2.0], [4.0], [-1.0]])), torch.tensor([[0.0], [1.0], [-1.5]]))


def test_forward_is_clamped_to_ten() -> None:
    normalizer = ObsNormalizer(1)
    assert normalizer(torch.tensor([[1e6], [-1e6]])).tolist() == [[10.0], [-10.0]]


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(0, 1000))
def test_blocks_merge_to_the_statistics_of_the_whole(sizes: list[int], seed: int) -> None:
    obs = 100.0 + 3.0 * torch.randn(sum(sizes), 2, generator=torch.Generator().manual_seed(seed))
    normalizer = ObsNormalizer(2)
    for block in obs.split(sizes):
        normalizer.absorb(block_moments(block))
    assert torch.allclose(normalizer.mean, obs.double().mean(dim=0), rtol=1e-12)
    assert torch.allclose(normalizer.var, obs.double().var(dim=0, correction=0), rtol=1e-9, atol=1e-12)
    assert float(normalizer.count) == sum(sizes)


def test_a_row_after_ten_million_still_moves_the_mean() -> None:
    normalizer = ObsNormalizer(1)
    normalizer.mean.fill_(1.0)
    normalizer.count.fill_(1e7)
    normalizer.absorb(block_moments(torch.tensor([[1.5]])))
    assert float(normalizer.mean) - 1.0 == pytest.approx(5e-8, rel=1e-6)
    assert float(normalizer.count) == 10_000_001.0


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_block_with_a_bad_number_changes_nothing(poison: float) -> None:
    normalizer = ObsNormalizer(1)
    normalizer.absorb(block_moments(torch.tensor([[1.0], [3.0]])))
    normalizer.absorb(block_moments(torch.tensor([[2.0], [poison]])))
    assert (normalizer.mean.tolist(), normalizer.var.tolist(), float(normalizer.count)) == ([2.0], [1.0], 2.0)


def half_known() -> tuple[RunningMoments, RunningMoments]:
    """Statistics of four dimensions, seen in five rows, and their part of the second and third."""
    whole = RunningMoments(4)
    whole.mean.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    whole.var.copy_(torch.tensor([5.0, 6.0, 7.0, 8.0]))
    whole.count.fill_(5.0)
    return whole, whole.part(slice(1, 3))


def test_a_part_moves_only_its_dimensions() -> None:
    whole, part = half_known()
    part.absorb(block_moments(torch.tensor([[10.0, 20.0], [14.0, 20.0]])))
    assert whole.mean.tolist() == [1.0, 12.0, 20.0, 4.0]
    assert whole.var.tolist() == [5.0, 4.0, 0.0, 8.0]


def test_two_blocks_of_returns_are_absorbed_as_one() -> None:
    rows = torch.tensor([[1.0], [-30.0], [2.0], [4.0], [3.0]], dtype=torch.float64)
    whole = ReturnScale(5.0)
    whole.absorb(torch.cat((block_moments(rows), torch.tensor([30.0]))))
    for first, second in ((rows[:2], rows[2:]), (rows[2:], rows[:2])):
        scale = ReturnScale(5.0)
        for part in (first, second):
            scale.absorb(torch.cat((block_moments(part), part.abs().amax(dim=0))))
        torch.testing.assert_close(dict(scale.named_buffers()), dict(whole.named_buffers()))
    assert float(whole.forward()) == pytest.approx(170.0**0.5)  # their std, greater than 30 / 5
