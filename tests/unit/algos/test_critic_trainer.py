from __future__ import annotations

import torch
from torch import nn

from offpolicy.algos.critic_trainer import CriticTrainer, TargetNetwork
from offpolicy.algos.optim import OptimizerStep, SoloExchange
from offpolicy.config.schema import AlgoConfig
from offpolicy.nets.critics import make_critic
from offpolicy.types import SpaceSpec

CPU = torch.device("cpu")
SPEC = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
OBS, ACTION = torch.randn(4, 3), torch.randn(4, 2)


def trainer() -> CriticTrainer:
    algo = AlgoConfig(hidden_dims=(8,))
    return CriticTrainer(algo, make_critic(algo, SPEC), OptimizerStep(CPU, SoloExchange()))


def test_a_target_network_starts_equal_and_needs_no_gradient() -> None:
    source = nn.Linear(2, 1)
    target = TargetNetwork(source, tau=0.5)
    assert torch.equal(target.module.weight, source.weight)
    assert not any(parameter.requires_grad for parameter in target.module.parameters())
    assert all(parameter.requires_grad for parameter in source.parameters())


def test_a_target_network_follows_its_source() -> None:
    source = nn.Linear(1, 1, bias=False)
    target = TargetNetwork(source, tau=0.25)
    with torch.no_grad():
        source.weight.add_(4.0)
    start = target.module.weight.clone()
    target.follow()
    assert torch.allclose(target.module.weight, start + 1.0)


def test_target_values_carry_no_gradient_to_any_critic() -> None:
    assert not trainer().target_q(OBS, ACTION).requires_grad
