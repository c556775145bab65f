"""Fused perceptrons against the modules that they are made of, and against finite differences."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from offpolicy.algos.optim import DivergenceGuard, GuardedAdam
from offpolicy.config.rules import BF16_ACTIVATIONS
from offpolicy.nets.activations import FUSED_ACTIVATIONS
from offpolicy.nets.flat import join, views
from offpolicy.nets.fused import FusedMlp, Layer, Workspace, can_fuse, stacked
from offpolicy.nets.mlp import ACTIVATIONS, mlp

activations = pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
counts = pytest.mark.parametrize("num_nets", [1, 2, 3])


def gradient_memory(nets: Sequence[nn.Sequential]) -> dict[Tensor, Tensor]:
    """Joins the parameters layer by layer, with memory for their gradients that holds NaN until it is written."""
    by_layer = [p for layer in zip(*(net.parameters() for net in nets), strict=True) for p in layer]
    gradients = views(torch.full_like(join(by_layer), float("nan")), [p.shape for p in by_layer])
    return dict(zip(by_layer, gradients, strict=True))


def fused(nets: Sequence[nn.Sequential], workspace: Workspace | None = None) -> FusedMlp:
    return FusedMlp(nets, gradient_memory(nets), workspace or Workspace())


def nets_of(
    num_nets: int, activation: str = "relu", hidden: tuple[int, ...] = (8, 12), num_outputs: int = 2
) -> list[nn.Sequential]:
    return [mlp(5, hidden, num_outputs, activation) for _ in range(num_nets)]


def parts(rows: int = 7, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return tuple(torch.randn(rows, width, dtype=dtype, requires_grad=True) for width in (3, 2))  # type: ignore[return-value]


@activations
@counts
@pytest.mark.parametrize("hidden", [(8,), (32, 12), (7, 9, 11)], ids=str)
@pytest.mark.parametrize("num_outputs", [1, 2])
def test_values_and_gradients_are_those_of_autograd(
    activation: str, num_nets: int, num_outputs: int, hidden: tuple[int, ...]
) -> None:
    nets = nets_of(num_nets, activation, hidden, num_outputs)
    net, inputs = fused(nets), parts()
    plain = torch.stack([module(torch.cat(inputs, dim=1)) for module in nets])
    slope, wanted = torch.randn_like(plain), (*inputs, *net.parameters)
    expected = torch.autograd.grad(plain, wanted, slope)
    output = net(*inputs)
    assert torch.allclose(output, plain, rtol=0.0, atol=1e-6)
    for ours, theirs in zip(torch.autograd.grad(output, wanted, slope), expected, strict=True):
        assert ours.shape == theirs.shape
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-6)


@activations
@counts
def test_gradients_agree_with_finite_differences(activation: str, num_nets: int) -> None:
    nets = [net.double() for net in nets_of(num_nets, activation)]

    def output(obs: Tensor, action: Tensor) -> Tensor:
        return fused(nets)(obs, action)  # a fresh one: what is kept would be overwritten by the next evaluation

    assert torch.autograd.gradcheck(output, parts(dtype=torch.float64))


def test_gradients_of_autograd_are_in_fresh_memory_with_the_strides_of_the_parameters() -> None:
    nets = nets_of(2, hidden=(64, 64))
    memory = gradient_memory(nets)
    net = FusedMlp(nets, memory, Workspace())
    gradients = torch.autograd.grad(net(*parts()).sum(), net.parameters)
    for gradient, parameter in zip(gradients, net.parameters, strict=True):
        assert gradient.stride() == parameter.stride()
        assert bool(gradient.isfinite().all())
        assert bool(memory[parameter].isnan().all())


def test_frozen_networks_are_differentiated_by_their_inputs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    net, inputs = fused(nets_of(2)), parts()
    expected = torch.autograd.grad(net(*inputs).sum(), inputs)
    monkeypatch.setattr(Layer, "fresh_gradients", lambda layer: pytest.fail("gradients of parameters are made"))
    output = net.frozen(*inputs)
    assert all(torch.equal(*pair) for pair in zip(torch.autograd.grad(output.sum(), inputs), expected, strict=True))
    with pytest.raises(pytest.fail.Exception, match="of parameters are made"):
        torch.autograd.grad(net(*inputs).sum(), inputs)


def test_only_the_part_that_needs_a_gradient_has_a_product_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    net, (obs, action) = fused(nets_of(2)), parts()
    expected, made = torch.autograd.grad(net.frozen(obs, action).sum(), (action,)), list[tuple[int, int]]()
    input_gradient = FusedMlp.input_gradient

    def noted(self: FusedMlp, above: Tensor, start: int, width: int) -> Tensor:
        made.append((start, width))
        return input_gradient(self, above, start, width)

    monkeypatch.setattr(FusedMlp, "input_gradient", noted)
    found = torch.autograd.grad(net.frozen(obs.detach(), action).sum(), (action,))
    assert made == [(3, 2)]
    assert torch.equal(found[0], expected[0])


def test_the_activations_of_bfloat16_are_those_that_have_kernels() -> None:
    assert {name for name, make in ACTIVATIONS.items() if type(make()) in FUSED_ACTIVATIONS} == set(BF16_ACTIVATIONS)


def test_an_evaluation_that_was_overwritten_cannot_be_pulled_back() -> None:
    net = fused(nets_of(1))
    with torch.no_grad():
        output = net.evaluate(*parts())
    net(*parts())  # another one of as many rows, in a graph of autograd
    for pull_back in (lambda: net.pull_back(output), lambda: net.pull_back_to_input(output, 0)):
        with pytest.raises(RuntimeError, match="overwritten by another pass since they were evaluated"):
            pull_back()


def test_memory_of_an_inference_serves_graphs_too() -> None:
    nets = nets_of(1)
    net, inputs = fused(nets), parts()
    with torch.inference_mode():
        net.evaluate(*inputs)
    expected = torch.autograd.grad(nets[0](torch.cat(inputs, dim=1)).sum(), net.parameters)
    by_graph = torch.autograd.grad(net(*inputs).sum(), net.parameters)
    assert all(torch.allclose(*both, atol=1e-5) for both in zip(by_graph, expected, strict=True))


def test_memory_of_an_inference_with_constant_rows_serves_later_passes_too() -> None:
    nets = nets_of(1)
    memory = gradient_memory(nets)
    net = FusedMlp(nets, memory, Workspace())
    rows, constant, slope = torch.randn(7, 5), torch.randn(2, 5), torch.randn(1, 7, 2)
    with torch.inference_mode():
        net.evaluate_after(constant, rows)
        net.pull_back(slope)
    expected = [gradient.clone() for gradient in memory.values()]
    with torch.no_grad():
        net.evaluate_after(constant, rows)
        net.pull_back(slope)
    assert all(torch.equal(*both) for both in zip(memory.values(), expected, strict=True))


def test_a_forward_pass_that_was_overwritten_cannot_be_differentiated() -> None:
    net, inputs = fused(nets_of(1)), parts()
    first = net(*inputs)
    net(*parts())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(first.sum(), net.parameters)


@pytest.mark.parametrize("is_fused", [True, False])
def test_weights_that_were_stepped_since_the_forward_pass_cannot_be_differentiated(is_fused: bool) -> None:  # noqa: FBT001
    net = mlp(5, (8, 12), 2, "relu")
    adam = GuardedAdam(dict(net.named_parameters()), 0.1, DivergenceGuard(torch.device("cpu")))
    net.fused = FusedMlp([net], adam.gradients, Workspace()) if is_fused else None
    output = net(torch.cat(parts(), dim=1))
    adam.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(output.sum(), tuple(net.parameters()))


def test_outputs_are_not_overwritten() -> None:
    net, inputs = fused(nets_of(2)), parts()
    with torch.no_grad():
        first = net(*inputs)
        before = first.clone()
        net(*parts())
    assert torch.equal(first, before)


def test_an_update_takes_no_memory_of_the_size_of_its_activations() -> None:
    net, inputs = fused(nets_of(2, hidden=(64, 64))), parts(rows=100)
    torch.autograd.grad(net(*inputs).sum(), net.parameters)
    memory = net.memory(100)
    kept = [tensor.data_ptr() for tensor in (memory.inputs.rows, *memory.hidden, *memory.gradients)]
    torch.autograd.grad(net(*inputs).sum(), net.parameters)
    again = net.memory(100)
    assert [tensor.data_ptr() for tensor in (again.inputs.rows, *again.hidden, *again.gradients)] == kept


def test_rows_may_have_several_leading_dimensions_and_any_strides() -> None:
    nets = nets_of(1)
    net, obs = fused(nets), torch.randn(5, 4, 3).permute(2, 1, 0)
    assert net(obs).shape == (1, 3, 4, 2)
    assert torch.allclose(net(obs)[0], nets[0](obs), atol=1e-6)
    with torch.no_grad():
        assert torch.allclose(net(obs)[0], nets[0](obs), atol=1e-6)


@counts
def test_two_sizes_of_batches_in_one_loss_add_up(num_nets: int) -> None:
    nets, small, large = nets_of(num_nets), parts(3), parts(9)
    net = fused(nets)
    wanted = (*small, *large, *net.parameters)
    plain = [torch.stack([module(torch.cat(rows, dim=1)) for module in nets]) for rows in (small, large)]
    expected = torch.autograd.grad(plain[0].square().sum() + plain[1].square().sum(), wanted)
    found = torch.autograd.grad(net(*small).square().sum() + net(*large).square().sum(), wanted)
    assert all(torch.allclose(*pair, rtol=1e-5, atol=1e-5) for pair in zip(found, expected, strict=True))


def test_memory_is_kept_for_the_last_sizes_of_batches_alone() -> None:
    workspace = Workspace()
    net = fused(nets_of(2), workspace)
    kept = [weakref.ref(net.memory(rows)) for rows in range(1, 8)]
    with torch.no_grad():
        for rows in range(1, 30):
            net(*parts(rows))
    assert list(workspace.by_rows) == [4, 5, 6, 7]
    gc.collect()
    assert [memory() is not None for memory in kept] == [False] * 3 + [True] * 4


def test_a_pass_whose_memory_was_given_up_is_differentiated_all_the_same() -> None:
    net, inputs = fused(nets_of(2)), parts(3)
    expected = torch.autograd.grad(net(*inputs).sum(), net.parameters)
    output = net(*inputs)
    for rows in range(10, 15):
        net(*parts(rows))
    found = torch.autograd.grad(output.sum(), net.parameters)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_memory_made_while_evaluating_can_be_learnt_with() -> None:
    workspace = Workspace()
    net, inputs = fused(nets_of(2), workspace), parts()
    torch.autograd.grad(net(*inputs).sum(), net.parameters)
    with torch.inference_mode():
        evaluated = net(*inputs)
    with torch.no_grad():
        assert torch.equal(net(*inputs), evaluated)


def test_a_copied_network_has_no_fused_path() -> None:
    net = mlp(5, (8,), 2, "relu")
    net.fused = fused([net])
    copied = copy.deepcopy(net)
    assert copied.fused is None
    with torch.no_grad():
        copied[0].weight.add_(1.0)
    assert not torch.allclose(copied(torch.ones(1, 5)), net(torch.ones(1, 5)))


def test_parameters_that_moved_are_refused() -> None:
    nets = nets_of(1)
    net = fused(nets)
    nets[0][0].weight.data = torch.zeros(8, 5)
    with pytest.raises(RuntimeError, match="have moved"):
        net(*parts())


def test_parameters_that_lie_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="one block"):
        stacked([torch.zeros(3), torch.zeros(3)])
    block = torch.zeros(20)
    with pytest.raises(ValueError, match="evenly spaced"):
        stacked([block[0:3], block[4:7], block[9:12]])


def test_layer_norm_and_silu_have_no_fused_kernel() -> None:
    assert can_fuse(mlp(3, (8, 8), 1, "relu"))
    assert not can_fuse(mlp(3, (8, 8), 1, "relu", layer_norm=True))
    assert not can_fuse(mlp(3, (8, 8), 1, "silu"))
