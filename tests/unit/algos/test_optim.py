from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from offpolicy.algos.optim import (
    DivergenceGuard,
    GuardedAdam,
    LearningRate,
    Loss,
    OptimizerStep,
    SoloExchange,
    clip,
    squared_norms_of,
)
from offpolicy.algos.registry import make_learner
from offpolicy.config.sections import AlgoConfig
from offpolicy.nets.critics import TwinCritic
from offpolicy.nets.fusing import fuse
from offpolicy.nets.mlp import mlp
from offpolicy.types import Batch, Batches, SpaceSpec

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


def test_a_gradient_that_is_written_out_needs_no_graph() -> None:
    weight, adam, optimizer_step = one_parameter(2.0)
    loss = Loss(weight.detach().square().sum(), adam, write_gradient=lambda: adam.gradient.copy_(2.0 * weight.detach()))
    optimizer_step.minimize(loss)
    assert float(adam.tensors()["exp_avg.weight"]) == pytest.approx(0.1 * 4.0)


def test_several_losses_of_one_optimiser_are_refused() -> None:
    weight, adam, optimizer_step = one_parameter(2.0)
    with pytest.raises(ValueError, match="several losses of one optimiser"):
        optimizer_step.minimize(Loss(3.0 * weight.sum(), adam), Loss(-5.0 * weight.sum(), adam))
    assert float(weight.detach()) == 2.0


def test_a_loss_through_another_network_leaves_its_gradient_alone() -> None:
    """As an actor's loss through the critic that is stepped with it."""
    guard = DivergenceGuard(CPU)
    critic, actor = TwinCritic(3, 2, (16, 16), "relu"), mlp(3, (16,), 2, "tanh")
    adams = [GuardedAdam(p, 1e-2, guard) for p in (critic.parameters_by_layer(), dict(actor.named_parameters()))]
    for network, adam in zip((critic, actor), adams, strict=True):
        fuse(network, adam.gradients)
    obs = torch.randn(8, 3)
    adams[0].differentiate(critic(obs, torch.randn(8, 2)).square().mean())
    before = adams[0].gradient.clone()
    adams[1].differentiate(-critic(obs[:6], actor(obs[:6])).amin(dim=0).mean())
    assert torch.equal(adams[0].gradient, before)
    assert bool(adams[1].gradient.any())


def test_parameters_that_moved_are_refused() -> None:
    """`module.to` gives them other memory, and the steps would move the memory that they left."""
    net = nn.Linear(3, 2)
    adam = GuardedAdam(dict(net.named_parameters()), 0.1, DivergenceGuard(CPU))
    adam.step()
    net._apply(torch.clone)
    with pytest.raises(RuntimeError, match="the parameters have moved since their optimiser was made"):
        adam.step()


def test_one_bad_loss_stops_the_steps_down_all_of_them() -> None:
    optimizer_step = OptimizerStep(CPU, SoloExchange())
    weights = [nn.Parameter(torch.tensor([1.0])) for _ in range(2)]
    adams = [GuardedAdam({"weight": weight}, 0.1, optimizer_step.guard) for weight in weights]
    losses = [weights[0].sum(), weights[1].sum() * float("nan")]
    optimizer_step.minimize(*[Loss(loss, adam) for loss, adam in zip(losses, adams, strict=True)])
    assert [float(weight.detach()) for weight in weights] == [1.0, 1.0]


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


def test_an_infinite_loss_with_a_finite_gradient_trips() -> None:
    weight, adam, optimizer_step = one_parameter(1.0)
    optimizer_step.minimize(Loss(weight.sum() + float("inf"), adam))
    assert optimizer_step.guard.has_tripped()
    assert float(weight.detach()) == 1.0


def test_watch_trips_on_a_bad_element_and_stays_tripped() -> None:
    guard = DivergenceGuard(CPU)
    guard.watch(torch.tensor([1.0, 2.0]))
    assert not guard.has_tripped()
    guard.watch(torch.tensor([1.0, float("nan")]))
    guard.watch(torch.tensor([1.0, 2.0]))
    assert guard.has_tripped()


def test_only_the_parameters_of_the_optimiser_are_differentiated() -> None:
    weight, adam, optimizer_step = one_parameter(2.0)
    other = nn.Parameter(torch.tensor([3.0]))
    optimizer_step.minimize(Loss((weight * other).sum(), adam))
    assert other.grad is None
    assert float(weight.detach()) != 2.0


def test_clipping_scales_a_gradient_to_the_norm() -> None:
    gradient = torch.tensor([3.0, 4.0])
    clip(gradient, squared_norms_of((gradient,))[0], 1.0)
    assert gradient.tolist() == pytest.approx([0.6, 0.8], rel=1e-5)


