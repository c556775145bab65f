"""One gradient update of SAC and of TD3 beside the floor of its matrix products, and one of FlashSAC.

Update and floor are measured in turns in one process, with one and two threads of torch. The floor is the time of
nothing but the products between hidden layers by the BLAS (`torch.mm`): with two hidden layers of W units and a batch
of B rows, each network that is applied makes one product [B, W] x [W, W], its backward pass one of that shape for the
inputs and one [W, B] x [B, W] for the weights. SAC makes 16 per update (arXiv:1812.05905), TD3 11.5 with a policy delay
of 2 (arXiv:1802.09477). FlashSAC's have many shapes. Where oneDNN makes the products, the update with the BLAS is
measured too, and so is the textbook's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch

from benchmarks.measurement import Measurement, call_us
from offpolicy.algos.learner import Learner
from offpolicy.algos.registry import make_learner
from offpolicy.config.overrides import load_config
from offpolicy.config.schema import RunConfig
from offpolicy.machine import keep_freed_memory
from offpolicy.nets.onednn import AUTO, BLAS, chosen_library
from offpolicy.replay.row_layout import RowLayout
from offpolicy.types import Batches, SpaceSpec

# HalfCheetah-v5: 17 observations, 6 actions.
SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6, max_episode_steps=1000)
LAYOUT = RowLayout(SPEC.obs_dim, SPEC.action_dim)
BATCH_SIZE = 256
PART = "update"
RATIO = "update / floor"
ALGOS = ("sac", "td3")
THREADS = {1: "1 thread", 2: "2 threads"}
CALLS = 10  # of an update per sample: many short samples in turns, so that other programs disturb all alike
FLOOR_CALLS = 40  # of each product
SAMPLES = 20  # per round
WITH_THE_BLAS = " with the BLAS"
VARIANTS = {"": (), WITH_THE_BLAS: ("algo.products=blas",), " of the textbook": ("algo.kernels=textbook",)}


def config_of(algo: str, *overrides: str) -> RunConfig:
    """The configuration of `offpolicy train algo=<algo> env=halfcheetah device=cpu`."""
    return load_config([f"algo={algo}", "env=halfcheetah", "device=cpu", *overrides])


def learner_of(algo: str, *overrides: str) -> Learner:
    """A fresh learner on the CPU."""
    return make_learner(config_of(algo, *overrides).algo, SPEC, torch.device("cpu"), seed=1)


def batch_of(num_rows: int = BATCH_SIZE) -> Batches:
    """One batch of plausible rows."""
    rows = torch.randn((num_rows, LAYOUT.width), generator=torch.Generator().manual_seed(1))
    rows[:, LAYOUT.action] = rows[:, LAYOUT.action].tanh()
    rows[:, LAYOUT.terminated] = 0.0
    rows[:, LAYOUT.discount] = 0.99
    return Batches((LAYOUT.split(rows),), None)


class Products(NamedTuple):
    """Products between hidden layers per gradient update, by their part of the update."""

    forward: float
    inputs: float  # backward, for the inputs
    weights: float  # backward, for the weights


# (target action, target critics, critics; their backward passes), and of one actor update, which is every `delay`-th.
CRITIC_UPDATE = Products(forward=1 + 2 + 2, inputs=2, weights=2)
ACTOR_UPDATE = {
    "sac": Products(forward=1 + 2, inputs=2 + 1, weights=1),  # through both critics
    "td3": Products(forward=1 + 1, inputs=1 + 1, weights=1),  # through the first
}


def hidden_products(algo: str, policy_delay: int) -> Products:
    """Returns the products of an update with two hidden layers, on average over an actor's update and those before."""
    pairs = zip(CRITIC_UPDATE, ACTOR_UPDATE[algo], strict=True)
    return Products(*(critic + actor / policy_delay for critic, actor in pairs))


