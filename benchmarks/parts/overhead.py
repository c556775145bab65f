"""What timing costs: the learner loop of every run, with the ledger and with the null object, in turns.

The work of an iteration is nothing (the bare cost in microseconds), a spin of 5 ms or 0.1 ms (the cost in percent,
without the noise of real work; the latter at 10,000 iterations per second) or a SAC update (the cost in percent as a
run has it). The parts are those of one rank that samples on its own thread. Beside the bare cost stands what Python
itself takes for as many clock readings and sums, written out in one function: no ledger in Python costs less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import mean, median
from typing import Protocol

import torch

from benchmarks.parts import halfcheetah
from benchmarks.parts.measurement import Measurement, call_us
from offpolicy.loop import Parts, train
from offpolicy.timing.device_timer import DeviceTimer, StreamSync
from offpolicy.timing.histogram import SLICE, HistogramRecorder
from offpolicy.timing.ledger import Ledger, make_ledger
from offpolicy.timing.phases import LearnerPhase
from offpolicy.training.learner_process import idle_phases
from offpolicy.types import Batches

MS = 1_000_000
LIMIT_PERCENT = 1.0
PAIRS = 20  # of blocks per sample, the order swapped from pair to pair
ITERATIONS = 6  # of a block: short, so that other programs disturb both of a pair alike
SAMPLES_PER_ROUND = 3


def measure(rounds: int) -> Iterator[Measurement]:
    """Each sample is the median of `PAIRS` pairs of blocks, with the ledger and with the null object."""
    torch.set_num_threads(1)
    count = SAMPLES_PER_ROUND * rounds
    bare_us = [median(_pairs(_Nothing(), 200, lambda on_ns, off_ns: (on_ns - off_ns) / 1000)) for _ in range(count)]
    yield Measurement("timing", "ledger per iteration", "us", bare_us)
    readings = _readings()
    floor_us = [readings * _reading_us() for _ in range(count)]
    yield Measurement("timing", f"{readings} clock readings and sums in Python: the floor", "us", floor_us)
    yield Measurement("timing", f"counting {SLICE} iterations at once", "us", [_slice_us() for _ in range(count)])
    works: dict[str, tuple[_Work, int]] = {
        "spin of 0.1 ms": (_Spin(MS // 10), 40 * ITERATIONS),
        "spin of 5 ms": (_Spin(5 * MS), ITERATIONS),
        "SAC update": (halfcheetah.learner("sac"), ITERATIONS),
    }
    for name, (work, iterations) in works.items():
        percents = [
            median(_pairs(work, iterations, lambda on_ns, off_ns: 100 * (on_ns / off_ns - 1))) for _ in range(count)
        ]
        limit = LIMIT_PERCENT if "0.1" not in name else None  # 0.1 ms is less than any update takes
        yield Measurement("timing", f"ledger around a {name}", "%", percents, limit)


def _readings(iterations: int = 100) -> int:
    """How often an iteration reads the clock."""
    return (_readings_of(iterations) - _readings_of(0)) // iterations


def _readings_of(iterations: int) -> int:
    clock = _CountingClock()
    ledger = Ledger(LearnerPhase, clock, has_histogram=False)
    ledger.skip(idle_phases(_OneBatch(0), num_ranks=1))
    train(_parts(_Nothing(), _Stamps(), ledger, iterations))
    return clock.readings


def _reading_us() -> float:
    """A clock reading that ends one phase and begins the next, as it is written where nothing is called for it."""
    totals_ns, clock_ns, pairs = [0, 0], time.perf_counter_ns, 10_000
    start_ns = last_ns = clock_ns()
    for _ in range(pairs):
        now_ns = clock_ns()
        totals_ns[0] += now_ns - last_ns
        last_ns = now_ns
        now_ns = clock_ns()
        totals_ns[1] += now_ns - last_ns
        last_ns = now_ns
    return (last_ns - start_ns) / pairs / 2 / 1000


def _slice_us() -> float:
    """The longest stop of an iteration: that in which a slice is counted."""
    recorder, total_ns, longest_us = HistogramRecorder(len(LearnerPhase)), [0] * len(LearnerPhase), list[float]()
    for _ in range(PAIRS):
        for number in range(SLICE - 1):
            total_ns[number % len(total_ns)] += MS + number
            recorder.add(total_ns)
        longest_us.append(call_us(recorder.counts, 1))
    return median(longest_us)


def _pairs(work: _Work, iterations: int, cost: Callable[[float, float], float]) -> Iterator[float]:
    """The cost, from the nanoseconds of the mean iteration with the ledger and without, pair by pair."""
    _iteration_ns(work, is_timed=True, iterations=iterations)  # warms up
    for number in range(PAIRS):
        order = (True, False) if number % 2 else (False, True)
        ns = {is_timed: _iteration_ns(work, is_timed=is_timed, iterations=iterations) for is_timed in order}
        yield cost(ns[True], ns[False])


def _iteration_ns(work: _Work, *, is_timed: bool, iterations: int) -> float:
    """The mean iteration of one block: what is counted in slices is in it."""
    stamps = _Stamps()
    ledger = make_ledger(LearnerPhase, is_enabled=is_timed)
    ledger.skip(idle_phases(_OneBatch(0), num_ranks=1))
    train(_parts(work, stamps, ledger, iterations))
    return mean(after - before for before, after in pairwise(stamps.ns))


def _parts(work: _Work, stamps: _Stamps, ledger: Ledger, iterations: int) -> Parts:
    idle = _Idle()
    return Parts(
        source=_OneBatch(iterations),
        learner=work,
        device_timer=DeviceTimer(StreamSync(torch.device("cpu"))),
        publisher=idle,
        evaluator=idle,
        checkpointer=idle,
        reporter=stamps,
        tuner=idle,
        world=idle,
        stop=idle,
        ledger=ledger,
    )


class _Work(Protocol):
    """What an iteration does."""

    def update(self, batches: Batches) -> None: ...


class _Nothing:
    """No work."""

    def update(self, batches: Batches) -> None:
        return


class _Spin:
    """Work of exactly so long, if the machine lets it."""

    def __init__(self, spin_ns: int) -> None:
        self._spin_ns = spin_ns

    def update(self, batches: Batches) -> None:
        end_ns = time.perf_counter_ns() + self._spin_ns
        while time.perf_counter_ns() < end_ns:
            pass


class _CountingClock:
    """Counts how often it is read."""

    def __init__(self) -> None:
        self.readings = 0

    def now_ns(self) -> int:
        self.readings += 1
        return self.readings


class _OneBatch:
    """A source that hands out the same batch `iterations` times."""

    has_batch_wait = False

    def __init__(self, iterations: int) -> None:
        self._left = iterations
        self._batches = halfcheetah.batches()
        self._rows = torch.zeros(0)

    def wait_ready(self) -> None:
        return

    def is_exhausted(self) -> bool:
        self._left -= 1
        return self._left < 0

    def wait_batch(self) -> None:
        return

    def sample(self) -> torch.Tensor:
        return self._rows

    def to_device(self, rows: torch.Tensor) -> Batches:
        return self._batches

    def release(self) -> None:
        return


class _Stamps:
    """Reads the clock once per iteration, with the ledger and without."""

    def __init__(self) -> None:
        self.ns: list[int] = []

    def run_if_due(self) -> None:
        self.ns.append(time.perf_counter_ns())

    def run_last(self, *, is_complete: bool) -> None:
        return


class _Idle:
    """Publishes nothing, saves nothing, meets nobody, never stops."""

    is_stopping = False
    env_steps = 0

    def agree(self, *, is_stopping: bool) -> bool:
        return is_stopping

    def publish(self) -> None:
        return

    def is_due(self) -> bool:
        return False

    def run_if_due(self) -> None:
        return

    def run(self) -> None:
        return

    def run_last(self, *, is_complete: bool) -> bool:
        return is_complete