def test_clipping_leaves_a_small_gradient_alone() -> None:
    gradient = torch.tensor([0.3, 0.4])
    clip(gradient, squared_norms_of((gradient,))[0], 1.0)
    assert gradient.tolist() == pytest.approx([0.3, 0.4])


@pytest.mark.parametrize("max_grad_norm", [None, 1.0])
@pytest.mark.parametrize(
    ("elements", "overflows"), [((1e18, -1e18), False), ((2e19, 0.0), True), ((1.5e19,) * 3, True)]
)
def test_a_gradient_whose_squared_norm_overflows_stops_the_run(
    elements: tuple[float, ...], overflows: bool, max_grad_norm: float | None
) -> None:
    """Clipping made a step of zero of it, and Adam without clipping an infinite moment, and nobody was told."""
    weight, optimizer_step = nn.Parameter(torch.ones(len(elements))), OptimizerStep(CPU, SoloExchange())
    adam = GuardedAdam({"weight": weight}, 0.1, optimizer_step.guard)
    optimizer_step.minimize(Loss((weight * torch.tensor(elements)).sum(), adam, max_grad_norm))
    assert optimizer_step.guard.has_tripped() == overflows
    assert bool((weight.detach() == 1.0).all()) == overflows
    assert all(bool(tensor.isfinite().all()) for tensor in adam.tensors().values())


@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_a_learner_whose_gradient_overflows_has_diverged(name: str, activation: str) -> None:
    """relu: gradients that fused networks write; silu: those of autograd. Losses and gradients are finite numbers."""
    algo = AlgoConfig(name=name, activation=activation, hidden_dims=(8,), max_grad_norm=1.0)
    learner = make_learner(algo, SpaceSpec(3, 1, (-1.0,), (1.0,)), CPU, seed=0)
    before = learner.state().tensors
    obs, reward = torch.full((4, 3), 1e9), torch.full((4,), 1e11)
    batch = Batch(obs, torch.zeros(4, 1), reward, obs, torch.ones(4), torch.ones(4))
    learner.update(Batches((batch,), fresh_obs=None))
    assert learner.has_diverged()
    names = [name for name in before if name.startswith("policy.") or name.startswith("critic")]
    assert all(torch.equal(learner.state().tensors[name], before[name]) for name in names)
    assert all(math.isfinite(total) for total in learner.read_metrics().sums[:3])


@pytest.mark.parametrize(("max_grad_norm", "expected"), [(None, 4.0), (0.5, 0.5)])
def test_a_step_clips_only_when_asked(max_grad_norm: float | None, expected: float) -> None:
    weight, adam, optimizer_step = one_parameter(2.0)
    optimizer_step.minimize(Loss(weight.square().sum(), adam, max_grad_norm))
    assert float(adam.tensors()["exp_avg.weight"]) == pytest.approx(0.1 * expected, rel=1e-4)


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


def test_two_losses_share_one_exchange_and_stay_local() -> None:
    exchange = Averaging(other=0.0)
    optimizer_step = OptimizerStep(CPU, exchange)
    first, second = nn.Parameter(torch.tensor([2.0])), nn.Parameter(torch.tensor([3.0]))
    adams = [GuardedAdam({"weight": weight}, 0.1, optimizer_step.guard) for weight in (first, second)]
    losses = [first.square().sum(), second.square().sum()]
    optimizer_step.minimize(*[Loss(loss, adam) for loss, adam in zip(losses, adams, strict=True)])
    assert exchange.num_calls == 1
    assert [float(adam.tensors()["exp_avg.weight"]) for adam in adams] == pytest.approx([0.2, 0.3])
    assert [float(loss.detach()) for loss in losses] == [4.0, 9.0]


def test_a_nan_of_another_rank_stops_the_step_here_and_is_not_called_ours() -> None:
    weight, optimizer_step = nn.Parameter(torch.tensor([2.0])), OptimizerStep(CPU, Averaging(other=float("nan")))
    adam = GuardedAdam({"weight": weight}, 0.1, optimizer_step.guard)
    optimizer_step.minimize(Loss(weight.square().sum(), adam))
    assert float(weight.detach()) == 2.0
    assert (optimizer_step.guard.has_tripped(), optimizer_step.origin.has_tripped()) == (True, False)


