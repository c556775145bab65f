"""Sampling a batch, and bytes per row: our ring beside NumPy arrays as a control.

The control is written here in the style of Stable-Baselines3: one array per field, `next_obs` stored in full, fancy
indexing into new arrays. Both hold HalfCheetah's transitions, of one environment with episodes of 1000 steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.parts import halfcheetah
from benchmarks.parts.measurement import Measurement, interleaved_us
from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_layout import IS_TRUNCATED, OFFSET_SHIFT
from offpolicy.replay.sampler import Sampler
from offpolicy.types import Float32

SIZES = {1_000_000: 25.0, 10_000_000: 40.0}  # rows, and the microseconds that 256 of them may take
EPISODE = 1000  # steps
BYTES_BEFORE = 176.0  # of a row that held its next observation, too
MOST_SHARE = 0.6
CALLS = 300
SPEC, LAYOUT = halfcheetah.SPEC, halfcheetah.LAYOUT


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
    """Microseconds for a batch of 256, and bytes per row, on one thread."""
    torch.set_num_threads(1)
    for capacity, limit in SIZES.items():
        yield from _of_size(capacity, limit, rounds)


def _of_size(capacity: int, limit: float, rounds: int) -> Iterator[Measurement]:
    start = _resident()
    ring = _full_ring(capacity)
    ring_bytes, start = _resident() - start, _resident()
    control = NumpyBuffer(capacity)
    control_bytes = _resident() - start
    sampler = Sampler([ring], np.random.default_rng(1), guard=8)
    batch = np.empty((halfcheetah.BATCH_SIZE, LAYOUT.width), np.float32)
    functions = {
        "ours": lambda: sampler.fill(batch),
        "NumPy arrays": lambda: control.sample(halfcheetah.BATCH_SIZE),
    }
    limits = {"ours": limit}
    for name, samples in interleaved_us(functions, CALLS, 10 * rounds).items():
        yield Measurement("replay", f"sample 256 of {capacity:,} rows, {name}", "us", samples, limits.get(name))
    name = f"resident bytes per row of {capacity:,}"
    yield Measurement("replay", f"{name}, ours", "B", [ring_bytes / capacity], MOST_SHARE * BYTES_BEFORE)
    yield Measurement("replay", f"{name}, NumPy arrays", "B", [control_bytes / capacity])


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


def _resident() -> int:
    """Returns the bytes of the process's resident set."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields["VmRSS"].split()[0])
