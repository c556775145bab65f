"""The categorical critics: the projection, the gradient of the actor, and learning of a known distribution."""

from __future__ import annotations

import torch

from offpolicy.algos.categorical import CategoricalTrainer
from offpolicy.algos.losses import projected
from offpolicy.algos.optim import OptimizerStep, SoloExchange
from offpolicy.config.sections import AlgoConfig
from offpolicy.nets.critics import CategoricalTwinCritic, make_critic
from offpolicy.types import Batch, SpaceSpec

BINS = torch.linspace(-2.0, 2.0, 5)
SPEC = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0,) * 2, action_high=(1.0,) * 2)


def at(index: int) -> torch.Tensor:
    return torch.full((1, 5), -200.0).index_fill(1, torch.tensor([index]), 0.0)


def project(index: int, reward: float, factor: float, bonus: float = 0.0) -> list[float]:
    rest = (torch.tensor([number]) for number in (reward, factor, bonus))
    return [round(p, 5) for p in projected(at(index), BINS, *rest)[0].tolist()]


def test_a_return_on_a_bin_is_all_of_it_and_others_are_shared() -> None:
    assert project(3, 0.0, 1.0) == [0, 0, 0, 1, 0]
    assert project(3, 0.25, 1.0) == [0, 0, 0, 0.75, 0.25]
    assert project(3, 0.0, 0.5, bonus=-0.5) == [0, 0, 0.75, 0.25, 0]
    assert project(3, -0.5, 0.0) == [0, 0.5, 0.5, 0, 0]  # terminated: the reward alone


def test_returns_beyond_the_bins_are_the_outermost() -> None:
    assert project(4, 0.0, 1.0) == [0, 0, 0, 0, 1]
    assert project(4, 7.0, 1.0) == [0, 0, 0, 0, 1]
    assert project(0, -7.0, 1.0) == [1, 0, 0, 0, 0]


def test_the_projection_keeps_mass_and_mean_inside_the_bins() -> None:
    generator = torch.Generator().manual_seed(1)
    log_probs = torch.randn((64, 5), generator=generator).log_softmax(dim=1)
    reward, factor = (torch.rand(64, generator=generator) * 0.5 for _ in range(2))
    bonus = torch.randn(64, generator=generator) * 0.1
    result = projected(log_probs, BINS, reward, factor, bonus)
    mean = reward + factor * ((log_probs.exp() * BINS).sum(dim=1) + bonus)
    torch.testing.assert_close(result.sum(dim=1), torch.ones(64))
    torch.testing.assert_close((result * BINS).sum(dim=1), mean)


def trainer_of() -> CategoricalTrainer:
    torch.manual_seed(2)
    algo = AlgoConfig(name="flashsac", critic_width=16, num_bins=21, value_max=2.0, critic_lr=3e-3, tau=0.1)
    critic = make_critic(algo, SPEC)
    assert isinstance(critic, CategoricalTwinCritic)
    return CategoricalTrainer(algo, critic, OptimizerStep(torch.device("cpu"), SoloExchange()))


def test_the_gradient_of_the_action_is_that_of_the_values() -> None:
    trainer = trainer_of()
    obs, action = torch.randn(6, 3), torch.randn(6, 2)
    d_q = torch.randn(2, 6)
    trainer.q(obs, action)
    gradient, step = trainer.action_gradient(d_q), 1e-2
    for column in range(2):
        shift = torch.zeros(6, 2).index_fill(1, torch.tensor([column]), step)
        change = (trainer.q(obs, action + shift) - trainer.q(obs, action - shift)) / (2 * step)
        torch.testing.assert_close((d_q * change).sum(dim=0), gradient[:, column], atol=2e-2, rtol=5e-2)


def test_the_critics_learn_terminal_rewards() -> None:
    trainer, losses = trainer_of(), []
    generator = torch.Generator().manual_seed(3)
    for _ in range(200):
        obs, next_obs = (torch.randn((64, 3), generator=generator) for _ in range(2))
        action = torch.rand((64, 2), generator=generator) * 2.0 - 1.0
        ones = torch.ones(64)
        batch = Batch(obs, action, action[:, 0], next_obs, ones, 0.99 * ones)
        losses.append(trainer.step(batch, action, 5.0 * ones)[0].item())  # no bonus behind a terminal state
    q = trainer.q(obs, action)
    assert losses[-1] < 0.7 * losses[0]
    assert (q - action[:, 0]).abs().mean() < 0.25