def test_a_norm_that_overflows_here_and_not_in_the_mean_is_not_called_ours_later() -> None:
    exchange = Averaging(other=-1.9e19)
    weight, optimizer_step = nn.Parameter(torch.tensor([2.0])), OptimizerStep(CPU, exchange)
    adam = GuardedAdam({"weight": weight}, 0.1, optimizer_step.guard)
    optimizer_step.minimize(Loss(weight.sum() * 2e19, adam))
    exchange.other = float("nan")
    optimizer_step.minimize(Loss(weight.sum(), adam))
    assert (optimizer_step.guard.has_tripped(), optimizer_step.origin.has_tripped()) == (True, False)


def test_a_nan_of_this_rank_is_called_ours() -> None:
    weight, optimizer_step = nn.Parameter(torch.tensor([2.0])), OptimizerStep(CPU, Averaging(other=1.0))
    adam = GuardedAdam({"weight": weight}, 0.1, optimizer_step.guard)
    optimizer_step.minimize(Loss(weight.sum() * float("nan"), adam))
    assert (optimizer_step.guard.has_tripped(), optimizer_step.origin.has_tripped()) == (True, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_the_exchange_of_one_is_the_identity(dtype: torch.dtype) -> None:
    tensors = [torch.arange(3, dtype=dtype), torch.tensor(7, dtype=dtype)]
    alone = SoloExchange()
    alone.average(tensors)
    assert [tensor.tolist() for tensor in tensors] == [[0, 1, 2], 7]
    assert alone.gather(tensors[0]).tolist() == [[0, 1, 2]]


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


def test_a_nan_kl_changes_nothing() -> None:
    assert after_kl("kl_adaptive", float("nan")) == pytest.approx(LR)


def test_changes_add_up_over_epochs() -> None:
    assert after_kl("kl_adaptive", 1.0, 1.0, 0.0) == pytest.approx(LR / 1.5)


@pytest.mark.parametrize(("kl", "limit"), [(1.0, 1e-6), (0.0, 1e-2)])
def test_kl_adaptive_has_limits(kl: float, limit: float) -> None:
    assert after_kl("kl_adaptive", *[kl] * 40) == pytest.approx(limit)


@pytest.mark.parametrize(("progress", "share"), [(0.0, 1.0), (0.25, 0.75), (1.0, 0.0), (1.1, 0.0)])
def test_linear_falls_to_zero_at_the_end_of_the_run(progress: float, share: float) -> None:
    assert after_progress("linear", progress) == pytest.approx(share * LR)


@pytest.mark.parametrize("schedule", ["constant", "kl_adaptive"])
def test_only_linear_follows_progress(schedule: str) -> None:
    assert after_progress(schedule, 0.5) == pytest.approx(LR)


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_only_kl_adaptive_follows_the_kl(schedule: str) -> None:
    assert after_kl(schedule, 1.0) == pytest.approx(LR)
    assert learning_rate(schedule).is_adaptive is False


@pytest.mark.parametrize("schedule", ["linear", "kl_adaptive"])
def test_the_tensor_that_the_optimiser_reads_stays_the_same_one(schedule: str) -> None:
    size = learning_rate(schedule)
    value = size.value
    size.follow_progress(0.5)
    size.follow_kl(torch.tensor(1.0))
    assert size.value is value
    assert float(value) < LR


ADAM = (
    "(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, Tensor(d!)[] exp_avg_sqs,"
    " Tensor(e!)[] max_exp_avg_sqs, Tensor[] state_steps, *, {} lr, float beta1, float beta2, float weight_decay,"
    " float eps, bool amsgrad, bool maximize, Tensor? grad_scale=None, Tensor? found_inf=None) -> ()"
)


@pytest.mark.parametrize(
    ("name", "overload", "signature"),
    [
        ("_fused_adam_", "default", ADAM.format("float")),
        ("_fused_adam_", "tensor_lr", ADAM.format("Tensor")),
        (
            *("_amp_foreach_non_finite_check_and_unscale_", "default"),
            "(Tensor(a!)[] self, Tensor(b!) found_inf, Tensor inv_scale) -> ()",
        ),
        ("_foreach_mul_", "Tensor", "(Tensor(a!)[] self, Tensor other) -> ()"),
        ("_foreach_lerp_", "Scalar", "(Tensor(a!)[] self, Tensor[] tensors1, Scalar weight) -> ()"),
    ],
)
def test_torch_keeps_the_private_kernels_of_a_step(name: str, overload: str, signature: str) -> None:
    kernel = getattr(getattr(torch.ops.aten, name, None), overload, None)
    assert kernel is not None, f"torch {torch.__version__} has no torch.{name} ({overload})"
    found = str(kernel._schema)
    assert found.endswith(signature), f"torch {torch.__version__} changed torch.{name}: {found}"
