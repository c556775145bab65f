"""Critics, and APPO's networks: initialisation, outputs, and the flat block of their policy."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from offpolicy.algos.registry import make_policy
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.actor_critic import CategoricalActor, GaussianActor
from offpolicy.nets.critics import DiscreteTwinCritic, make_critic
from offpolicy.nets.mlp import mlp, orthogonal_
from offpolicy.nets.normalizer import ObsNormalizer, block_moments
from offpolicy.nets.policy import Policy
from offpolicy.types import SpaceSpec

BOX = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
DISCRETE = SpaceSpec(obs_dim=3, action_dim=1, action_low=(0.0,), action_high=(3.0,), num_actions=4)
ALGO = AlgoConfig(name="appo", hidden_dims=(8,), normalize_obs=True, init_log_std=-0.5)
OBS = torch.linspace(-2.0, 2.0, 12).reshape(4, 3)

SEVERAL = SpaceSpec(obs_dim=3, action_dim=2, action_low=(0.0, 0.0), action_high=(3.0, 1.0), nvec=(4, 2))
specs = pytest.mark.parametrize("spec", [BOX, DISCRETE, SEVERAL], ids=["box", "discrete", "multi-discrete"])


def policy_of(spec: SpaceSpec) -> Policy:
    """Returns a policy that has absorbed observations and whose actions depend on them."""
    policy = make_policy(ALGO, spec)
    assert policy.normalizer is not None
    policy.normalizer.absorb(block_moments(1.0 / 3.0 + 2.0 * torch.randn(50, 3)))
    with torch.no_grad():
        for parameter in policy.actor.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape))
    return policy


def test_critics_of_discrete_actions_give_the_value_of_the_one_taken() -> None:
    critic = make_critic(AlgoConfig(name="sac", hidden_dims=(8,)), DISCRETE)
    assert isinstance(critic, DiscreteTwinCritic)
    action = torch.tensor([[0.0], [3.0], [1.0], [3.0]])
    with torch.no_grad():
        values, q = critic.values(OBS), critic.forward(OBS, action)
    assert values.shape == (2, 4, 4)
    assert [[float(q[net, row]) for row in range(4)] for net in range(2)] == [
        [float(values[net, row, index]) for row, index in enumerate((0, 3, 1, 3))] for net in range(2)
    ]


def layers_of(net: nn.Module) -> list[nn.Linear]:
    return [module for module in net.modules() if isinstance(module, nn.Linear)]


def gains(net: nn.Module) -> list[list[float]]:
    """By layer, the singular values of its weights: the smallest and the greatest."""
    spectra = [torch.linalg.svdvals(layer.weight.detach()) for layer in layers_of(net)]
    return [[float(spectrum.min()), float(spectrum.max())] for spectrum in spectra]


def test_orthogonal_layers_have_gain_sqrt_2_and_the_head_its_own() -> None:
    net = orthogonal_(mlp(3, (8, 8), 2, "tanh"), head_gain=0.5)
    for low_and_high, gain in zip(gains(net), (math.sqrt(2.0), math.sqrt(2.0), 0.5), strict=True):
        assert low_and_high == pytest.approx([gain, gain], rel=1e-5)
    assert not any(bool(layer.bias.any()) for layer in layers_of(net))


def test_a_gaussian_acts_by_its_mean_inside_the_bounds() -> None:
    actor = GaussianActor(3, 2, (8,), "tanh", init_log_std=0.0)
    with torch.no_grad():
        layers_of(actor)[-1].bias.copy_(torch.tensor([0.5, 7.0]))
    assert torch.allclose(actor.act(OBS), torch.tensor([0.5, 1.0]).expand(4, 2), atol=0.05)
    assert actor.act(OBS)[:, 1].tolist() == [1.0] * 4


@specs
def test_the_log_prob_of_a_sample_is_that_of_the_distribution(spec: SpaceSpec) -> None:
    policy = policy_of(spec)
    action, log_prob = policy.sample(OBS, torch.Generator())
    assert log_prob is not None
    assert isinstance(policy.actor, GaussianActor | CategoricalActor)
    assert isinstance(policy.normalizer, ObsNormalizer)
    assert torch.equal(log_prob, policy.actor.distribution(policy.normalizer(OBS)).log_prob(action).detach())
    assert not torch.allclose(log_prob, policy.actor.distribution(OBS).log_prob(action))
