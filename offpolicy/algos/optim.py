"""Optimiser steps that can never put a NaN into a parameter, without asking the device for an answer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from offpolicy.algos.losses import polyak_update
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.config.schedules import Ramp, ramp
from offpolicy.nets.flat import join, views
from offpolicy.protocols import Exchange

Network = TypeVar("Network", bound=nn.Module)

BETAS = (0.9, 0.999)
EPS = 1e-8
KL_FACTOR = 1.5  # factor of one change of the adaptive learning rate
LEARNING_RATE_RANGE = (1e-6, 1e-2)  # bounds of the adaptive learning rate


class DivergenceGuard:
    """A flag on the device that, once a loss or a gradient's norm is not finite, stops every later step.

    The fused Adam kernel skips its work where `found_inf` is 1, so parameters and moments stay bit for bit as they
    were before the bad step, and no host thread waits for the device. A finite loss can have an infinite gradient.
    """

    def __init__(self, device: torch.device) -> None:
        self.flag = torch.zeros((), device=device)  # 0 or 1; sticky
        self._one = torch.ones((), device=device)

    @torch.no_grad()
    def watch(self, tensor: Tensor) -> None:
        """Trips if any element is not finite."""
        self.flag.copy_(torch.maximum(self.flag, tensor.isfinite().all().logical_not()))

    def watch_step(self, losses: Sequence[Tensor], squares: Sequence[Tensor]) -> None:
        """Trips if a loss [] or the square of a gradient's norm [] is not finite; multiplies them in place by one."""
        torch._amp_foreach_non_finite_check_and_unscale_((*losses, *squares), self.flag, self._one)

    def steps_made(self) -> Tensor:
        """Returns how many steps are made of one that is wanted: 1, or after a trip 0. []."""
        return self._one - self.flag

    def has_tripped(self) -> bool:
        """True if any step was refused. Waits for the device: only for log and checkpoint time."""
        return bool(self.flag.item())


class GuardedAdam:
    """Adam (arXiv:1412.6980, algorithm 1) that does nothing once its guard has tripped.

    It calls the kernel of `torch.optim.Adam(fused=True)`, whose bookkeeping is a third of a step on a CPU. Parameters,
    gradients and moments lie in a block each, so that one call reads all of them and plain tensors are saved.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], lr: float | Tensor, guard: DivergenceGuard) -> None:
        """`lr` is the step size, or a tensor [] on the parameters' device, which is part of the state then."""
        device = guard.flag.device
        self.parameters = tuple(parameters.values())
        self._saves_lr = isinstance(lr, Tensor)
        # A tensor, which a CUDA graph reads again at each step; on a CPU in float64, where the number is exact.
        dtype = torch.float64 if device.type == "cpu" else torch.float32
        self.lr = lr if isinstance(lr, Tensor) else torch.tensor(lr, dtype=dtype, device=device)
        self.block = join(self.parameters)  # [P]
        self._address = self.block.data_ptr()
        self.gradient = torch.zeros_like(self.block)  # [P]
        shapes = [parameter.shape for parameter in self.parameters]
        self.gradients: dict[Tensor, Tensor] = dict(zip(self.parameters, views(self.gradient, shapes), strict=True))
        self.num_steps = torch.zeros((), device=device)  # steps taken, not steps refused
        self._guard = guard
        self._exp_avg, self._exp_avg_sq = torch.zeros_like(self.block), torch.zeros_like(self.block)
        self._moments = {
            f"{moment}.{name}": view
            for moment, block in (("exp_avg", self._exp_avg), ("exp_avg_sq", self._exp_avg_sq))
            for name, view in zip(parameters, views(block, shapes), strict=True)
        }

    def follow(self, lr: float) -> None:
        """Sets the step size from now on."""
        self.lr.fill_(lr)

    def differentiate(self, loss: Tensor) -> None:
        """Writes the gradient [P] of a loss [] by the parameters.

        Copies: autograd promises no strides, and Adam's kernel would apply a transposed gradient without an error.
        """
        gradients = torch.autograd.grad(loss, self.parameters)
        torch._foreach_copy_(list(self.gradients.values()), gradients)

    @torch.no_grad()
    def step(self) -> None:
        """Moves every parameter by its gradient. Raises `RuntimeError` if the parameters have been moved elsewhere."""
        if self.parameters[0].data_ptr() != self._address:
            raise RuntimeError("the parameters have moved since their optimiser was made")
        self.num_steps.add_(self._guard.steps_made())
        torch._fused_adam_(
            [self.block], [self.gradient], [self._exp_avg], [self._exp_avg_sq], [], [self.num_steps],
            lr=self.lr, beta1=BETAS[0], beta2=BETAS[1], weight_decay=0.0, eps=EPS,
            amsgrad=False, maximize=False, found_inf=self._guard.flag,
        )  # fmt: skip
        # The kernel wrote the block: autograd must see that the parameters, its views, have changed.
        torch.autograd.graph.increment_version(self.parameters)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the live state: `num_steps`, `exp_avg.<parameter>`, `exp_avg_sq.<parameter>`, an lr that was one."""
        state = {"num_steps": self.num_steps} | self._moments
        return state | {"step_size": self.lr} if self._saves_lr else state


class TargetNetwork(Generic[Network]):
    """A copy of a network that follows it by Polyak averaging and never takes part in a backward pass.

    Both lie in a block of memory each, so that one kernel call averages all of their parameters.
    """

    def __init__(
        self, source: Network, tau: float, parameters_of: Callable[[Network], Iterable[nn.Parameter]] | None = None
    ) -> None:
        """`parameters_of` returns the parameters in the order in which an optimiser joins those of the source."""
        of = parameters_of or nn.Module.parameters
        sources = tuple(of(source))
        self._source_block, self._first = join(sources), sources[0]
        self.module: Network = copy.deepcopy(source).requires_grad_(False)
        self._block = join(tuple(of(self.module)))
        self._tau = tau

    def follow(self) -> None:
        """Makes one Polyak step towards the source. Raises `RuntimeError` if its parameters have been moved since."""
        if self._first.data_ptr() != self._source_block.data_ptr():
            raise RuntimeError("the parameters have moved since their target network was made")
        polyak_update(self._block, self._source_block, self._tau)


class SoloExchange:
    """The exchange of a learner without other ranks: every collective is the identity."""

    num_ranks = 1

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Leaves the tensors as they are: the mean over one rank."""

    def gather(self, vector: Tensor) -> Tensor:
        """Returns the vector [n] as [1, n]."""
        return vector[None]


