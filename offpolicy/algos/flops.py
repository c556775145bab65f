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

ROWS = 2  # rows of a counted batch, and environments of counted rollouts; counted once more with one more
Material = TypeVar("Material")


class Work(NamedTuple):
    """Floating-point operations of one learner rank and of one collector."""

    update: float  # of one gradient update, as `num_updates` counts them, on average over an iteration
    decision: float  # of one policy forward pass, per environment and step
    products: tuple[Product, ...]  # the matrix products of one gradient update, on average over an iteration


class Kind(NamedTuple):
    """Matrix products that differ in nothing but their rows: `times` those of a batch, or `rows` of any batch."""

    direction: Direction
    times: int
    inputs: int
    outputs: int
    is_rounded: bool = False  # their factors are bfloat16
    is_onednn: bool = False  # on a CPU they are made by oneDNN
    rows: int = 0  # of products that no batch makes larger, as those of weights alone; their `times` are 0


class Rows(NamedTuple):
    """Rows of each kind of product that a step makes: n rows of a batch make `fixed` + n * `per_row`."""

    fixed: Counter[Kind]
    per_row: Counter[Kind]

    def at(self, num_rows: int) -> dict[Kind, int]:
        """Returns the rows of all products of a kind."""
        return {kind: self.fixed[kind] + num_rows * number for kind, number in self.per_row.items()}


class Made(NamedTuple):
    """Products [a, b] x [b, c] that one operation made."""

    sizes: tuple[int, int, int]  # a, b, c
    number: int
    is_backward: bool
    is_turned: bool  # of the gradient of weights: it is made transposed
    is_rounded: bool
    is_onednn: bool