class Case(NamedTuple):
    """An update to measure: its learner and batch, and the shape of its products."""

    name: str
    learner: Learner
    batches: Batches
    products: Products
    rows: int
    width: int

    @classmethod
    def of(cls, algo: str, rows: int = BATCH_SIZE, width: int = 256, variant: str = "") -> Case:
        """Returns the update of an algorithm on HalfCheetah-v5 with so many rows and two hidden layers."""
        overrides = (f"algo.batch_size={rows}", f"algo.hidden_dims=[{width},{width}]", *VARIANTS[variant])
        hidden = hidden_products(algo, config_of(algo, *overrides).algo.policy_delay)
        learner = learner_of(algo, *overrides)
        return cls(f"{algo.upper()}{variant}", learner, batch_of(rows), hidden, rows, width)

    def sample(self, calls: int, floor_calls: int) -> tuple[float, float]:
        """Returns the milliseconds of an update, and of its floor, on the threads that torch has now."""
        update_us = call_us(partial(self.learner.update, self.batches), calls)
        generator = torch.Generator().manual_seed(1)
        shapes = ((self.rows, self.width), (self.width, self.width), (self.width, self.rows))
        hidden, weights, turned = (torch.randn(shape, generator=generator) for shape in shapes)
        into_hidden, into_weights = torch.empty_like(hidden), torch.empty_like(weights)
        across_us = call_us(partial(torch.mm, hidden, weights, out=into_hidden), floor_calls)
        back_us = call_us(partial(torch.mm, turned, hidden, out=into_weights), floor_calls)
        floor_us = (self.products.forward + self.products.inputs) * across_us + self.products.weights * back_us
        return update_us / 1000, floor_us / 1000

    def measurements(self, part: str, name: str, samples: Sequence[tuple[float, float]]) -> Iterator[Measurement]:
        """Yields the three quantities of samples of (update, floor)."""
        floor = f"floor, {sum(self.products):g} products of {self.rows}x{self.width}x{self.width}"
        yield Measurement(part, name, "ms", [update for update, _ in samples])
        yield Measurement(part, f"{name}: {floor}", "ms", [floor for _, floor in samples])
        yield Measurement(part, f"{name}: {RATIO}", "", [update / floor for update, floor in samples])


def measure(rounds: int) -> Iterator[Measurement]:
    """Milliseconds per update, those of its floor, and their ratio, the cases in turns; then FlashSAC's."""
    yield from measure_beside_floors(rounds)
    update = partial(learner_of("flashsac").update, batch_of())
    samples: dict[int, list[float]] = {threads: [] for threads in THREADS}
    with as_in_a_learner():
        for number in range(-1, SAMPLES * rounds):
            for threads, found in samples.items():
                torch.set_num_threads(threads)
                sample = call_us(update, CALLS) / 1000
                if number >= 0:  # the first round warms up
                    found.append(sample)
    for threads, found in samples.items():
        yield Measurement(PART, f"FLASHSAC, {THREADS[threads]}", "ms", found)


def measure_beside_floors(rounds: int) -> Iterator[Measurement]:
    """Milliseconds per update of SAC and TD3, those of its floor, and their ratio, the cases in turns."""
    left_out = {WITH_THE_BLAS} if chosen_library(AUTO) == BLAS else set()
    learners = [Case.of(algo, variant=variant) for variant in VARIANTS if variant not in left_out for algo in ALGOS]
    cases = [(case, threads) for case in learners for threads in THREADS]
    samples: list[list[tuple[float, float]]] = [[] for _ in cases]
    with as_in_a_learner():
        for number in range(-1, SAMPLES * rounds):
            for (case, threads), found in zip(cases, samples, strict=True):
                torch.set_num_threads(threads)
                sample = case.sample(CALLS, FLOOR_CALLS)
                if number >= 0:
                    found.append(sample)
    for (case, threads), found in zip(cases, samples, strict=True):
        yield from case.measurements(PART, f"{case.name}, {THREADS[threads]}", found)


@contextmanager
def as_in_a_learner() -> Iterator[None]:
    """Flushes denormals and keeps freed memory, as a learner's process does; restores the number of threads."""
    num_threads = torch.get_num_threads()
    keep_freed_memory()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(num_threads)
