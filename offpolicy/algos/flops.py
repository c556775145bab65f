"""The floating-point operations of an update and of a decision, counted while a learner makes updates of a few rows.

Counted as `torch.utils.flop_counter.FlopCounterMode` counts: a product of [n, k] and [k, m] is 2 n k m, a convolution
over time is such a product per frame that it leaves; biases, activations, norms, Adam and Polyak averages are 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from offpolicy.algos.base_learner import BaseLearner
from offpolicy.algos.registry import make_learner
from offpolicy.config.schema import RunConfig
from offpolicy.config.sections import AlgoConfig
from offpolicy.nets.fused import NARROW
from offpolicy.onednn import is_product
from offpolicy.types import Batch, Batches, Direction, Product, Rollouts, SpaceSpec

ROWS = 2  # rows of a counted batch, and environments of counted rollouts
Material = TypeVar("Material")


class Work(NamedTuple):
    """Floating-point operations of one learner rank and of one collector."""

    update: float  # of one gradient update, as `num_updates` counts them, on average over an iteration
    decision: float  # of one policy forward pass, per environment and step
    products: tuple[Product, ...]  # the matrix products of one gradient update, on average over an iteration


class Kind(NamedTuple):
    """Matrix products that differ in nothing but their rows, which are `times` those of the batch."""

    direction: Direction
    times: int
    inputs: int
    outputs: int
    is_rounded: bool = False  # their factors are bfloat16
    is_onednn: bool = False  # on a CPU they are made by oneDNN


def count_work(cfg: RunConfig, spec: SpaceSpec, num_hosts: int = 1) -> Work:
    """Returns the work of a run per learner rank; of several hosts each has the ranks and collectors of `cfg`.

    Autoreset rows are learnt from with weight 0: they cost what transitions cost. What is prepared once for all
    minibatches counts as if it were made of them, and a convolution as the product that it is unfolded to.
    """
    algo, ranks = cfg.algo, cfg.runner.world_size
    learner = _learner(algo, spec, epochs=1)
    decision = _counted(learner, ROWS, learner.policy.act, torch.zeros(ROWS, spec.obs_dim))
    if algo.learns_from_rollouts:
        learners = {1: learner, 2: _learner(algo, spec, epochs=2)}
        per_row = _per_row_of_rollouts(learners, spec, algo.epochs, cfg.rollout.length)
        num_envs = cfg.env.num_envs * (cfg.collect.num_collectors // ranks)
        num_rows = cfg.rollout.length * num_envs // algo.num_minibatches
    else:
        obs, column = torch.zeros(ROWS, spec.obs_dim), torch.zeros(ROWS)
        batch = Batch(obs, torch.zeros(ROWS, spec.action_dim), column, obs, column, column)
        batches = Batches((batch,) * algo.policy_delay, fresh_obs=None)
        counted = _counted(learner, ROWS, learner.update, batches)
        per_row = {kind: Fraction(rows, ROWS * algo.policy_delay) for kind, rows in counted.items()}
        num_rows = algo.batch_size // (ranks * num_hosts)
    return Work(
        update=float(num_rows * _flops(per_row)),
        decision=float(_flops(decision) / ROWS),
        products=tuple(
            Product(
                *(kind.direction, num_rows * kind.times, kind.inputs, kind.outputs),
                per_update=float(rows / kind.times),
                is_rounded=kind.is_rounded,
                is_onednn=kind.is_onednn,
            )
            for kind, rows in sorted(per_row.items())
        ),
    )


def _learner(algo: AlgoConfig, spec: SpaceSpec, epochs: int) -> BaseLearner:
    return make_learner(replace(algo, epochs=epochs, num_minibatches=1), spec, torch.device("cpu"), seed=0)


def _per_row_of_rollouts(
    learners: Mapping[int, BaseLearner], spec: SpaceSpec, epochs: int, length: int
) -> dict[Kind, Fraction]:
    """Rows of each kind of product per transition and update, by the learners of one epoch and of two.

    Some are made once per batch of rollouts, some once per epoch, some of T observations and some of T + 1: their
    number is linear in the epochs and in T, so four small counts give that of any.
    """
    rows: Counter[Kind] = Counter()
    for num_steps, of_steps in ((2, 3 - length), (3, length - 2)):
        for num_epochs, of_epochs in ((1, 2 - epochs), (2, epochs - 1)):
            learner = learners[num_epochs]
            counted = _counted(learner, ROWS * num_steps, learner.update, _rollouts(spec, num_steps))
            for kind, number in counted.items():
                rows[kind] += of_steps * of_epochs * number
    return {kind: Fraction(number, ROWS * length * epochs) for kind, number in rows.items()}


def _flops(rows: Mapping[Kind, int | Fraction]) -> Fraction:
    return Fraction(sum(2 * number * kind.inputs * kind.outputs for kind, number in rows.items()))


def _counted(
    learner: BaseLearner, batch_rows: int, step: Callable[[Material], object], material: Material
) -> Counter[Kind]:
    """Rows of each kind of product that a step of the learner makes of `batch_rows` rows."""
    counter = _ProductCounter(learner, batch_rows)
    with counter:
        step(material)
    return counter.rows


class _ProductCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of __init_subclass__
    """Counts the rows of the matrix products beneath it, those of autograd among them."""

    def __init__(self, learner: BaseLearner, batch_rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows: Counter[Kind] = Counter()
        self._batch_rows = batch_rows
        tensors = learner.start_tensors().values()
        self._blocks = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self._weight_shapes = {tensor.shape for tensor in tensors if tensor.ndim == 2}
        self._tracker = ModuleTracker()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled here, and a shield from the compiler would import it, which takes 2 s."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: torch's
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            self._add_product(*args[-2:], is_backward=self._tracker.is_bw)
        elif func.overloadpacket in (torch.ops.aten.bmm, torch.ops.aten.baddbmm):
            for left, right in zip(*args[-2:], strict=True):  # only fused networks make these: forward with a bias
                self._add_product(left, right, is_backward=func.overloadpacket is torch.ops.aten.bmm, is_fused=True)
        elif is_product(func.overloadpacket):
            left, turned = args[:2]  # forward these are the rows and the weights as they lie
            is_forward = turned.is_contiguous() and turned.untyped_storage().data_ptr() in self._blocks
            self._add_product(left, turned.t(), is_backward=not is_forward, is_onednn=True)
        elif func.overloadpacket is torch.ops.aten.convolution:
            self._add_convolution(Direction.FORWARD, result, args[1])
        elif func.overloadpacket is torch.ops.aten.convolution_backward:
            gradient, _, weight, *_, (is_for_inputs, is_for_weights, _) = args
            if is_for_inputs:
                self._add_convolution(Direction.INPUTS, gradient, weight)
            if is_for_weights:
                self._add_convolution(Direction.WEIGHTS, gradient, weight)
        return result

    def _add_product(
        self, left: Tensor, right: Tensor, *, is_backward: bool, is_fused: bool = False, is_onednn: bool = False
    ) -> None:
        """[a, b] x [b, c]. Of a backward pass, that for the inputs has the weights on one side.

        Fused networks make the gradient of a first layer transposed if it has a quarter as many inputs as outputs, or
        fewer. Where a layer [c, a] and one [a, c] are so narrow, that of the second is counted as one of the first.
        Rounded weights lie in other memory than the learner's: they are known by their shape, and what they multiply
        is not transposed.
        """
        (a, b), c = left.shape, right.shape[1]
        is_rounded = left.dtype == torch.bfloat16
        is_transposed = left.stride(0) == 1 < left.stride(1)
        add = partial(self._add, is_onednn=is_onednn)
        if not is_backward and left.untyped_storage().data_ptr() in self._blocks:
            add(Direction.FORWARD, c, b, a)  # of a layer with one output
        elif not is_backward:
            add(Direction.FORWARD, a, b, c, is_rounded=is_rounded)
        elif right.untyped_storage().data_ptr() in self._blocks:
            add(Direction.INPUTS, a, c, b)
        elif is_rounded and right.shape in self._weight_shapes and not is_transposed:
            add(Direction.INPUTS, a, c, b, is_rounded=True)
        elif left.untyped_storage().data_ptr() in self._blocks:
            add(Direction.INPUTS, c, a, b)
        elif is_fused and not is_rounded and NARROW * a <= c and (c, a) in self._weight_shapes:
            add(Direction.WEIGHTS, b, a, c)
        else:
            add(Direction.WEIGHTS, b, c, a, is_rounded=is_rounded)

    def _add_convolution(self, direction: Direction, outputs: Tensor, weight: Tensor) -> None:
        """Outputs [B, outputs, frames], weight [outputs, channels, kernel]."""
        self._add(direction, len(outputs) * outputs.shape[2], weight[0].numel(), len(weight))

    def _add(
        self,
        direction: Direction,
        rows: int,
        inputs: int,
        outputs: int,
        *,
        is_rounded: bool = False,
        is_onednn: bool = False,
    ) -> None:
        times = max(1, rows // self._batch_rows)  # a product of weights alone may have fewer rows than a batch
        self.rows[Kind(direction, times, inputs, outputs, is_rounded, is_onednn)] += rows


def _rollouts(spec: SpaceSpec, num_steps: int) -> Rollouts:
    obs, action = torch.zeros(num_steps + 1, ROWS, spec.obs_dim), torch.zeros(num_steps, ROWS, spec.action_dim)
    plain = torch.zeros(num_steps, ROWS)
    return Rollouts(obs, action, plain, plain, plain, plain, torch.ones(num_steps, ROWS), progress=0.0)
