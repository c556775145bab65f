from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from offpolicy.algos.optim import GuardedAdam, LearningRate, Loss, OptimizerStep, SoloExchange, clip, squared_norms_of
from offpolicy.config.algorithms import AlgoConfig

CPU = torch.device("cpu")


def test_steps_are_those_of_torch_adam_bit_for_bit() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    optimizer_step = OptimizerStep(CPU, SoloExchange())
    guarded = GuardedAdam(dict(ours.named_parameters()), 1e-2, optimizer_step.guard)
    block = nn.Parameter(guarded.block.clone())  # torch's kernel rounds the ends of a tensor in another way
    adams = [torch.optim.Adam(params, lr=1e-2, fused=True) for params in (theirs.parameters(), [block])]
    for obs in torch.randn(6, 4, 5):
        optimizer_step.minimize(Loss(ours(obs).square().mean(), guarded))
        adams[0].zero_grad()
        theirs(obs).square().mean().backward()
        block.grad = guarded.gradient.clone()
        for adam in adams:
            adam.step()
    assert torch.equal(guarded.block, block.detach())
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(mine, other, rtol=0.0, atol=1e-7)


def test_a_gradient_of_other_strides_moves_what_it_belongs_to() -> None:
    """The fused kernel on the CPU ignores strides: einsum's transposed gradient moved other weights than its own."""
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.ones(3, 4, 2)) for _ in range(2))
    optimizer_step = OptimizerStep(CPU, SoloExchange())
    guarded = GuardedAdam({"weight": ours}, 1e-2, optimizer_step.guard)
    adam, obs = torch.optim.Adam([theirs], lr=1e-2), torch.randn(3, 5, 2)
    losses = [
        torch.einsum("nbi,noi->nbo", obs, weight).square().mul(torch.arange(4)).sum() for weight in (ours, theirs)
    ]
    (gradient,) = torch.autograd.grad(losses[0], (ours,), retain_graph=True)
    assert gradient.stride() != ours.stride()
    optimizer_step.minimize(Loss(losses[0], guarded))
    losses[1].backward()
    adam.step()
    assert torch.allclose(ours, theirs, rtol=0.0, atol=1e-7)


def one_parameter(value: float) -> tuple[nn.Parameter, GuardedAdam, OptimizerStep]:
    weight, optimizer_step = nn.Parameter(torch.tensor([value])), OptimizerStep(CPU, SoloExchange())
    return weight, GuardedAdam({"weight": weight}, 0.1, optimizer_step.guard), optimizer_step


def parts(weight: Tensor, adam: GuardedAdam) -> list[float]:
    return [float(tensor.detach().sum()) for tensor in (weight, *adam.tensors().values())]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_bad_loss_moves_nothing_and_stops_every_later_step(poison: float) -> None:
    weight, adam, optimizer_step = one_parameter(2.0)
    optimizer_step.minimize(Loss(weight.square().sum(), adam))
    before = parts(weight, adam)
    assert not optimizer_step.guard.has_tripped()
    optimizer_step.minimize(Loss(weight.square().sum() * poison, adam))
    optimizer_step.minimize(Loss(weight.square().sum(), adam))
    assert optimizer_step.guard.has_tripped()
    assert parts(weight, adam) == before


def test_a_finite_loss_with_an_infinite_gradient_moves_nothing() -> None:
    weight, adam, optimizer_step = one_parameter(0.0)
    loss = weight.sqrt().sum()  # 0, with slope infinity
    optimizer_step.minimize(Loss(loss, adam, 1.0))
    assert optimizer_step.guard.has_tripped()
    assert parts(weight, adam) == [0.0, 0.0, 0.0, 0.0]


def test_clipping_scales_a_gradient_to_the_norm() -> None:
    gradient = torch.tensor([3.0, 4.0])
    clip(gradient, squared_norms_of((gradient,))[0], 1.0)
    assert gradient.tolist() == pytest.approx([0.6, 0.8], rel=1e-5)


