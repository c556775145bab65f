"""What timing costs: the learner loop of every run, with the ledger and with the null object, in turns.

The work of an iteration is nothing (the bare cost in microseconds), a spin of 5 ms (the cost in percent, without the
noise of real work) or a SAC update (the cost in percent as a run has it).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median
from typing import Protocol

import torch

from benchmarks.parts import halfcheetah
from benchmarks.parts.measurement import Measurement
from offpolicy.loop import Parts, train
from offpolicy.timing.device_timer import DeviceTimer, StreamSync
from offpolicy.timing.ledger import TimeAccount, make_ledger
from offpolicy.timing.phases import LearnerPhase
from offpolicy.types import Batches

SPIN_NS = 5_000_000
LIMIT_PERCENT = 1.0
PAIRS = 20  # of blocks per sample, the order swapped from pair to pair
ITERATIONS = 6  # of a block: short, so that both of a pair meet the same weather
SAMPLES_PER_ROUND = 3


def measure(rounds: int) -> Iterator[Measurement]:
    """Each sample is the median of `PAIRS` pairs of blocks, with the ledger and with the null object."""
    torch.set_num_threads(1)
    count = SAMPLES_PER_ROUND * rounds
    bare_us = [median(_pairs(_Nothing(), 200, lambda on_ns, off_ns: (on_ns - off_ns) / 1000)) for _ in range(count)]
    yield Measurement("timing", "ledger per iteration", "us", bare_us)
    for name, work in (("spin of 5 ms", _Spin()), ("SAC update", halfcheetah.learner("sac"))):
        percents = [
            median(_pairs(work, ITERATIONS, lambda on_ns, off_ns: 100 * (on_ns / off_ns - 1))) for _ in range(count)
        ]
        yield Measurement("timing", f"ledger around a {name}", "%", percents, LIMIT_PERCENT)


def _pairs(work: _Work, iterations: int, cost: Callable[[float, float], float]) -> Iterator[float]:
    """The cost, from the nanoseconds of the median iteration with the ledger and without, pair by pair."""
    _iteration_ns(work, is_timed=True, iterations=iterations)  # warms up
    for number in range(PAIRS):
        order = (True, False) if number % 2 else (False, True)
        ns = {is_timed: _iteration_ns(work, is_timed=is_timed, iterations=iterations) for is_timed in order}
        yield cost(ns[True], ns[False])


def _iteration_ns(work: _Work, *, is_timed: bool, iterations: int) -> float:
    """The median iteration of one block."""
    stamps = _Stamps()
    train(_parts(work, stamps, make_ledger(LearnerPhase, is_enabled=is_timed), iterations))
    return median(after - before for before, after in pairwise(stamps.ns))


def _parts(work: _Work, stamps: _Stamps, ledger: TimeAccount, iterations: int) -> Parts:
    idle = _Idle()
    return Parts(
        source=_OneBatch(iterations),
        learner=work,
        device_timer=DeviceTimer(StreamSync(torch.device("cpu")), ledger),
        publisher=idle,
        evaluator=idle,
        checkpointer=idle,
        reporter=stamps,
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
    """Work of exactly 5 ms, if the machine lets it."""

    def update(self, batches: Batches) -> None:
        end_ns = time.perf_counter_ns() + SPIN_NS
        while time.perf_counter_ns() < end_ns:
            pass


class _OneBatch:
    """A source that hands out the same batch `iterations` times."""

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

    def run_if_due(self) -> None:
        return

    def run_last(self, *, is_complete: bool) -> bool:
        return is_complete
