"""What timing costs: the learner loop of every run, with the ledger and with the null object, in turns.

The work of an iteration is nothing (microseconds), a spin of 5 ms (percent) or a SAC update (percent).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import mean, median
from types import SimpleNamespace as Seam

import torch

from benchmarks.measurement import Measurement
from benchmarks.parts import updates
from offpolicy.loop import Parts, train
from offpolicy.timing.device_timer import DeviceTimer, StreamSync
from offpolicy.timing.ledger import make_ledger
from offpolicy.timing.phases import LearnerPhase
from offpolicy.training.learner_process import idle_phases
from offpolicy.types import Batches

SPIN_NS = 5_000_000
LIMIT_PERCENT = 1.0
PAIRS = 20  # of blocks per sample, the order swapped from pair to pair
ITERATIONS, MANY_ITERATIONS = 6, 200  # of a block: short, so that other programs disturb both of a pair alike
SAMPLES_PER_ROUND = 3
ROWS, BATCHES = torch.zeros(0), updates.batch_of()
Work = Callable[[Batches], object]  # of an iteration


def measure(rounds: int) -> Iterator[Measurement]:
    """Each sample is the median of `PAIRS` pairs of blocks, with the ledger and with the null object."""
    torch.set_num_threads(1)
    count = SAMPLES_PER_ROUND * rounds
    bare_us = [median((on - off) / 1000 for on, off in _pairs(_nothing, MANY_ITERATIONS)) for _ in range(count)]
    yield Measurement("timing", "ledger per iteration", "us", bare_us)
    works: dict[str, Work] = {"spin of 5 ms": _spin, "SAC update": updates.learner_of("sac").update}
    for name, work in works.items():
        percents = [median(100 * (on / off - 1) for on, off in _pairs(work, ITERATIONS)) for _ in range(count)]
        yield Measurement("timing", f"ledger around a {name}", "%", percents, LIMIT_PERCENT)


def _pairs(work: Work, iterations: int) -> Iterator[tuple[float, float]]:
    """Yields the nanoseconds of the mean iteration with the ledger and without, pair by pair."""
    _iteration_ns(work, is_timed=True, iterations=iterations)  # warms up
    for number in range(PAIRS):
        order = (True, False) if number % 2 else (False, True)
        ns = {is_timed: _iteration_ns(work, is_timed=is_timed, iterations=iterations) for is_timed in order}
        yield ns[True], ns[False]


def _iteration_ns(work: Work, *, is_timed: bool, iterations: int) -> float:
    """Returns the mean iteration of one block: what is counted in slices is in it."""
    stamps_ns, left = list[int](), iter(range(iterations))
    ledger = make_ledger(LearnerPhase, is_enabled=is_timed)
    source = Seam(
        has_batch_wait=False,
        wait_ready=lambda: None,
        is_exhausted=lambda: next(left, None) is None,
        wait_batch=lambda: None,
        sample=lambda: ROWS,
        to_device=lambda rows: BATCHES,
        release=lambda: None,
    )
    never = {"is_due": lambda: False, "run_last": lambda *, is_complete: is_complete}
    ledger.skip(idle_phases(source, num_ranks=1, collects=False))
    train(
        Parts(
            source=source,
            learner=Seam(update=work),
            device_timer=DeviceTimer(StreamSync(torch.device("cpu"))),
            publisher=Seam(publish=lambda: None),
            evaluator=Seam(**never),
            checkpointer=Seam(**never),
            reporter=Seam(run_if_due=lambda: stamps_ns.append(time.perf_counter_ns()), **never),
            measurements=iter(()),
            world=Seam(agree=lambda *, is_stopping: is_stopping),
            is_stopping=lambda: False,
            ledger=ledger,
        )
    )
    return mean(after - before for before, after in pairwise(stamps_ns))


def _nothing(batches: Batches) -> None:
    return


def _spin(batches: Batches) -> None:
    end_ns = time.perf_counter_ns() + SPIN_NS
    while time.perf_counter_ns() < end_ns:
        pass
