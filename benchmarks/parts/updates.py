"""One gradient update of SAC and of TD3 beside the floor of its matrix products, and one of FlashSAC.

With one and two threads of torch. An update of FlashSAC (small) has products of many shapes, and no floor here.

Update and floor are measured in turns in one process: their ratio is what two days, or two machines of one kind, share.
The floor is always that of the BLAS (`torch.mm`): an update whose products oneDNN makes may be below it. Where that is
what `algo.products=auto` takes, the update with the BLAS is measured beside it. So is the textbook's, by autograd.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch

from benchmarks.gemm import Products, floor_ms, hidden_products
from benchmarks.parts import halfcheetah
from benchmarks.parts.measurement import Measurement, call_us
from offpolicy.algos.learner import Learner
from offpolicy.machine import keep_freed_memory
from offpolicy.onednn import AUTO, BLAS, chosen_library
from offpolicy.types import Batches

PART = "update"
RATIO = "update / floor"
ALGOS = ("sac", "td3")
THREADS = (1, 2)
CALLS = 10  # of an update per sample: many short samples in turns, so that other programs disturb all alike
FLOOR_CALLS = 40  # of each product
SAMPLES = 20  # per round
WITH_THE_BLAS = " with the BLAS"
VARIANTS = {"": (), WITH_THE_BLAS: ("algo.products=blas",), " of the textbook": ("algo.kernels=textbook",)}


class Case(NamedTuple):
    """An update to measure: its learner and batch, and the shape of its products."""

    name: str
    learner: Learner
    batches: Batches
    products: Products
    rows: int
    width: int

    @classmethod
    def of(cls, algo: str, rows: int = halfcheetah.BATCH_SIZE, width: int = 256, variant: str = "") -> Case:
        """The update of an algorithm on HalfCheetah-v5 with a batch of so many rows and two hidden layers."""
        overrides = (f"algo.batch_size={rows}", f"algo.hidden_dims=[{width},{width}]", *VARIANTS[variant])
        cfg = halfcheetah.config(algo, *overrides).algo
        hidden = hidden_products(algo, cfg.policy_delay, len(cfg.hidden_dims))
        learner = halfcheetah.learner(algo, *overrides)
        return cls(f"{algo.upper()}{variant}", learner, halfcheetah.batches(rows), hidden, rows, width)

    def sample(self, calls: int, floor_calls: int) -> tuple[float, float]:
        """Milliseconds of an update, and of its floor."""
        update_us = call_us(partial(self.learner.update, self.batches), calls)
        return update_us / 1000, floor_ms(self.products, self.rows, self.width, floor_calls)

    def describe_floor(self) -> str:
        """The products that are the floor."""
        return f"floor, {self.products.total:g} products of {self.rows}x{self.width}x{self.width}"


def measure(rounds: int) -> Iterator[Measurement]:
    """Milliseconds per update, those of its floor, and their ratio, the cases in turns; then FlashSAC's."""
    yield from measure_beside_floors(rounds)
    with as_in_a_learner():
        yield from _measure_flashsac(rounds)


def measure_beside_floors(rounds: int) -> Iterator[Measurement]:
    """Milliseconds per update of SAC and TD3, those of its floor, and their ratio, the cases in turns."""
    with as_in_a_learner():
        yield from _measure(rounds)


@contextmanager
def as_in_a_learner() -> Iterator[None]:
    """Flushes denormals, as a learner's process does; restores that and the number of threads afterwards.

    Freed memory is kept, as there, and goes on being kept.
    """
    num_threads = torch.get_num_threads()
    keep_freed_memory()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(num_threads)


def _measure_flashsac(rounds: int) -> Iterator[Measurement]:
    update = partial(halfcheetah.learner("flashsac").update, halfcheetah.batches())
    samples: dict[int, list[float]] = {threads: [] for threads in THREADS}
    for number in range(-1, SAMPLES * rounds):
        for threads, found in samples.items():
            torch.set_num_threads(threads)
            sample = call_us(update, CALLS) / 1000
            if number >= 0:  # the first round warms up
                found.append(sample)
    for threads, found in samples.items():
        yield Measurement(PART, f"FLASHSAC, {_threads_text(threads)}", "ms", found)


def _measure(rounds: int) -> Iterator[Measurement]:
    left_out = {WITH_THE_BLAS} if chosen_library(AUTO) == BLAS else set()
    learners = [Case.of(algo, variant=variant) for variant in VARIANTS if variant not in left_out for algo in ALGOS]
    cases = [(case, threads) for case in learners for threads in THREADS]
    samples: list[list[tuple[float, float]]] = [[] for _ in cases]
    for number in range(-1, SAMPLES * rounds):
        for (case, threads), found in zip(cases, samples, strict=True):
            torch.set_num_threads(threads)
            sample = case.sample(CALLS, FLOOR_CALLS)
            if number >= 0:  # the first round warms up
                found.append(sample)
    for (case, threads), found in zip(cases, samples, strict=True):
        yield from measurements(PART, f"{case.name}, {_threads_text(threads)}", case.describe_floor(), found)


def _threads_text(threads: int) -> str:
    return f"{threads} thread{'s' * (threads > 1)}"


def measurements(part: str, name: str, floor: str, samples: list[tuple[float, float]]) -> Iterator[Measurement]:
    """The three quantities of samples of (update, floor)."""
    yield Measurement(part, name, "ms", [update for update, _ in samples])
    yield Measurement(part, f"{name}: {floor}", "ms", [floor for _, floor in samples])
    yield Measurement(part, f"{name}: {RATIO}", "", [update / floor for update, floor in samples])
