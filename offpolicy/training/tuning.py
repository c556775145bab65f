"""How the learner's updates run: on how many CPU threads, in which mode, and with which cores.

`threads.learner=auto` and `collect.mode=auto` are chosen while it trains: each setting is tried in the iterations after
the warm-up, and the fastest one stays. With more threads than free cores an update takes many times as long, because
OpenMP's threads wait for the one that has no core. Results depend on the number of threads in their last bits, so a
checkpoint holds the setting that was chosen.

Two threads on two cores have a core each (docs/adr/0045-updates.md): the kernel may leave both on one for several
milliseconds. More than two are not bound: libgomp ends threads and starts them again on the cores of the main thread.
"""

from __future__ import annotations

import ctypes
import math
import os
import statistics
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import torch

from offpolicy.algos.learner import Learner
from offpolicy.output import counted
from offpolicy.timing.clock import MonotonicClock
from offpolicy.types import Batches, Rollouts

ROUNDS = 5  # blocks of each setting; those of one round follow each other: a machine is faster now and slower then
BLOCK_ITERATIONS = 40  # iterations of a block
BLOCK_S = 1.0  # seconds after which a block ends early, once it has `FEWEST_ITERATIONS`
FEWEST_ITERATIONS = 2
SETTLING_ITERATIONS = 2  # first iterations of a block, which are not counted: threads start, caches are cold
WORTHWHILE = 1.03  # ratio by which more threads, or an overlap, must be faster
MOST_THREADS = 16  # threads beyond which the products of an update get no faster
NS_PER_S = 1e9

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Setting(NamedTuple):
    """The object of a trial. Of two that are as fast the one of the lesser `order` is kept."""

    threads: int
    mode: str

    @property
    def order(self) -> tuple[bool, int]:
        """Taking turns comes before an overlap, whose weights are older; then fewer threads come first."""
        return self.mode != "alternate", self.threads

    def __str__(self) -> str:
        return f"{counted(self.threads, 'thread')}, {self.mode}"


def thread_numbers(num_cores: int) -> tuple[int, ...]:
    """Returns the numbers of threads to try: the powers of two below the number of cores, and that number."""
    most = min(num_cores, MOST_THREADS)
    return tuple(sorted({most, *(2**power for power in range(most.bit_length()) if 2**power < most)}))


def speed_trial(
    settings: Sequence[Setting],
    apply: Callable[[Setting], None],
    report: Callable[[Setting, str, Mapping[Setting, float]], None],
    num_updates: Callable[[], int],
    now_ns: Callable[[], int] = MonotonicClock.now_ns,
) -> Iterator[None]:
    """Tries the settings, uses the fastest one and reports it. Is resumed after every iteration; of one there is none.

    `report` takes the choice, its reason, and the seconds per update with each setting.
    """
    if len(settings) < 2:
        return
    blocks: dict[Setting, list[float]] = {setting: [] for setting in settings}
    for _ in range(ROUNDS):
        for setting, seconds in blocks.items():
            apply(setting)
            for _ in range(SETTLING_ITERATIONS):
                yield
            seconds.append((yield from _block(num_updates, now_ns)))
    medians = {setting: statistics.median(seconds) for setting, seconds in blocks.items()}
    as_fast = [setting for setting, s in medians.items() if s <= WORTHWHILE * min(medians.values())]
    chosen = min(as_fast, key=lambda setting: setting.order)
    apply(chosen)
    tried = ", ".join(f"{setting}: {1e3 * s:.1f}" for setting, s in medians.items())
    report(chosen, f"fastest: {chosen} (ms per update with {tried})", medians)


def _block(num_updates: Callable[[], int], clock_ns: Callable[[], int]) -> Generator[None, None, float]:
    """Returns the seconds per update of a block of iterations, without one of twenty, the longest: they may save.

    Not the median: where a collector takes the core of the second thread now and then, most updates are faster with two
    threads and all of them together slower.
    """
    times_s: list[float] = []
    start_ns = now_ns = clock_ns()
    while len(times_s) < FEWEST_ITERATIONS or (
        len(times_s) < BLOCK_ITERATIONS and now_ns - start_ns < BLOCK_S * NS_PER_S
    ):
        last_ns, updates = now_ns, num_updates()
        yield
        now_ns, made = clock_ns(), num_updates() - updates
        if made:
            times_s.append((now_ns - last_ns) / made / NS_PER_S)
    return statistics.fmean(sorted(times_s)[: len(times_s) - math.ceil(len(times_s) / 20)])


class BoundLearner:
    """A learner whose two threads stay on different cores in its updates, where it may use two cores.

    Between updates the main thread, and what it starts, may use both. Where the kernel refuses to bind threads, or
    torch has another OpenMP than libgomp, nothing is bound.
    """

    def __init__(self, learner: Learner, *, may_bind: bool = True) -> None:
        """Without `may_bind` nothing is bound: other learners of this host use the same cores, or a GPU computes."""
        self._learner, self._may_bind = learner, may_bind
        self._cpus: Set[int] = frozenset()  # of this process, when threads were bound last
        self._second: int | None = None  # OpenMP's thread, if it is bound

    def update(self, batch: Batches | Rollouts, /) -> None:
        """Makes the learner's update."""
        if self._may_bind and os.sched_getaffinity(0) != self._cpus:  # others were chosen, as by taskset
            self.use_threads(torch.get_num_threads())
        if self._second is None:
            self._learner.update(batch)
            return
        own = {min(self._cpus)}
        can_bind(0, own)
        try:
            self._learner.update(batch)
        finally:
            if os.sched_getaffinity(0) == own:  # no others were chosen meanwhile
                can_bind(0, self._cpus)

    def use_threads(self, threads: int) -> None:
        """Makes torch use so many threads, and binds them where they are two on two cores."""
        torch.set_num_threads(threads)
        self._cpus = os.sched_getaffinity(0)
        if self._second is not None:
            can_bind(self._second, self._cpus)
            self._second = None
        if self._may_bind and threads == len(self._cpus) == 2:
            second = second_thread()
            if second is not None and can_bind(second, {max(self._cpus)}):
                self._second = second


def can_bind(thread: int, cpus: Set[int]) -> bool:
    """Binds a thread to cores; False where a sandbox refuses it, a core is no longer this process's or it has ended."""
    try:
        os.sched_setaffinity(thread, cpus)
    except OSError:
        return False
    return True


def second_thread() -> int | None:
    """Returns the kernel's number of the thread that OpenMP has beside this one; None without libgomp."""
    found: dict[int, int] = {}
    run_in_threads(2, lambda number: found.__setitem__(number, threading.get_native_id()))
    return found.get(1)


def run_in_threads(threads: int, function: Callable[[int], None]) -> None:
    """Calls `function` in each of OpenMP's threads, with its number; the calling thread has 0."""
    library = ctypes.CDLL(None)  # torch loads its libraries for all to see
    if hasattr(library, "GOMP_parallel"):
        library.GOMP_parallel(_CALLBACK(lambda _: function(library.omp_get_thread_num())), None, threads, 0)
