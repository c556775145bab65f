"""The floating-point operations of a learner's first updates, and the speed that its machine attains on their products.

The operations are counted by torch while the updates are made. What the machine attains is measured once, with the
threads that the learner keeps: every matrix product of an update on its own, in its shapes. Whatever else runs on the
machine can only lengthen a reading, so the shortest one of each product counts, and all products take turns. Random
streams are not touched: the matrices hold fixed numbers and are thrown away.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils.flop_counter import FlopCounterMode

from offpolicy.algos.learner import Learner
from offpolicy.onednn import OPERATOR, multiply
from offpolicy.protocols import DeviceSync
from offpolicy.timing.clock import MonotonicClock
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


class CountedLearner:
    """A learner, as the loop sees it, whose first updates are counted; `on_counted` takes the work of a mean update.

    Of replayed rows one update with an actor step is counted, and one without; of rollouts, all of the first batch.
    Updates that are captured as a CUDA graph are counted in the capture.
    """

    def __init__(self, learner: Learner, on_counted: Callable[[Work], None]) -> None:
        self._learner, self._on_counted = learner, on_counted
        self._kinds: dict[bool, Work] = {}  # by whether there was an actor step
        self._is_counted = False

    def update(self, batch: Batches | Rollouts, /) -> None:
        """Makes the learner's update."""
        if self._is_counted:
            self._learner.update(batch)
        elif isinstance(batch, Rollouts):
            before = self._learner.num_updates
            _, work = counted(partial(self._learner.update, batch))
            self._conclude([(1 / (self._learner.num_updates - before), work)])
        else:
            self._learner.update_tensors = self._counted_update  # type: ignore[method-assign]  # of this one alone
            try:
                self._learner.update(batch)
            finally:
                del self._learner.update_tensors
            delay = self._learner.policy_delay
            if len(self._kinds) == min(delay, 2):
                self._conclude([((1 if kind else delay - 1) / delay, work) for kind, work in self._kinds.items()])

    def _counted_update(self, raw: Batch, *, has_actor_step: bool) -> tuple[str, ...]:
        update = partial(Learner.update_tensors, self._learner, raw, has_actor_step=has_actor_step)
        groups, self._kinds[has_actor_step] = counted(update)
        return groups

    def _conclude(self, parts: list[tuple[float, Work]]) -> None:
        self._is_counted = True
        products = Counter[Product]()
        for share, work in parts:
            products.update({product: share * number for product, number in work.products.items()})
        self._on_counted(Work(sum(share * work.flops for share, work in parts), products))


def attainable_flops_per_sec(
    products: Mapping[Product, float],
    dtype: torch.dtype,
    device_sync: DeviceSync,
    device: torch.device,
    now_ns: Callable[[], int] = MonotonicClock.now_ns,
) -> float:
    """Returns FLOP/s of an update's products by their time alone, each as often as the update makes it.

    Takes `BUDGET_NS`, and longer only where each product once takes longer.
    """
    start_ns = now_ns()
    benches = [Bench(product, dtype, device_sync, device, now_ns) for product in products]
    for bench in itertools.cycle(benches):
        bench.read()
        if now_ns() - start_ns > BUDGET_NS:
            break
    flops = sum(2 * math.prod(product[:3]) * number for product, number in products.items())
    return flops * 1e9 / sum(bench.shortest_ns * products[bench.product] for bench in benches)


class Bench:
    """Readings of one product; `shortest_ns` is that of the shortest."""

    def __init__(
        self,
        product: Product,
        dtype: torch.dtype,
        device_sync: DeviceSync,
        device: torch.device,
        now_ns: Callable[[], int],
    ) -> None:
        self.product, self._device_sync, self._now_ns = product, device_sync, now_ns
        sizes = [min(size, CPU_ROWS) if device.type == "cpu" else size for size in product[:3]]
        self._scale = math.prod(product[:3]) / math.prod(sizes)
        self._left, self._right = (
            torch.linspace(-1.0, 1.0, rows * columns, device=device).view(rows, columns).to(dtype)
            for rows, columns in itertools.pairwise(sizes)
        )
        self._result = self._left.new_empty(sizes[0], sizes[2])
        self._group_ns = GROUP_NS[device.type]
        self.shortest_ns = self._time(1)  # the first call chooses its kernel

    def read(self) -> None:
        """Takes one more reading."""
        num_calls = max(1, min(MAX_CALLS, int(self._scale * self._group_ns / self.shortest_ns)))
        self.shortest_ns = min(self.shortest_ns, self._time(num_calls))

    def _time(self, num_calls: int) -> float:
        """Returns the nanoseconds of a call, of the whole product where smaller matrices stand for it."""
        start_ns = self._now_ns()
        for _ in range(num_calls):
            if self.product.is_onednn:
                self._result.copy_(multiply(self._left, self._right))
            else:
                torch.mm(self._left, self._right, out=self._result)
        self._device_sync.wait()
        return self._scale * max(1, self._now_ns() - start_ns) / num_calls
