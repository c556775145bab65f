"""APPO's value normalisation (PopArt): its units never change a prediction, and V converges to the returns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from offpolicy.nets.actor_critic import ValueCritic
from offpolicy.nets.normalizer import block_moments

CPU = torch.device("cpu")
NUM_ENVS, LENGTH = 8, 128


def critic_of(*hidden_dims: int) -> ValueCritic:
    return ValueCritic(3, hidden_dims, "tanh", normalize_value=True)


def moments(mean: float, std: float, rows: int = 1000) -> Tensor:
    noise = torch.randn(rows, 1, generator=torch.Generator().manual_seed(3))
    return block_moments(mean + std * noise)


@torch.no_grad()
def returns(critic: ValueCritic, obs: Tensor) -> Tensor:
    return critic.in_returns(critic.forward(obs))


@pytest.mark.parametrize(("mean", "std"), [(-600.0, 300.0), (0.0, 1e-3), (1e6, 1.0), (-5.0, 1e5), (3.0, 0.0)])
def test_predictions_are_preserved_whatever_the_targets(mean: float, std: float) -> None:
    critic, obs = critic_of(16, 16), torch.randn(50, 3)
    critic.absorb(moments(10.0, 4.0))
    before = returns(critic, obs)
    critic.absorb(moments(mean, std))
    assert critic.normalizer is not None
    assert float(critic.normalizer.count) == 2000.0
    rounding = 2e-6 * (10.0 + abs(mean) + std)  # of float32, in the larger of the units
    assert torch.allclose(returns(critic, obs), before, rtol=0.0, atol=rounding)


def test_predictions_in_units_are_of_the_new_statistics() -> None:
    critic, obs = critic_of(16), torch.randn(50, 3)
    before = returns(critic, obs)
    critic.absorb(block_moments(torch.tensor([[100.0], [104.0]])))  # mean 102, std 2
    assert torch.allclose(critic.forward(obs), (before - 102.0) / 2.0, atol=1e-5)


def test_a_block_that_is_left_out_changes_no_bit() -> None:
    critic = critic_of(16)
    critic.absorb(moments(10.0, 4.0))
    before = {name: tensor.clone() for name, tensor in critic.state_dict().items()}
    for block in (moments(float("nan"), 1.0), block_moments(torch.empty(0, 1))):
        critic.absorb(block)
    assert [name for name, tensor in critic.state_dict().items() if not torch.equal(tensor, before[name])] == []
