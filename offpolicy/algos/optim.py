"""Optimiser steps that can never put a NaN into a parameter, without asking the device for an answer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from offpolicy.protocols import Exchange

BETAS = (0.9, 0.999)
EPS = 1e-8


class DivergenceGuard:
    """A flag on the device that, once a loss or a gradient is not finite, stops every later step.

    The fused Adam kernel skips its work where `found_inf` is 1, so parameters and moments stay bit for bit as they
    were before the bad step, and nobody waits for the device. Gradients are looked at as well as the loss, because a
    finite loss can have an infinite gradient; one fused kernel reads both. Polyak updates need no guard: they only
    ever average finite numbers (after a trip the targets drift towards the parameters, which no longer move).
    """

    def __init__(self, device: torch.device) -> None:
        self.flag = torch.zeros((), device=device)  # 0 or 1; sticky
        self._one = torch.ones((), device=device)

    @torch.no_grad()
    def watch(self, tensor: Tensor) -> None:
        """Trip if any element is not finite."""
        self.flag.copy_(torch.maximum(self.flag, tensor.isfinite().all().logical_not()))

    def watch_step(self, loss: Tensor, gradients: tuple[Tensor, ...]) -> None:
        """Trip if the loss or any element of the gradients is not finite; multiplies them in place by one."""
        torch._amp_foreach_non_finite_check_and_unscale_((loss, *gradients), self.flag, self._one)

    def has_tripped(self) -> bool:
        """Whether any step was refused. Waits for the device: only for log and checkpoint time."""
        return bool(self.flag.item())


class GuardedAdam:
    """Adam (arXiv:1412.6980, algorithm 1) that does nothing once its guard has tripped.

    It calls the kernel of `torch.optim.Adam(fused=True)` and gives the same numbers. It is not that class because a
    third of the class's step on a CPU is bookkeeping, and because its state, plain tensors that exist from the
    start, needs no pickle to be saved.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], lr: float | Tensor, guard: DivergenceGuard) -> None:
        """`lr` is read at every step: a number, which may be set anew, or a tensor [] on the parameters' device."""
        self.names = tuple(parameters)
        self.parameters: tuple[Tensor, ...] = tuple(parameters.values())
        self.guard = guard
        self.num_steps = torch.zeros((), device=guard.flag.device)  # steps taken, not steps refused
        self.exp_avg = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.exp_avg_sq = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.lr = lr

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...]) -> None:
        """Move every parameter by its gradient."""
        self.num_steps.add_(1.0).sub_(self.guard.flag)
        torch._fused_adam_(
            self.parameters,
            gradients,
            self.exp_avg,
            self.exp_avg_sq,
            max_exp_avg_sqs=[],
            state_steps=[self.num_steps] * len(self.parameters),
            lr=self.lr,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=0.0,
            eps=EPS,
            amsgrad=False,
            maximize=False,
            found_inf=self.guard.flag,
        )


class SoloExchange:
    """The exchange of a learner that is alone: every collective is the identity."""

    num_ranks = 1

    def average(self, tensors: Sequence[Tensor]) -> None:
        """The mean of one."""

    def gather(self, vector: Tensor) -> Tensor:
        """The vector [n] as [1, n]."""
        return vector[None]


class Objective(NamedTuple):
    """A scalar loss and the optimiser that lowers it; clips the norm of its gradients together, if asked."""

    loss: Tensor
    optimizer: GuardedAdam
    max_grad_norm: float | None = None


class OptimizerStep:
    """How every optimiser step of a learner is made: differentiate, average over ranks, guard, clip, move."""

    def __init__(self, device: torch.device, exchange: Exchange) -> None:
        self.exchange = exchange
        self.guard = DivergenceGuard(device)
        self.origin = DivergenceGuard(device)  # trips only on the rank whose own numbers were bad, to name it

    def step(self, *objectives: Objective) -> None:
        """One descent step on each objective, with one exchange for all of them.

        Only an optimiser's own parameters are differentiated, so no step can leave gradients behind in another
        network. The guard looks after the averaging, which hands a NaN of one rank to all of them: every rank refuses
        the same step. It looks before the clipping, which would turn an infinite gradient into zero.
        """
        losses = [objective.loss.detach() for objective in objectives]
        gradients = [torch.autograd.grad(each.loss, each.optimizer.parameters) for each in objectives]
        if self.exchange.num_ranks > 1:
            for loss, own in zip(losses, gradients, strict=True):
                self.origin.watch_step(loss, own)
            losses = [loss.clone() for loss in losses]  # the caller reports its own
            self.exchange.average([*losses, *itertools.chain(*gradients)])
        for loss, mean, objective in zip(losses, gradients, objectives, strict=True):
            self.guard.watch_step(loss, mean)
            if objective.max_grad_norm is not None:
                clip_norm(mean, objective.max_grad_norm)
            objective.optimizer.step(mean)


def clip_norm(gradients: tuple[Tensor, ...], max_norm: float) -> None:
    """Scale the gradients in place so that their joint L2 norm is at most max_norm."""
    norm = torch.nn.utils.get_total_norm(gradients)
    torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))


def optimizer_tensors(**optimizers: GuardedAdam) -> dict[str, Tensor]:
    """The live tensors of optimisers, by `<keyword>.num_steps` and `<keyword>.<exp_avg or exp_avg_sq>.<parameter>`."""
    tensors: dict[str, Tensor] = {}
    for prefix, optimizer in optimizers.items():
        tensors[f"{prefix}.num_steps"] = optimizer.num_steps
        for name, exp_avg, exp_avg_sq in zip(optimizer.names, optimizer.exp_avg, optimizer.exp_avg_sq, strict=True):
            tensors[f"{prefix}.exp_avg.{name}"] = exp_avg
            tensors[f"{prefix}.exp_avg_sq.{name}"] = exp_avg_sq
    return tensors
