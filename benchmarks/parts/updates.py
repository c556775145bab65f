"""One gradient update of SAC and of TD3, with one and with two threads of torch, beside its floor.

The floor of an update is the time of its matrix products [256, 256] x [256, 256] alone, in memory that is kept: SAC has
16 of them, TD3 makes 9 in every update and 5 more in every second. It is measured between the updates, so that what
slows the machine slows both.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.parts import halfcheetah
from benchmarks.parts.measurement import Measurement, call_us

PRODUCTS = {"sac": 16.0, "td3": 9.0 + 5.0 / 2}  # per update
THREADS = (1, 2)
CALLS = 40  # a multiple of TD3's policy delay
WIDTH = 256


def measure(rounds: int) -> Iterator[Measurement]:
    """Milliseconds per update and of its floor, and their ratio, the cases in turns."""
    torch.set_flush_denormal(True)  # as in a learner's process
    learners = {algo: halfcheetah.learner(algo) for algo in PRODUCTS}
    batches = halfcheetah.batches()
    left, right, out = (torch.randn(WIDTH, WIDTH) for _ in range(3))
    product = partial(torch.mm, left, right, out=out)
    cases = [(algo, threads) for threads in THREADS for algo in PRODUCTS]
    samples: dict[tuple[str, int], list[tuple[float, float]]] = {case: [] for case in cases}
    for number in range(-1, 5 * rounds):
        for algo, threads in cases:
            torch.set_num_threads(threads)
            update_ms = call_us(partial(learners[algo].update, batches), CALLS) / 1000
            product_ms = call_us(product, 4 * CALLS) / 1000
            if number >= 0:  # the first round warms up
                samples[algo, threads].append((update_ms, PRODUCTS[algo] * product_ms))
    for (algo, threads), pairs in samples.items():
        name = f"{algo.upper()}, {threads} thread{'s' * (threads > 1)}"
        yield Measurement("update", name, "ms", [update for update, _ in pairs])
        yield Measurement("update", f"  floor of {name}", "ms", [floor for _, floor in pairs])
        yield Measurement("update", f"  times its floor, {name}", "", [update / floor for update, floor in pairs])