class Loss(NamedTuple):
    """A scalar loss and the optimiser that lowers it; clips the joint norm of its gradients, if asked."""

    value: Tensor
    optimizer: GuardedAdam
    max_grad_norm: float | None = None


class OptimizerStep:
    """Makes every optimiser step of a learner: differentiate, average over ranks, guard, clip, move."""

    def __init__(self, device: torch.device, exchange: Exchange) -> None:
        self.exchange = exchange
        self.guard = DivergenceGuard(device)
        self.origin = DivergenceGuard(device)  # trips only on the rank whose own numbers were bad, to name it

    def minimize(self, *losses: Loss) -> None:
        """Makes one step down each loss, with one exchange for all of them; one bad loss stops all the steps.

        Several losses of one optimiser raise `ValueError`. The guard looks after the averaging, which hands a NaN of a
        rank to all, and before the clipping, which would turn a gradient of infinite norm into zero.
        """
        if len({id(loss.optimizer) for loss in losses}) < len(losses):
            raise ValueError("minimize: got several losses of one optimiser, allowed one each: pass their sum")
        for loss in losses:
            loss.optimizer.differentiate(loss.value)
        self.step(*losses)

    @torch.no_grad()
    def step(self, *losses: Loss) -> None:
        """As `minimize`, with the gradients that the optimisers hold."""
        values, gradients = [loss.value for loss in losses], [loss.optimizer.gradient for loss in losses]
        if self.exchange.num_ranks > 1:
            self.origin.watch_step(values, squared_norms_of(gradients))
            values = [value.clone() for value in values]  # the caller reports its own
            self.exchange.average([*values, *gradients])
        squares = squared_norms_of(gradients)
        self.guard.watch_step(values, squares)
        if self.exchange.num_ranks > 1:
            self.origin.flag.mul_(self.guard.flag)  # a norm too great here, but not in the mean, has stopped nothing
        for loss, gradient, square in zip(losses, gradients, squares, strict=True):
            if loss.max_grad_norm is not None:
                clip(gradient, square, loss.max_grad_norm)
            loss.optimizer.step()


def squared_norms_of(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Returns the squared L2 norm [] of each gradient [P]: not finite if an element is not, or beyond a norm of 1.8e19.

    Adam's second moment would be infinite then, and its steps zero for ever after.
    """
    return [torch.dot(gradient, gradient) for gradient in gradients]


def clip(gradient: Tensor, squared_norm: Tensor, max_norm: float) -> None:
    """Scales a gradient of a squared L2 norm [] in place so that its norm is at most max_norm."""
    gradient.mul_((max_norm / (squared_norm.sqrt() + 1e-6)).clamp(max=1.0))


class LearningRate:
    """A learning rate on the device: `algo.lr`, a number or a schedule; `linear` to 0 at the end; or `kl_adaptive`.

    `kl_adaptive`, from rl_games and rsl_rl, divides the rate by 1.5 where KL(old || new) of an epoch exceeds twice
    `target_kl`, and multiplies it where it is less than half of it.
    """

    def __init__(self, algo: AlgoConfig, device: torch.device) -> None:
        self._first = algo.value(algo.lr, 0)
        self.value = torch.tensor(self._first, dtype=torch.float32, device=device)  # []; what the optimiser reads
        self.is_adaptive = algo.lr_schedule == "kl_adaptive"
        self._is_linear = algo.lr_schedule == "linear"
        self._algo = algo

    def follow_progress(self, progress: float, env_steps: int = 0) -> None:
        """Sets the rate of the iteration that begins `env_steps` into the run, `progress` of the way to its end."""
        if self._is_linear:
            self.value.fill_(ramp(self._first, 0.0, progress))
        elif isinstance(self._algo.lr, Ramp):
            self.value.fill_(self._algo.value(self._algo.lr, env_steps))

    @torch.no_grad()
    def follow_kl(self, kl: Tensor) -> None:
        """Adapts the rate to the mean KL [] of an epoch; the same on all ranks if `kl` is."""
        if self.is_adaptive:
            factor = torch.where(kl > 2.0 * self._algo.target_kl, 1.0 / KL_FACTOR, 1.0)
            factor = torch.where(kl < 0.5 * self._algo.target_kl, KL_FACTOR, factor)
            self.value.mul_(factor).clamp_(*LEARNING_RATE_RANGE)
