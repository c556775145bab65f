"""Env steps/s of Gymnasium's ten MuJoCo v5 tasks under random actions, by the way environments are stepped.

Without policy and replay. All ways of one task and one number of environments take turns. `async` is measured for
HalfCheetah alone, and left out where it would need more than 16 processes; `envpool` for HalfCheetah, where it is
installed. Batch and pool are also shown as multiples of `sync`, sample by sample.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

import numpy as np

from benchmarks.parts.measurement import Measurement
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.vector import VectorAdapter, make_vector

PART = "environments"
HALFCHEETAH = "HalfCheetah-v5"
NUM_ENVS = (1, 4, 16, 64)  # of HalfCheetah
OTHERS = (
    *("Hopper-v5", "Walker2d-v5", "Swimmer-v5", "Ant-v5", "Humanoid-v5", "Reacher-v5", "Pusher-v5"),
    *("InvertedPendulum-v5", "InvertedDoublePendulum-v5"),
)
NUM_ENVS_OF_OTHERS = (4, 16)
WAYS = (("sync", 1), ("async", 1), ("mujoco", 1), ("mujoco", 2))  # env.vectorization and threads
POOLS = (("envpool", 1), ("envpool", 2))
MOST_WORKERS = 16
ENV_STEPS, ENV_STEPS_OF_OTHERS = 4_000, 1_000  # of one sample


def measure(rounds: int) -> Iterator[Measurement]:
    """Env steps/s of every way, for each task and number of environments."""
    pools = POOLS if importlib.util.find_spec("envpool") else ()
    for num_envs in NUM_ENVS:
        yield from _of_task(HALFCHEETAH, num_envs, WAYS + pools, ENV_STEPS, 3 * rounds)
    ways = [(way, threads) for way, threads in WAYS if way != "async"]
    for env_id in OTHERS:
        for num_envs in NUM_ENVS_OF_OTHERS:
            yield from _of_task(env_id, num_envs, ways, ENV_STEPS_OF_OTHERS, 3 * rounds)


def _of_task(
    env_id: str, num_envs: int, ways: Sequence[tuple[str, int]], env_steps: int, samples: int
) -> Iterator[Measurement]:
    with ExitStack() as stack:
        vectors = {
            _words(way, threads): stack.enter_context(closing(_vector(env_id, way, num_envs, threads)))
            for way, threads in ways
            if threads <= num_envs and (way != "async" or num_envs <= MOST_WORKERS)
        }
        rates: dict[str, list[float]] = {name: [] for name in vectors}
        for number in range(-1, samples):
            for name, vector in vectors.items():
                rate = _rate(vector, env_steps)
                if number >= 0:  # the first round warms up
                    rates[name].append(rate)
    case = f"{num_envs} x {env_id}"
    for name, found in rates.items():
        yield Measurement(PART, f"{case}, {name}", "env steps/s", found)
    for name, found in rates.items():
        if name.startswith(("mujoco", "envpool")):
            ratios = [together / sync for together, sync in zip(found, rates["sync"], strict=True)]
            yield Measurement(PART, f"{case}, {name} / sync", "x", ratios)


def _words(way: str, threads: int) -> str:
    return f"{way}, threads {threads}" if way in ("mujoco", "envpool") else way


def _vector(env_id: str, way: str, num_envs: int, num_threads: int) -> VectorAdapter:
    vector = make_vector(EnvConfig(id=env_id, num_envs=num_envs, vectorization=way), num_threads=num_threads)
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
