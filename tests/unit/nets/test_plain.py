"""The two ways to differentiate networks from their outputs give the same gradients, and write the same memory."""

from __future__ import annotations

import copy

import pytest
import torch

from offpolicy.nets.flat import join, views
from offpolicy.nets.fused import FusedMlp, Workspace
from offpolicy.nets.mlp import Mlp, mlp
from offpolicy.nets.plain import Differentiable, PlainMlp


def networks(num_nets: int) -> tuple[list[Mlp], dict[torch.Tensor, torch.Tensor]]:
    nets = [mlp(5, (8, 16), 2, "tanh") for _ in range(num_nets)]
    parameters = [p for layer in zip(*(net.parameters() for net in nets), strict=True) for p in layer]
    gradients = views(torch.full_like(join(parameters), float("nan")), [p.shape for p in parameters])
    return nets, dict(zip(parameters, gradients, strict=True))


@pytest.mark.parametrize("num_nets", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "fused"])
def test_gradients_are_those_of_autograd(kind: str, num_nets: int) -> None:
    nets, gradients = networks(num_nets)
    net: Differentiable = PlainMlp(nets, gradients) if kind == "plain" else FusedMlp(nets, gradients, Workspace())
    obs, action = torch.randn(7, 3), torch.randn(7, 2, requires_grad=True)
    expected = torch.stack([one(torch.cat((obs, action), dim=1)) for one in nets])
    slope = torch.randn_like(expected)
    by_action, *by_parameter = torch.autograd.grad(expected, (action, *gradients), slope)
    for _ in range(2):  # memory that is kept is written again
        output = net.evaluate(obs, action.detach())
        assert not output.requires_grad
        assert torch.allclose(output, expected, atol=1e-6)
        assert torch.allclose(net.pull_back_to_input(slope, 3), by_action, rtol=1e-5, atol=1e-6)
        output = net.evaluate(obs, action.detach())
        net.pull_back(slope)
        for ours, theirs in zip(gradients.values(), by_parameter, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_nets", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "fused"])
def test_constant_rows_are_evaluated_but_not_differentiated(kind: str, num_nets: int) -> None:
    nets, gradients = networks(num_nets)
    net: Differentiable = PlainMlp(nets, gradients) if kind == "plain" else FusedMlp(nets, gradients, Workspace())
    constant, rows, slope = torch.randn(4, 5), torch.randn(7, 5), torch.randn(num_nets, 7, 2)
    net.evaluate(rows)
    by_input = net.pull_back_to_input(slope, 0)
    net.evaluate(rows)
    net.pull_back(slope)
    expected = [*(gradient.clone() for gradient in gradients.values()), by_input]
    output = net.evaluate_after(constant, rows)
    plain = torch.stack([one(torch.cat((constant, rows))) for one in nets])
    assert torch.allclose(output, plain, atol=1e-6)
    by_input = net.pull_back_to_input(slope, 0)
    net.evaluate_after(constant, rows)
    net.pull_back(slope)
    for found, wanted in zip((*gradients.values(), by_input), expected, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_gradients_of_inputs_leave_those_of_parameters_alone() -> None:
    nets, gradients = networks(1)
    for net in (PlainMlp(nets, gradients), FusedMlp(nets, gradients, Workspace())):
        output = net.evaluate(torch.randn(7, 5))
        net.pull_back_to_input(torch.ones_like(output), 0)
        assert all(bool(memory.isnan().all()) for memory in gradients.values())


def test_a_copied_network_does_not_take_it_along() -> None:
    nets, gradients = networks(1)
    assert copy.deepcopy(PlainMlp(nets, gradients)) is None
