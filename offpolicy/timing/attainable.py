"""What the machine attains: operations per second of bare matrix products, in the shapes and numbers of an update.

Measured once, before the first update, with the learner's threads and on its device. Random streams are not touched:
the matrices hold fixed numbers and are thrown away.

Whatever else runs on the machine can only lengthen a reading. So a reading in which a thread of this process had to
wait for a core does not count, the shortest of those that do is the one, and it must have been seen twice. All products
take turns, so that no spell of disturbance covers every reading of one of them.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from offpolicy.protocols import Fence
from offpolicy.timing.clock import Clock, MonotonicClock, queued_ns
from offpolicy.types import Direction, Product

BUDGET_NS = 900_000_000
MIN_ROUNDS = 30
GROUP_NS = {"cpu": 100_000, "cuda": 2_000_000}  # of one reading; long beside a clock reading, or a wait for the device
MAX_CALLS = 1000
SPREAD = 1.3  # how near the second shortest reading must come to the shortest
MAX_QUEUED = 0.02  # of a reading that counts: waiting for a core by its duration
CPU_ROWS = 1024  # on a CPU more rows than that are no faster, only longer


@dataclass(frozen=True, slots=True)
class Watch:
    """What readings are taken with."""

    clock: Clock = field(default_factory=MonotonicClock)
    queued_ns: Callable[[], int] = queued_ns


def attainable_flops_per_sec(
    products: Sequence[Product], device: torch.device, fence: Fence, watch: Watch | None = None
) -> float | None:
    """Operations of all products by their time alone, in FLOP/s; None where the machine is too busy to tell.

    `fence` waits for the device. Takes `BUDGET_NS` at most, and less on a quiet machine.
    """
    watch = watch or Watch()
    begun_ns, are_known = watch.clock.now_ns(), False
    benches = [Bench(product, device, fence, watch) for product in products]
    for num_readings, bench in enumerate(itertools.cycle(benches), start=1):
        bench.read()
        are_known = all(each.is_known for each in benches)
        has_time = watch.clock.now_ns() - begun_ns <= BUDGET_NS
        if not has_time or (are_known and num_readings >= MIN_ROUNDS * len(benches)):
            break
    flops = sum(product.per_update * product.flops for product in products)
    return flops / sum(each.seconds_per_update for each in benches) if are_known else None


class Bench:
    """Readings of one product, made as autograd would make it."""

    def __init__(self, product: Product, device: torch.device, fence: Fence, watch: Watch) -> None:
        self._product, self._fence, self._watch = product, fence, watch
        self._rows = min(product.rows, CPU_ROWS) if device.type == "cpu" else product.rows
        self._left, self._right = _factors(product._replace(rows=self._rows), device)
        self._result = torch.empty(len(self._left), self._right.shape[1], device=device)
        self._group_ns = GROUP_NS[device.type]
        self._shortest_ns: list[float] = []  # of a call: the two shortest readings that count
        self._any_ns = float(self._time(1))  # of a call: the shortest of all; the first one chooses its kernel

    @property
    def is_known(self) -> bool:
        """Whether the shortest reading was seen twice."""
        return len(self._shortest_ns) == 2 and self._shortest_ns[1] <= SPREAD * self._shortest_ns[0]

    @property
    def seconds_per_update(self) -> float:
        """The time that an update's products of this shape take."""
        return self._product.per_update * self._shortest_ns[0] * 1e-9 * self._product.rows / self._rows

    def read(self) -> None:
        """One reading more."""
        num_calls = max(1, min(MAX_CALLS, int(self._group_ns / self._any_ns)))
        queued_ns = self._watch.queued_ns()
        duration_ns = self._time(num_calls)
        self._any_ns = min(self._any_ns, duration_ns / num_calls)
        if self._watch.queued_ns() - queued_ns <= MAX_QUEUED * duration_ns:
            self._shortest_ns = heapq.nsmallest(2, (*self._shortest_ns, duration_ns / num_calls))

    def _time(self, num_calls: int) -> int:
        start_ns = self._watch.clock.now_ns()
        for _ in itertools.repeat(None, num_calls):
            torch.mm(self._left, self._right, out=self._result)
        self._fence.wait()
        return max(1, self._watch.clock.now_ns() - start_ns)


def _factors(product: Product, device: torch.device) -> tuple[Tensor, Tensor]:
    inputs, outputs = _matrix(product.rows, product.inputs, device), _matrix(product.rows, product.outputs, device)
    weights = _matrix(product.outputs, product.inputs, device)  # as `nn.Linear` keeps them
    factors: dict[Direction, tuple[Tensor, Tensor]] = {
        Direction.FORWARD: (inputs, weights.T),
        Direction.WEIGHTS: (outputs.T, inputs),
        Direction.INPUTS: (outputs, weights),
    }
    return factors[product.direction]


def _matrix(rows: int, columns: int, device: torch.device) -> Tensor:
    return torch.linspace(-1.0, 1.0, rows * columns, device=device).view(rows, columns)
