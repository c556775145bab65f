from __future__ import annotations

import torch
from torch import nn

from offpolicy.nets.critics import TwinCritic

OBS, ACTION = torch.randn(5, 3), torch.randn(5, 2)


def test_values_are_critics_by_rows() -> None:
    assert TwinCritic(3, 2, (8,), "relu")(OBS, ACTION).shape == (2, 5)


def test_the_two_critics_are_independent() -> None:
    critic = TwinCritic(3, 2, (8,), "relu")
    q = critic(OBS, ACTION)
    assert not torch.allclose(q[0], q[1])
    gradients = torch.autograd.grad(q[0].sum(), list(critic.second.parameters()))
    assert not any(bool(gradient.any()) for gradient in gradients)


def test_q1_is_the_first_critic() -> None:
    critic = TwinCritic(3, 2, (8,), "relu")
    assert torch.equal(critic.q1(OBS, ACTION), critic(OBS, ACTION)[0])


def test_values_depend_on_observation_and_action() -> None:
    critic = TwinCritic(3, 2, (8,), "tanh")
    q = critic(OBS, ACTION)
    assert not torch.allclose(q, critic(OBS + 1.0, ACTION))
    assert not torch.allclose(q, critic(OBS, ACTION + 1.0))


def test_layer_norm_is_optional() -> None:
    def num_norms(layer_norm: bool) -> int:
        modules = TwinCritic(3, 2, (8, 8), "relu", layer_norm).modules()
        return sum(isinstance(module, nn.LayerNorm) for module in modules)

    assert (num_norms(False), num_norms(True)) == (0, 4)
