"""In-hand rotation, without a policy: one call that steps all hands, resets among it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.parts.measurement import Measurement, interleaved_us
from offpolicy.envs.hand.env import HandRotationVector
from offpolicy.envs.hand.rotation import NUM_JOINTS
from offpolicy.envs.hand.task import TASKS
from offpolicy.number_text import counted

NUM_HANDS = 256
STEPS = 20
US_PER_ENV_STEP = 1e6 / 6000  # what 6,000 env steps per second leave


def measure(rounds: int) -> Iterator[Measurement]:
    """Microseconds per env step of both tasks, random actions, with 1 and with 2 threads."""
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (NUM_HANDS, NUM_JOINTS)).astype(np.float32)
    functions = {}
    for task, threads in itertools.product(TASKS, (1, 2)):
        hands = HandRotationVector(NUM_HANDS, num_threads=threads, task=task)
        hands.reset(seed=0)
        functions[f"{task}, {counted(threads, 'thread')}"] = partial(hands.step, actions)
    for name, samples in interleaved_us(functions, STEPS, 3 * rounds).items():
        per_step = [us / NUM_HANDS for us in samples]
        limit = US_PER_ENV_STEP if name == "spin, 2 threads" else None
        yield Measurement("hand", f"env step, {NUM_HANDS} hands, {name}", "us", per_step, limit)
