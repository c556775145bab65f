"""Perceptrons with bfloat16 factors against those in float32."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from offpolicy.nets.flat import join, views
from offpolicy.nets.fused import FusedMlp, Workspace
from offpolicy.nets.mixed import MixedMlp, can_round
from offpolicy.nets.mlp import mlp

STEP = 2.0**-8  # largest relative error of a factor


def made(kind: type[FusedMlp], nets: Sequence[nn.Sequential]) -> tuple[FusedMlp, Mapping[Tensor, Tensor]]:
    """Returns the fused networks and the memory of their gradients, which holds NaN until it is written."""
    by_layer = [p for layer in zip(*(net.parameters() for net in nets), strict=True) for p in layer]
    block = join(by_layer)
    views_of = views(torch.full_like(block, float("nan")), [p.shape for p in by_layer])
    gradients = dict(zip(by_layer, views_of, strict=True))
    return kind(nets, gradients, Workspace()), gradients


def nets_of(num_nets: int, activation: str, hidden: tuple[int, ...]) -> list[nn.Sequential]:
    return [mlp(5, hidden, 2, activation) for _ in range(num_nets)]


def pair(num_nets: int, activation: str, hidden: tuple[int, ...]) -> tuple[FusedMlp, FusedMlp]:
    nets = nets_of(num_nets, activation, hidden)
    return made(MixedMlp, nets)[0], made(FusedMlp, copy.deepcopy(nets))[0]


def near(ours: Tensor, theirs: Tensor, roundings: float = 4.0) -> bool:
    """True if they differ by a few roundings of the factors, relative to the length of the whole."""
    return bool((ours - theirs).norm() <= roundings * STEP * theirs.norm()) and not torch.equal(ours, theirs)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(1)


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
@pytest.mark.parametrize("num_nets", [1, 2])
@pytest.mark.parametrize("hidden", [(64, 96), (32, 48, 64)], ids=str)
def test_values_and_gradients_are_those_of_float32_to_a_few_roundings(
    activation: str, num_nets: int, hidden: tuple[int, ...]
) -> None:
    nets = nets_of(num_nets, activation, hidden)
    (mixed, mixed_gradients), (exact, exact_gradients) = made(MixedMlp, nets), made(FusedMlp, copy.deepcopy(nets))
    inputs, slope = torch.randn(40, 5), torch.randn(num_nets, 40, 2)
    outputs = [net.evaluate(inputs) for net in (mixed, exact)]
    assert near(*outputs)
    for net in (mixed, exact):
        net.pull_back(slope)
    roundings = 40.0 if activation == "relu" else 4.0  # a unit near its kink may be on the other side of it
    for ours, theirs in zip(mixed_gradients.values(), exact_gradients.values(), strict=True):
        assert ours.dtype == torch.float32
        is_bias_of_output = ours.shape == (2,)  # nothing of it is rounded
        assert torch.equal(ours, theirs) if is_bias_of_output else near(ours, theirs, roundings)
    assert near(*(net.pull_back_to_input(slope, 3) for net in (mixed, exact)), roundings)


def test_what_is_only_evaluated_and_what_is_differentiated_are_equal() -> None:
    mixed, _ = pair(2, "relu", (64, 64))
    inputs = torch.randn(16, 5)
    with torch.no_grad():
        assert torch.equal(mixed.infer((inputs,)), mixed.evaluate(inputs))
        assert torch.equal(mixed(inputs), mixed.evaluate(inputs))


def test_constant_rows_are_evaluated_but_not_differentiated() -> None:
    mixed, gradients = made(MixedMlp, nets_of(1, "tanh", (32, 32)))
    constant, rows, slope = torch.randn(8, 5), torch.randn(16, 5), torch.randn(1, 16, 2)
    mixed.evaluate(rows)
    mixed.pull_back(slope)
    expected = [*(gradient.clone() for gradient in gradients.values()), mixed.pull_back_to_input(slope, 0)]
    output = mixed.evaluate_after(constant, rows)
    assert torch.allclose(output, mixed.evaluate(torch.cat((constant, rows))), atol=STEP)
    mixed.evaluate_after(constant, rows)
    mixed.pull_back(slope)
    found = [*gradients.values(), mixed.pull_back_to_input(slope, 0)]
    assert all(torch.allclose(*both, rtol=STEP, atol=STEP) for both in zip(found, expected, strict=True))


def test_autograd_gets_the_same_gradients() -> None:
    mixed, gradients = made(MixedMlp, nets_of(1, "tanh", (32, 32)))
    inputs, slope = torch.randn(16, 5, requires_grad=True), torch.randn(1, 16, 2)
    by_autograd = [g.clone() for g in torch.autograd.grad(mixed(inputs), (inputs, *mixed.parameters), slope)]
    mixed.evaluate(inputs.detach())
    mixed.pull_back(slope)
    assert all(torch.equal(*both) for both in zip(by_autograd[1:], gradients.values(), strict=True))
    assert torch.equal(by_autograd[0], mixed.pull_back_to_input(slope, 0))


def test_parameters_that_have_moved_are_rounded_anew() -> None:
    mixed, exact = pair(2, "relu", (64, 64))
    inputs = torch.randn(16, 5)
    mixed.evaluate(inputs)
    with torch.no_grad():
        for net in (mixed, exact):
            for parameter in net.parameters:
                parameter.mul_(-2.0)
    assert near(mixed.evaluate(inputs), exact.evaluate(inputs))


def test_inputs_and_outputs_are_not_rounded() -> None:
    """A first layer that passes a position on, and a last one that adds a large bias."""
    net = mlp(1, (4, 4), 1, "relu")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net[4].bias.fill_(1003.25)
    mixed, _ = made(MixedMlp, [net])
    assert mixed.evaluate(torch.zeros(2, 1)).flatten().tolist() == [1003.25, 1003.25]
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[0].bias.fill_(-1000.0)
        net[2].weight.fill_(0.25)
        net[4].weight.fill_(0.25)
        net[4].bias.zero_()
    assert mixed.evaluate(torch.tensor([[1003.0]])).item() == 3.0  # 1003 itself would be 1004


class Products(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:  # type: ignore[type-arg]
        if func.overloadpacket.__name__ in ("bmm", "baddbmm"):  # type: ignore[attr-defined]
            self.dtypes.append(args[-1].dtype)
        return func(*args, **(kwargs or {}))  # type: ignore[operator]


def test_the_products_between_hidden_layers_are_in_bfloat16_and_no_others() -> None:
    mixed, _ = pair(1, "relu", (32, 48, 64))
    with Products() as products:
        mixed.evaluate(torch.randn(8, 5))
        mixed.pull_back(torch.randn(1, 8, 2))
    forward, backward = products.dtypes[:4], products.dtypes[4:]
    low, full = torch.bfloat16, torch.float32
    assert forward == [full, low, low, full]
    assert backward == [full, full, low, low, low, low, full]


def test_one_hidden_layer_has_nothing_to_round() -> None:
    assert can_round(mlp(3, (8, 8), 1, "relu"))
    assert not can_round(mlp(3, (8,), 1, "relu"))
    assert not can_round(mlp(3, (8, 8), 1, "silu"))
