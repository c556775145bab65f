"""Sampling a batch: our ring beside NumPy arrays, one per field, as Stable-Baselines3 has them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.measurement import Measurement, call_us
from benchmarks.parts import updates
from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_layout import IS_TRUNCATED, OFFSET_SHIFT
from offpolicy.replay.sampler import Sampler
from offpolicy.types import Float32

SIZES = {1_000_000: 25.0, 10_000_000: 40.0}  # rows, and the microseconds that 256 of them may take
EPISODE = 1000  # steps
CALLS = 300
SPEC, LAYOUT = updates.SPEC, updates.LAYOUT


class NumpyBuffer:
    """A replay buffer of one array per field: obs, next obs, action, reward, terminated."""

    def __init__(self, capacity: int) -> None:
        shapes = ((SPEC.obs_dim,), (SPEC.obs_dim,), (SPEC.action_dim,), (), ())
        self.fields = [np.empty((capacity, *shape), np.float32) for shape in shapes]
        rng = np.random.default_rng(1)
        for values in self.fields:  # touched: pages of zeros are one page
            values[:] = rng.standard_normal(values.shape[1:], np.float32)
        self.capacity, self.rng = capacity, np.random.default_rng(2)

    def sample(self, count: int) -> tuple[torch.Tensor, ...]:
        """Returns the fields of so many rows."""
        index = self.rng.integers(0, self.capacity, count)
        return tuple(torch.from_numpy(values[index]) for values in self.fields)


def measure(rounds: int) -> Iterator[Measurement]:
    """Microseconds for a batch of 256, on one thread."""
    torch.set_num_threads(1)
    for capacity, limit in SIZES.items():
        yield from _of_size(capacity, limit, rounds)


def _of_size(capacity: int, limit: float, rounds: int) -> Iterator[Measurement]:
    ring, control = _full_ring(capacity), NumpyBuffer(capacity)
    sampler = Sampler([ring], np.random.default_rng(1), guard=8)
    batch = np.empty((updates.BATCH_SIZE, LAYOUT.width), np.float32)
    functions = {
        "ours": lambda: sampler.fill(batch),
        "NumPy arrays": lambda: control.sample(updates.BATCH_SIZE),
    }
    each = [[call_us(function, CALLS) for function in functions.values()] for _ in range(10 * rounds + 1)]  # in turns
    for name, (_, *samples) in zip(functions, zip(*each, strict=True), strict=True):  # the first round warms up
        most = limit if name == "ours" else None
        yield Measurement("replay", f"sample 256 of {capacity:,} rows, {name}", "us", samples, most)


def _full_ring(capacity: int) -> ReplayRing:
    """Returns a ring in shared memory that has been filled with whole episodes."""
    block = SharedBlock.create("bench-replay", ReplayRing.nbytes_for(capacity, LAYOUT, num_envs=1, n_step=1))
    ring = ReplayRing(block.buffer, LAYOUT, capacity, num_envs=1)
    slots: Float32 = np.ones((EPISODE + 1, LAYOUT.slot_width), np.float32)
    slots[:, LAYOUT.discount] = 0.99
    codes = slots.view(np.uint32)[:, -1]
    codes[:] = 1 << OFFSET_SHIFT
    codes[-2] |= IS_TRUNCATED
    codes[-1] = 0
    ring.restore_slots(0, [slots] * -(-capacity // EPISODE), slots[-1:])
    return ring
