from __future__ import annotations

import pytest
import torch
from torch import nn

from offpolicy.nets.mlp import mlp


def test_layers_are_linear_and_activation_with_a_linear_output() -> None:
    net = mlp(3, (8, 4), 2, "tanh")
    assert [type(layer) for layer in net] == [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear]
    assert [tuple(layer.weight.shape) for layer in net if isinstance(layer, nn.Linear)] == [(8, 3), (4, 8), (2, 4)]


def test_layer_norm_stands_between_linear_and_activation_but_not_at_the_output() -> None:
    net = mlp(3, (8,), 2, "relu", layer_norm=True)
    assert [type(layer) for layer in net] == [nn.Linear, nn.LayerNorm, nn.ReLU, nn.Linear]


@pytest.mark.parametrize("activation", ["relu", "elu", "silu", "tanh"])
def test_gradients_agree_with_finite_differences(activation: str) -> None:
    # The in-place ReLU overwrites what the layer before it returned; that layer must not need it.
    net = mlp(3, (8, 8), 2, activation).double()
    obs = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(net, (obs,))


def test_unknown_activation_is_refused() -> None:
    with pytest.raises(KeyError, match="gelu"):
        mlp(3, (8,), 2, "gelu")