@pytest.mark.parametrize("max_grad_norm", [None, 1.0])
@pytest.mark.parametrize(
    ("elements", "overflows"), [((1e18, -1e18), False), ((2e19, 0.0), True), ((1.5e19,) * 3, True)]
)
def test_a_gradient_whose_squared_norm_overflows_stops_the_run(
    elements: tuple[float, ...], overflows: bool, max_grad_norm: float | None
) -> None:
    """Clipping made a step of zero of it, and Adam without clipping an infinite moment, without a word."""
    weight, optimizer_step = nn.Parameter(torch.ones(len(elements))), OptimizerStep(CPU, SoloExchange())
    adam = GuardedAdam({"weight": weight}, 0.1, optimizer_step.guard)
    optimizer_step.minimize(Loss((weight * torch.tensor(elements)).sum(), adam, max_grad_norm))
    assert optimizer_step.guard.has_tripped() == overflows
    assert bool((weight.detach() == 1.0).all()) == overflows
    assert all(bool(tensor.isfinite().all()) for tensor in adam.tensors().values())


class Averaging:
    """An exchange with another rank that always brings the same numbers."""

    num_ranks = 2

    def __init__(self, other: float) -> None:
        self.other = other
        self.num_calls = 0

    def average(self, tensors: Sequence[Tensor]) -> None:
        self.num_calls += 1
        for tensor in tensors:
            tensor.add_(self.other).mul_(0.5)

    def gather(self, vector: Tensor) -> Tensor:
        return torch.stack((vector, torch.full_like(vector, self.other)))


def test_the_step_is_made_with_the_mean_of_the_ranks_gradients() -> None:
    weight, optimizer_step = nn.Parameter(torch.tensor([2.0])), OptimizerStep(CPU, Averaging(other=10.0))
    adam = GuardedAdam({"weight": weight}, 0.1, optimizer_step.guard)
    optimizer_step.minimize(Loss(weight.square().sum(), adam))  # own gradient 4
    assert float(adam.tensors()["exp_avg.weight"]) == pytest.approx(0.1 * 7.0)


def test_a_nan_of_another_rank_stops_the_step_here_and_is_not_called_ours() -> None:
    weight, optimizer_step = nn.Parameter(torch.tensor([2.0])), OptimizerStep(CPU, Averaging(other=float("nan")))
    adam = GuardedAdam({"weight": weight}, 0.1, optimizer_step.guard)
    optimizer_step.minimize(Loss(weight.square().sum(), adam))
    assert float(weight.detach()) == 2.0
    assert (optimizer_step.guard.has_tripped(), optimizer_step.origin.has_tripped()) == (True, False)


def test_a_norm_that_is_too_great_on_this_rank_alone_stops_nothing_and_is_not_called_ours() -> None:
    # The square of the own gradient, 2e19, overflows; that of the mean, 1e19 with the other's 0, does not.
    weight, optimizer_step = nn.Parameter(torch.tensor([2.0])), OptimizerStep(CPU, Averaging(other=0.0))
    adam = GuardedAdam({"weight": weight}, 0.1, optimizer_step.guard)
    optimizer_step.minimize(Loss(weight.sum() * 2e19, adam))
    assert (optimizer_step.guard.has_tripped(), optimizer_step.origin.has_tripped()) == (False, False)
    assert float(weight.detach()) != 2.0


LR = 1e-3


def learning_rate(schedule: str, lr: float = LR) -> LearningRate:
    algo = AlgoConfig(name="appo", lr=lr, lr_schedule=schedule, target_kl=0.01)
    return LearningRate(algo, torch.device("cpu"))


def after_kl(schedule: str, *kls: float, lr: float = LR) -> float:
    """The step size after epochs of these KLs."""
    size = learning_rate(schedule, lr)
    for kl in kls:
        size.follow_kl(torch.tensor(kl))
    return float(size.value)


def after_progress(schedule: str, progress: float) -> float:
    size = learning_rate(schedule)
    size.follow_progress(progress)
    return float(size.value)


@pytest.mark.parametrize(
    ("kl", "factor"),
    [(0.0, 1.5), (0.0049, 1.5), (0.0051, 1.0), (0.01, 1.0), (0.0199, 1.0), (0.0201, 1 / 1.5), (float("inf"), 1 / 1.5)],
)
def test_kl_adaptive_shrinks_above_twice_the_target_and_grows_below_half(kl: float, factor: float) -> None:
    assert after_kl("kl_adaptive", kl) == pytest.approx(factor * LR)


@pytest.mark.parametrize(("progress", "share"), [(0.0, 1.0), (0.25, 0.75), (1.0, 0.0), (1.1, 0.0)])
def test_linear_falls_to_zero_at_the_end_of_the_run(progress: float, share: float) -> None:
    assert after_progress("linear", progress) == pytest.approx(share * LR)
