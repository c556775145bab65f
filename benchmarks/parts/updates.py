"""One gradient update of SAC and of TD3, with one and with two threads of torch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.parts import halfcheetah
from benchmarks.parts.measurement import Measurement, call_us

ALGOS = ("sac", "td3")
THREADS = (1, 2)
CALLS = 40  # a multiple of TD3's policy delay


def measure(rounds: int) -> Iterator[Measurement]:
    """Milliseconds per update, the cases in turns."""
    learners = {algo: halfcheetah.learner(algo) for algo in ALGOS}
    batches = halfcheetah.batches()
    cases = [(algo, threads) for algo in ALGOS for threads in THREADS]
    samples: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for number in range(-1, 5 * rounds):
        for algo, threads in cases:
            torch.set_num_threads(threads)
            update_us = call_us(partial(learners[algo].update, batches), CALLS)
            if number >= 0:  # the first round warms up
                samples[algo, threads].append(update_us / 1000)
    for (algo, threads), update_ms in samples.items():
        yield Measurement("update", f"{algo.upper()}, {threads} thread{'s' * (threads > 1)}", "ms", update_ms)
