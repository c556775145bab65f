"""The operations per second that a machine attains on bare matrix products, in the shapes of an update.

Measured once per machine and configuration, before the first update, on the learner's device, with each number of
threads that it may have, and then remembered on disk. Random streams are not touched: the matrices hold fixed numbers
and are thrown away.

Whatever else runs on the machine can only lengthen a reading. So a reading in which a thread of this process had to
wait for a core does not count, the shortest of those that do is the one, and it must have been seen twice. All products
take turns, so that no spell of disturbance covers every reading of one of them.

The cache is one small file per key in `$OFFPOLICY_CACHE`, else `$XDG_CACHE_HOME/offpolicy`, else `~/.cache/offpolicy`.
No home, a directory that cannot be written, or a file that makes no sense costs another measurement and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import itertools
import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from offpolicy.files import atomic_write
from offpolicy.machine import num_usable_cores
from offpolicy.onednn import multiply
from offpolicy.protocols import DeviceSync
from offpolicy.timing.clock import Clock, MonotonicClock, queued_ns
from offpolicy.types import Product

Key = dict[str, Any]  # Any: plain JSON values
BUDGET_NS = 900_000_000
MIN_ROUNDS = 30
GROUP_NS = {
    "cpu": 100_000,
    "cuda": 2_000_000,
}  # duration of a reading, long beside reading a clock or waking a device
MAX_CALLS = 1000
SPREAD = 1.3  # largest ratio of the second shortest reading to the shortest
MAX_QUEUED = 0.02  # largest share of a reading's duration that was spent waiting for a core
BUSY_UNITS = 512  # of a product of some milliseconds, which leaves the interpreter to others meanwhile
CPU_ROWS = 1024  # on a CPU larger matrices than that are no faster, only longer
DTYPES = {False: torch.float32, True: torch.bfloat16}  # by `Product.is_rounded`


@dataclass(frozen=True, slots=True)
class Watch:
    """The two clocks that readings are taken with."""

    clock: Clock = field(default_factory=MonotonicClock)
    queued_ns: Callable[[], int] = queued_ns


class Attainable(NamedTuple):
    """FLOP/s of the products of an update on their own."""

    by_threads: Mapping[int, float]  # CPU threads of the learner; without those that could not be measured
    beside_factor: float  # of a product's duration while another core is busy; at least 1


def remembered_attainable(
    products: Sequence[Product], device: torch.device, device_sync: DeviceSync, cpu_model: str, threads: Sequence[int]
) -> Attainable:
    """Returns what `products` attain with each number of threads, from disk where that is known.

    A machine too busy to measure now may be quieter when the next run starts, so what is not known is not remembered.
    The calling thread has its number of threads back at the end.
    """

    def measure() -> float | None:
        with contextlib.suppress(RuntimeError):  # no memory, or no cuBLAS: the run itself may work all the same
            return attainable_flops_per_sec(products, device, device_sync)
        return None

    def measure_beside() -> float | None:
        with _busy_core():
            return measure()

    before, known = torch.get_num_threads(), dict[int, float | None]()
    fewest = min(threads)
    try:
        for number in threads:
            torch.set_num_threads(number)
            known[number] = remembered(cache_key(products, device, cpu_model), measure)
        torch.set_num_threads(fewest)
        beside = None
        if device.type == "cpu" and num_usable_cores() > fewest and known[fewest] is not None:
            beside = remembered({**cache_key(products, device, cpu_model), "beside": 1}, measure_beside)
    finally:
        torch.set_num_threads(before)
    alone = known[fewest]
    factor = max(1.0, alone / beside) if alone and beside else 1.0
    return Attainable({number: speed for number, speed in known.items() if speed is not None}, factor)


@contextlib.contextmanager
def _busy_core() -> Iterator[None]:
    """Another thread that multiplies matrices as long as the context is open."""
    is_over = threading.Event()

    def work() -> None:
        matrix = torch.ones(BUSY_UNITS, BUSY_UNITS)
        result = torch.empty_like(matrix)
        while not is_over.is_set():
            torch.mm(matrix, matrix, out=result)

    thread = threading.Thread(target=work, name="busy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def cache_key(products: Sequence[Product], device: torch.device, cpu_model: str) -> Key:
    """Returns everything that the speed depends on."""
    return {
        "processor": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model,
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "precision": torch.get_float32_matmul_precision(),
        "torch": torch.__version__,
        "products": [list(product) for product in products],
    }


def remembered(key: Key, measure: Callable[[], float | None]) -> float | None:
    """Returns the number under `key`, measured if it is not on disk."""
    directory = cache_directory()
    if directory is None:
        return measure()
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    path = directory / f"attainable-{digest}.json"
    known = _read(path, key)
    if known is not None:
        return known
    measured = measure()
    if measured is not None:
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            atomic_write(path, json.dumps({"key": key, "flops_per_sec": measured}), durable=False)
    return measured


def cache_directory() -> Path | None:
    """Returns the directory of the cache; None for a user without a home, never one below the working directory."""
    if chosen := os.environ.get("OFFPOLICY_CACHE"):
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "offpolicy" if os.path.isabs(home) else None


def _read(path: Path, key: Key) -> float | None:
    """Returns the number in an intact file of this key."""
    try:
        content = json.loads(path.read_text())
        known = float(content["flops_per_sec"]) if content["key"] == key else math.nan
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return known if math.isfinite(known) and known > 0 else None


def attainable_flops_per_sec(
    products: Sequence[Product], device: torch.device, device_sync: DeviceSync, watch: Watch | None = None
) -> float | None:
    """Returns FLOP/s of all products by their time alone; None if the machine is too busy to measure it.

    `device_sync` waits for the device. Takes `BUDGET_NS` at most, and less on a quiet machine.
    """
    watch = watch or Watch()
    begun_ns, are_known = watch.clock.now_ns(), False
    benches = [Bench(product, device, device_sync, watch) for product in products]
    for num_readings, bench in enumerate(itertools.cycle(benches), start=1):
        bench.read()
        are_known = all(each.is_known for each in benches)
        has_time = watch.clock.now_ns() - begun_ns <= BUDGET_NS
        if not has_time or (are_known and num_readings >= MIN_ROUNDS * len(benches)):
            break
    flops = sum(product.per_update * product.flops for product in products)
    return flops / sum(each.seconds_per_update for each in benches) if are_known else None


class Bench:
    """Readings of one product."""

    def __init__(self, product: Product, device: torch.device, device_sync: DeviceSync, watch: Watch) -> None:
        self._product, self._device_sync, self._watch = product, device_sync, watch
        sizes = product[:3] if device.type != "cpu" else [min(size, CPU_ROWS) for size in product[:3]]
        self._scale = math.prod(product[:3]) / math.prod(sizes)
        self._left, self._right = (
            torch.linspace(-1.0, 1.0, rows * columns, device=device).view(rows, columns).to(DTYPES[product.is_rounded])
            for rows, columns in itertools.pairwise(sizes)
        )
        self._result = self._left.new_empty(len(self._left), self._right.shape[1])
        self._is_onednn = product.is_onednn and device.type == "cpu"
        self._group_ns = GROUP_NS[device.type]
        self._shortest_ns: list[float] = []  # the two shortest durations of a call that count
        self._any_ns = float(self._time(1))  # the shortest duration of a call; the first call chooses its kernel

    @property
    def is_known(self) -> bool:
        """True if the shortest reading was seen twice."""
        return len(self._shortest_ns) == 2 and self._shortest_ns[1] <= SPREAD * self._shortest_ns[0]

    @property
    def seconds_per_update(self) -> float:
        """Seconds that an update's products of this shape take."""
        return self._product.per_update * self._shortest_ns[0] * 1e-9 * self._scale

    def read(self) -> None:
        """Takes one more reading."""
        num_calls = max(1, min(MAX_CALLS, int(self._group_ns / self._any_ns)))
        queued_ns = self._watch.queued_ns()
        duration_ns = self._time(num_calls)
        self._any_ns = min(self._any_ns, duration_ns / num_calls)
        if self._watch.queued_ns() - queued_ns <= MAX_QUEUED * duration_ns:
            self._shortest_ns = heapq.nsmallest(2, (*self._shortest_ns, duration_ns / num_calls))

    def _multiply(self) -> None:
        if self._is_onednn:
            self._result.copy_(multiply(self._left, self._right))
        else:
            torch.mm(self._left, self._right, out=self._result)

    def _time(self, num_calls: int) -> int:
        start_ns = self._watch.clock.now_ns()
        for _ in itertools.repeat(None, num_calls):
            self._multiply()
        self._device_sync.wait()
        return max(1, self._watch.clock.now_ns() - start_ns)
