"""Env steps/s of HalfCheetah-v5 under random actions, without policy and replay, by the way environments are stepped.

Every number of environments has all its ways in each round, one after another. `async` is left out where it would need
more than 16 processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import numpy as np

from benchmarks.parts.measurement import Measurement
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.vector import VectorAdapter, make_vector

ENV_ID = "HalfCheetah-v5"
NUM_ENVS = (1, 4, 16, 64)
WAYS = (("sync", 1), ("async", 1), ("mujoco", 1), ("mujoco", 2))  # env.vectorization and threads
MOST_WORKERS = 16
ENV_STEPS = 4_000  # of one sample


def measure(rounds: int) -> Iterator[Measurement]:
    """Env steps/s of every way, for each number of environments."""
    for num_envs in NUM_ENVS:
        with ExitStack() as stack:
            vectors = {
                f"{way}, threads {threads}" if way == "mujoco" else way: stack.enter_context(
                    closing(_vector(way, num_envs, threads))
                )
                for way, threads in WAYS
                if threads <= num_envs and (way != "async" or num_envs <= MOST_WORKERS)
            }
            rates: dict[str, list[float]] = {name: [] for name in vectors}
            for number in range(-1, 3 * rounds):
                for name, vector in vectors.items():
                    rate = _rate(vector, ENV_STEPS)
                    if number >= 0:  # the first round warms up
                        rates[name].append(rate)
        for name, samples in rates.items():
            yield Measurement("environments", f"{num_envs} x {name}", "env steps/s", samples)


def _vector(way: str, num_envs: int, num_threads: int) -> VectorAdapter:
    vector = make_vector(EnvConfig(id=ENV_ID, num_envs=num_envs, vectorization=way), num_threads=num_threads)
    vector.reset(1)
    return vector


def _rate(vector: VectorAdapter, env_steps: int) -> float:
    """Steps the environments `env_steps` times in all; returns env steps/s."""
    steps = max(env_steps // vector.num_envs, 1)
    shape = (steps, vector.num_envs, vector.spec.action_dim)
    actions = np.random.default_rng(1).uniform(-1.0, 1.0, shape).astype(np.float32)
    start_ns = time.perf_counter_ns()
    for action in actions:
        vector.step(action)
    return steps * vector.num_envs / (time.perf_counter_ns() - start_ns) * 1e9