def count_work(cfg: RunConfig, spec: SpaceSpec, num_hosts: int = 1) -> Work:
    """Returns the work of a run per learner rank; of several hosts each has the ranks and collectors of `cfg`.

    Autoreset rows are learnt from with weight 0: they cost what transitions cost. What is prepared once for all
    minibatches counts as if it were made of them, and a convolution as the product that it is unfolded to.
    """
    algo, ranks = cfg.algo, cfg.runner.world_size
    learner = _learner(algo, spec, epochs=1)
    decision = _counted(learner, learner.policy.act, lambda num_rows: torch.zeros(num_rows, spec.obs_dim))
    if algo.learns_from_rollouts:
        learners = {1: learner, 2: _learner(algo, spec, epochs=2)}
        num_envs = cfg.env.num_envs * (cfg.collect.num_collectors // ranks)
        num_rows = cfg.rollout.length * num_envs // algo.num_minibatches
        rows = _rows_of_rollouts(learners, spec, algo, cfg.rollout.length, num_envs)
    else:
        num_rows = algo.batch_size // (ranks * num_hosts)
        counted = _counted(learner, learner.update, partial(_batches, spec, algo.policy_delay))
        rows = {kind: Fraction(number, algo.policy_delay) for kind, number in counted.at(num_rows).items()}
    return Work(
        update=float(_flops(rows)),
        decision=float(_flops(decision.at(cfg.env.num_envs)) / cfg.env.num_envs),
        products=tuple(_product(kind, num_rows, number) for kind, number in sorted(rows.items())),
    )


def _product(kind: Kind, num_rows: int, rows_per_update: Fraction) -> Product:
    rows = kind.rows or num_rows * kind.times
    return Product(
        *(kind.direction, rows, kind.inputs, kind.outputs),
        per_update=float(rows_per_update / rows),
        is_rounded=kind.is_rounded,
        is_onednn=kind.is_onednn,
    )


def _learner(algo: AlgoConfig, spec: SpaceSpec, epochs: int) -> BaseLearner:
    return make_learner(replace(algo, epochs=epochs, num_minibatches=1), spec, torch.device("cpu"), seed=0)


def _rows_of_rollouts(
    learners: Mapping[int, BaseLearner], spec: SpaceSpec, algo: AlgoConfig, length: int, num_envs: int
) -> dict[Kind, Fraction]:
    """Rows of each kind of product per update, by the learners of one epoch and of two.

    Some are made once per batch of rollouts, some once per epoch, some of T observations and some of T + 1: their
    number is linear in the epochs and in T, so four small counts give that of any. What does not grow with the
    environments is not shared by the minibatches of an epoch: each makes all of it.
    """
    rows: Counter[Kind] = Counter()
    epochs, updates = algo.epochs, algo.epochs * algo.num_minibatches
    for num_steps, of_steps in ((2, 3 - length), (3, length - 2)):
        for num_epochs, of_epochs, of_updates in ((1, 2 - epochs, 2 - updates), (2, epochs - 1, updates - 1)):
            learner = learners[num_epochs]
            fixed, per_env = _counted(learner, learner.update, partial(_rollouts, spec, num_steps), num_steps)
            for kind in per_env:
                rows[kind] += of_steps * (of_updates * fixed[kind] + of_epochs * num_envs * per_env[kind])
    return {kind: Fraction(number, updates) for kind, number in rows.items()}


def _flops(rows: Mapping[Kind, int] | Mapping[Kind, Fraction]) -> Fraction:
    return Fraction(sum(2 * number * kind.inputs * kind.outputs for kind, number in rows.items()))


def _counted(
    learner: BaseLearner, step: Callable[[Material], object], material: Callable[[int], Material], num_steps: int = 1
) -> Rows:
    """Rows of each kind of product that a step of the learner makes, by steps of `ROWS` rows and of one more.

    `material` takes that number, of environments if it is rollouts of `num_steps`. Both steps make the same products
    in the same order. What grows less than the batch, as a pass of the last observations, is a part of its rows.
    """
    few, more = (_made(learner, step, material(num_rows)) for num_rows in (ROWS, ROWS + 1))
    fixed, per_row = Counter[Kind](), Counter[Kind]()
    for one, other in zip(few, more, strict=True):
        direction, (rows, inputs, outputs) = _layout(one, other)
        size = one.sizes[rows]
        times, kept = (0, size) if one.sizes == other.sizes else (max(1, size // (ROWS * num_steps)), 0)
        flags = one.is_rounded, one.is_onednn
        kind = Kind(direction, times, one.sizes[inputs], one.sizes[outputs], *flags, rows=kept)
        growth = other.number * other.sizes[rows] - one.number * size
        per_row[kind] += growth
        fixed[kind] += one.number * size - ROWS * growth
    return Rows(fixed, per_row)


def _layout(few: Made, more: Made) -> tuple[Direction, tuple[int, int, int]]:
    """Which product it is, and which of its sizes are rows, inputs and outputs: the rows are what grows.

    Raises `ValueError` for one that grows in two sizes, as attention over the rows of a batch does.
    """
    rows_grow, shared_grows, columns_grow = (one != other for one, other in zip(few.sizes, more.sizes, strict=True))
    if rows_grow + shared_grows + columns_grow > 1:
        raise ValueError(f"a product of {few.sizes[0]} x {few.sizes[1]} x {few.sizes[2]} grows faster than the batch")
    if shared_grows:
        return Direction.WEIGHTS, (1, 0, 2) if few.is_turned else (1, 2, 0)
    if few.is_backward:
        return Direction.INPUTS, (2, 0, 1) if columns_grow else (0, 2, 1)
    return Direction.FORWARD, (2, 1, 0) if columns_grow else (0, 1, 2)  # the former of a layer with one output


def _made(learner: BaseLearner, step: Callable[[Material], object], material: Material) -> list[Made]:
    """The products that a step of the learner makes, in their order."""
    counter = _ProductCounter(learner)
    with counter:
        step(material)
    return counter.made


class _ProductCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of __init_subclass__
    """Keeps the sizes of the matrix products beneath it, those of autograd among them."""

    def __init__(self, learner: BaseLearner) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[Made] = []
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
            left, right = args[-2:]
            self._add(left, (*left.shape, right.shape[1]), is_backward=self._tracker.is_bw)
        elif func.overloadpacket in (torch.ops.aten.bmm, torch.ops.aten.baddbmm):
            left, right = args[-2:]  # of fused networks; a plug-in's own bmm of no parameter counts as a gradient
            sizes = (*left.shape[1:], right.shape[2])
            is_backward = func.overloadpacket is torch.ops.aten.bmm and not self._are_weights(right)
            self._add(left, sizes, number=len(left), is_backward=is_backward, is_turned=self._is_turned(left, sizes))
        elif is_product(func.overloadpacket):
            left, turned = args[:2]  # forward these are the rows and the weights as they lie
            is_forward = turned.is_contiguous() and turned.untyped_storage().data_ptr() in self._blocks
            self._add(left, (*left.shape, len(turned)), is_backward=not is_forward, is_onednn=True)
        elif func.overloadpacket is torch.ops.aten.convolution:
            rows, inputs, outputs = _unfolded(result, args[1])
            self._add(result, (rows, inputs, outputs), is_backward=False)
        elif func.overloadpacket is torch.ops.aten.convolution_backward:
            gradient, _, weight, *_, (is_for_inputs, is_for_weights, _) = args
            rows, inputs, outputs = _unfolded(gradient, weight)
            if is_for_inputs:
                self._add(gradient, (rows, outputs, inputs), is_backward=True)
            if is_for_weights:
                self._add(gradient, (outputs, rows, inputs), is_backward=True)
        return result

    def _are_weights(self, right: Tensor) -> bool:
        """True for weights as a forward product reads them, [C, in, out] of [C, out, in] in memory.

        Those of one input and one output lie the same for a gradient, and are taken for that.
        """
        inputs, outputs = right.shape[1:]
        lie_turned = right.stride()[1:] == (1, inputs) and inputs * outputs > 1
        return lie_turned and right.untyped_storage().data_ptr() in self._blocks

    def _is_turned(self, left: Tensor, sizes: tuple[int, int, int]) -> bool:
        """True if a fused network makes the gradient of weights of these sizes transposed.

        It does for a first layer that has a quarter as many inputs as outputs, or fewer. Where a layer [c, a] and one
        [a, c] are so narrow, that of the second is counted as one of the first.
        """
        a, _, c = sizes
        return left.dtype != torch.bfloat16 and NARROW * a <= c and (c, a) in self._weight_shapes

    def _add(
        self,
        left: Tensor,
        sizes: tuple[int, int, int],
        *,
        number: int = 1,
        is_backward: bool,
        is_turned: bool = False,
        is_onednn: bool = False,
    ) -> None:
        self.made.append(Made(sizes, number, is_backward, is_turned, left.dtype == torch.bfloat16, is_onednn))


def _unfolded(outputs: Tensor, weight: Tensor) -> tuple[int, int, int]:
    """Rows, inputs and outputs of a convolution: outputs [B, outputs, frames], weight [outputs, channels, kernel]."""
    return len(outputs) * outputs.shape[2], weight[0].numel(), len(weight)


def _batches(spec: SpaceSpec, num_updates: int, num_rows: int) -> Batches:
    obs, column = torch.zeros(num_rows, spec.obs_dim), torch.zeros(num_rows)
    batch = Batch(obs, torch.zeros(num_rows, spec.action_dim), column, obs, column, column)
    return Batches((batch,) * num_updates, fresh_obs=None)


def _rollouts(spec: SpaceSpec, num_steps: int, num_envs: int) -> Rollouts:
    obs, action = torch.zeros(num_steps + 1, num_envs, spec.obs_dim), torch.zeros(num_steps, num_envs, spec.action_dim)
    plain = torch.zeros(num_steps, num_envs)
    return Rollouts(obs, action, plain, plain, plain, plain, torch.ones(num_steps, num_envs), progress=0.0)
