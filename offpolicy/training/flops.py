"""The floating-point operations of a learner's first updates, and the speed that its machine attains on their products.

torch counts the operations while the updates are made. What the machine attains is measured once, with the threads that
the learner keeps: every matrix product of an update on its own, in its shapes. Other programs can only lengthen a
reading, so the shortest one of each product counts, and products take turns. No random numbers are drawn.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils.flop_counter import FlopCounterMode

from offpolicy.algos.learner import Learner
from offpolicy.nets.onednn import OPERATOR, multiply
from offpolicy.timing.clock import MonotonicClock
from offpolicy.timing.device_timer import StreamSync
from offpolicy.training.rank import Rank
from offpolicy.types import Batch, Batches, Rollouts

BUDGET_NS = 300_000_000  # of the measurement
GROUP_NS = {"cpu": 100_000, "cuda": 2_000_000}  # duration of a reading, long beside the clock or waking a device
MAX_CALLS = 1000
CPU_ROWS = 1024  # on a CPU larger matrices than that are no faster, only longer

T = TypeVar("T")


class Product(NamedTuple):
    """A product [rows, inner] x [inner, columns]."""

    rows: int
    inner: int
    columns: int
    is_onednn: bool = False  # else by torch's BLAS


class Work(NamedTuple):
    """Floating-point operations, and how often each matrix product is among them."""

    flops: float
    products: Mapping[Product, float]


def counted(work: Callable[[], T]) -> tuple[T, Work]:
    """Returns what some work returns, and its operations as torch's `FlopCounterMode` counts them."""
    products = Counter[Product]()

    def product(left: torch.Size, right: torch.Size, *, is_onednn: bool = False, **_: Any) -> int:  # Any: of torch
        *number, rows, inner = left
        products[Product(rows, inner, right[-1], is_onednn)] += (number or [1])[0]
        return 2 * left.numel() * right[-1]

    def sum_and_product(_: torch.Size, left: torch.Size, right: torch.Size, **__: Any) -> int:  # Any: of torch
        return product(left, right)

    def onednn(left: torch.Size, turned: torch.Size, *_: Any, **__: Any) -> int:  # Any: of torch
        return product(left, torch.Size((turned[1], turned[0])), is_onednn=True)

    aten = torch.ops.aten
    formulas = {aten.mm: product, aten.bmm: product, aten.addmm: sum_and_product, aten.baddbmm: sum_and_product}
    with FlopCounterMode(display=False, custom_mapping={**formulas, OPERATOR: onednn}) as counter:
        result = work()
    return result, Work(counter.get_total_flops(), products)


def count_first_updates(learner: Learner, on_counted: Callable[[Work], None]) -> None:
    """Counts the operations of the learner's first updates, and passes the work of a mean update to `on_counted`.

    Of replayed rows one update with an actor step is counted, and one without; of rollouts, all of the first batch.
    """
    kinds: dict[bool, Work] = {}  # by whether there was an actor step

    def update_tensors(raw: Batch, *, has_actor_step: bool) -> tuple[str, ...]:
        update = partial(Learner.update_tensors, learner, raw, has_actor_step=has_actor_step)
        groups, kinds[has_actor_step] = counted(update)
        return groups

    def update(batch: Batches | Rollouts, /) -> None:
        before, delay = learner.num_updates, learner.policy_delay
        if isinstance(batch, Rollouts):
            _, work = counted(partial(Learner.update, learner, batch))
            parts = [(1 / (learner.num_updates - before), work)]
        else:
            Learner.update(learner, batch)
            if len(kinds) < min(delay, 2):
                return
            parts = [((1 if kind else delay - 1) / delay, work) for kind, work in kinds.items()]
        del learner.update, learner.update_tensors  # from here on those of the class
        products = Counter[Product]()
        for share, work in parts:
            products.update({product: share * number for product, number in work.products.items()})
        on_counted(Work(sum(share * work.flops for share, work in parts), products))

    learner.update, learner.update_tensors = update, update_tensors  # type: ignore[method-assign]  # of this one alone


def attainable_flops_per_sec(
    products: Mapping[Product, float],
    dtype: torch.dtype,
    device_sync: StreamSync,
    now_ns: Callable[[], int] = MonotonicClock.now_ns,
) -> float:
    """Returns FLOP/s of an update's products by their time alone, each as often as the update makes it.

    Takes `BUDGET_NS`, and longer only where each product once takes longer.
    """
    start_ns = now_ns()
    readings = {product: _readings(product, dtype, device_sync, now_ns) for product in products}
    shortest_ns = {product: next(times) for product, times in readings.items()}
    for product, times in itertools.cycle(readings.items()):
        shortest_ns[product] = next(times)
        if now_ns() - start_ns > BUDGET_NS:
            break
    flops = sum(2 * math.prod(product[:3]) * number for product, number in products.items())
    return flops * 1e9 / sum(shortest_ns[product] * number for product, number in products.items())


def _readings(
    product: Product, dtype: torch.dtype, device_sync: StreamSync, now_ns: Callable[[], int]
) -> Iterator[float]:
    """Yields the nanoseconds of a product after one reading more each time: those of the shortest one."""
    device = device_sync.device
    sizes = [min(size, CPU_ROWS) if device.type == "cpu" else size for size in product[:3]]
    scale = math.prod(product[:3]) / math.prod(sizes)
    left, right = (
        torch.linspace(-1.0, 1.0, rows * columns, device=device).view(rows, columns).to(dtype)
        for rows, columns in itertools.pairwise(sizes)
    )
    result = left.new_empty(sizes[0], sizes[2])
    shortest_ns, num_calls = math.inf, 1  # the first call chooses its kernel
    while True:
        start_ns = now_ns()
        for _ in range(num_calls):
            if product.is_onednn:
                result.copy_(multiply(left, right))
            else:
                torch.mm(left, right, out=result)
        device_sync.wait()
        shortest_ns = min(shortest_ns, scale * max(1, now_ns() - start_ns) / num_calls)
        num_calls = max(1, min(MAX_CALLS, int(scale * GROUP_NS[device.type] / shortest_ns)))
        yield shortest_ns


class FlopsReport:
    """Reports the work of a mean update, and then once what the machine attains on the update's products."""

    def __init__(self, rank: Rank, learner: Learner) -> None:
        self._rank, self._policy = rank, learner.policy
        self._update: Work | None = None
        self._per_decision = 0.0
        count_first_updates(learner, self._on_counted)

    def _on_counted(self, update: Work) -> None:
        """Reports FLOPs of an update and of a decision."""
        num_envs = self._rank.cfg.env.num_envs
        obs = torch.zeros(num_envs, self._rank.spec.obs_dim, device=self._rank.device)
        _, decisions = counted(partial(self._policy.act, obs))
        self._update, self._per_decision = update, decisions.flops / num_envs
        self._send(update, None)

    def measure(self) -> bool:
        """Reports what the machine attains, if the work is known: True then."""
        rank, update = self._rank, self._update
        if update is None:
            return False
        dtype = torch.bfloat16 if rank.cfg.algo.precision == "bf16" else torch.float32
        with contextlib.suppress(RuntimeError):  # no memory for it: the run itself may go on all the same
            self._send(update, attainable_flops_per_sec(update.products, dtype, rank.new_device_sync()))
        return True

    def _send(self, update: Work, attainable: float | None) -> None:
        self._rank.child.send(
            "flops", per_update=update.flops, per_decision=self._per_decision, attainable_per_sec=attainable
        )
