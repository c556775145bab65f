from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from offpolicy.algos.optim import DivergenceGuard, GuardedAdam, clip_norm, optimizer_step

CPU = torch.device("cpu")


def test_steps_are_those_of_torch_adam_bit_for_bit() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    guarded = GuardedAdam(dict(ours.named_parameters()), 1e-2, DivergenceGuard(CPU))
    adam = torch.optim.Adam(theirs.parameters(), lr=1e-2, fused=True)
    for obs in torch.randn(6, 4, 5):
        optimizer_step(ours(obs).square().mean(), guarded, max_grad_norm=None)
        adam.zero_grad()
        theirs(obs).square().mean().backward()
        adam.step()
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)


def one_parameter(value: float) -> tuple[nn.Parameter, GuardedAdam]:
    weight = nn.Parameter(torch.tensor([value]))
    return weight, GuardedAdam({"weight": weight}, 0.1, DivergenceGuard(CPU))


def parts(weight: Tensor, adam: GuardedAdam) -> list[float]:
    tensors = (weight, adam.exp_avg[0], adam.exp_avg_sq[0], adam.num_steps)
    return [float(tensor.detach().sum()) for tensor in tensors]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_bad_loss_moves_nothing_and_stops_every_later_step(poison: float) -> None:
    weight, adam = one_parameter(2.0)
    optimizer_step(weight.square().sum(), adam, max_grad_norm=None)
    before = parts(weight, adam)
    assert not adam.guard.has_tripped()
    optimizer_step(weight.square().sum() * poison, adam, max_grad_norm=None)
    optimizer_step(weight.square().sum(), adam, max_grad_norm=None)
    assert adam.guard.has_tripped()
    assert parts(weight, adam) == before


def test_a_finite_loss_with_an_infinite_gradient_moves_nothing() -> None:
    weight, adam = one_parameter(0.0)
    loss = weight.sqrt().sum()  # 0, with slope infinity
    optimizer_step(loss, adam, max_grad_norm=1.0)
    assert adam.guard.has_tripped()
    assert parts(weight, adam) == [0.0, 0.0, 0.0, 0.0]


def test_an_infinite_loss_with_a_finite_gradient_trips() -> None:
    weight, adam = one_parameter(1.0)
    optimizer_step(weight.sum() + float("inf"), adam, max_grad_norm=None)
    assert adam.guard.has_tripped()
    assert float(weight.detach()) == 1.0


def test_watch_trips_on_a_bad_element_and_stays_tripped() -> None:
    guard = DivergenceGuard(CPU)
    guard.watch(torch.tensor([1.0, 2.0]))
    assert not guard.has_tripped()
    guard.watch(torch.tensor([1.0, float("nan")]))
    guard.watch(torch.tensor([1.0, 2.0]))
    assert guard.has_tripped()


def test_only_the_parameters_of_the_optimiser_are_differentiated() -> None:
    weight, adam = one_parameter(2.0)
    other = nn.Parameter(torch.tensor([3.0]))
    optimizer_step((weight * other).sum(), adam, max_grad_norm=None)
    assert other.grad is None
    assert float(weight.detach()) != 2.0


def test_clipping_scales_all_gradients_to_the_norm() -> None:
    gradients = (torch.tensor([3.0]), torch.tensor([[4.0]]))
    clip_norm(gradients, 1.0)
    assert [float(gradient) for gradient in gradients] == pytest.approx([0.6, 0.8], rel=1e-5)


def test_clipping_leaves_small_gradients_alone() -> None:
    gradients = (torch.tensor([0.3]), torch.tensor([0.4]))
    clip_norm(gradients, 1.0)
    assert [float(gradient) for gradient in gradients] == pytest.approx([0.3, 0.4])


@pytest.mark.parametrize(("max_grad_norm", "expected"), [(None, 4.0), (0.5, 0.5)])
def test_a_step_clips_only_when_asked(max_grad_norm: float | None, expected: float) -> None:
    weight, adam = one_parameter(2.0)
    optimizer_step(weight.square().sum(), adam, max_grad_norm)
    assert float(adam.exp_avg[0]) == pytest.approx(0.1 * expected, rel=1e-4)
