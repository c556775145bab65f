"""Sampling a batch, and bytes per row: our ring, NumPy arrays as a control, others where they are installed.

The control is written here in the style of Stable-Baselines3: one array per field, `next_obs` stored in full, fancy
indexing into new arrays. All hold HalfCheetah's transitions, of one environment with episodes of 1000 steps.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from benchmarks.parts import halfcheetah
from benchmarks.parts.measurement import Measurement, interleaved_us
from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_layout import IS_TRUNCATED, OFFSET_SHIFT
from offpolicy.replay.sampler import UniformSampler
from offpolicy.types import Float32

SIZES = {1_000_000: 25.0, 10_000_000: 40.0}  # rows, and the microseconds that 256 of them may take
EPISODE, BLOCK = 1000, 1  # steps of an episode, episodes that are written at once
BYTES_BEFORE = 176.0  # of a row that held its next observation, too
MOST_SHARE = 0.6
CALLS = 300
SPEC, LAYOUT = halfcheetah.SPEC, halfcheetah.LAYOUT


class NumpyBuffer:
    """A replay buffer of one array per field."""

    def __init__(self, capacity: int) -> None:
        rng = np.random.default_rng(1)
        self.obs = np.empty((capacity, SPEC.obs_dim), np.float32)
        self.next_obs = np.empty((capacity, SPEC.obs_dim), np.float32)
        self.action = np.empty((capacity, SPEC.action_dim), np.float32)
        self.reward, self.terminated = np.empty(capacity, np.float32), np.empty(capacity, np.float32)
        for values in self.fields.values():  # touched: pages of zeros are one page
            values[:] = rng.standard_normal(values.shape[1:], np.float32)
        self.rng = np.random.default_rng(2)

    @property
    def fields(self) -> dict[str, Float32]:
        """All arrays by name."""
        return {
            "obs": self.obs, "next_obs": self.next_obs, "action": self.action, "reward": self.reward,
            "terminated": self.terminated,
        }  # fmt: skip

    def sample(self, count: int) -> tuple[torch.Tensor, ...]:
        """Returns the fields of so many rows."""
        index = self.rng.integers(0, len(self.obs), count)
        return tuple(torch.from_numpy(values[index]) for values in self.fields.values())


def _stable_baselines3(rows: NumpyBuffer) -> Callable[[], object]:
    buffers: Any = importlib.import_module("stable_baselines3.common.buffers")  # Any: optional
    obs, action = (spaces.Box(-1.0, 1.0, (size,), np.float32) for size in (SPEC.obs_dim, SPEC.action_dim))
    buffer = buffers.ReplayBuffer(len(rows.obs), obs, action, device="cpu")
    buffer.observations[:, 0], buffer.next_observations[:, 0] = rows.obs, rows.next_obs
    buffer.actions[:, 0], buffer.rewards[:, 0], buffer.dones[:, 0] = rows.action, rows.reward, rows.terminated
    buffer.timeouts[:], buffer.full = 0.0, True
    return lambda: buffer.sample(halfcheetah.BATCH_SIZE)


def _torchrl(rows: NumpyBuffer) -> Callable[[], object]:
    data: Any = importlib.import_module("torchrl.data")  # Any: optional
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(len(rows.obs)), batch_size=halfcheetah.BATCH_SIZE)
    tensors = {name: torch.from_numpy(values) for name, values in rows.fields.items()}
    buffer.extend(importlib.import_module("tensordict").TensorDict(tensors, batch_size=[len(rows.obs)]))
    return buffer.sample  # type: ignore[no-any-return]  # Any, as above


def _cpprb(rows: NumpyBuffer) -> Callable[[], object]:
    cpprb: Any = importlib.import_module("cpprb")  # Any: optional
    shapes = {name: {"shape": values.shape[1:] or 1} for name, values in rows.fields.items()}
    buffer = cpprb.ReplayBuffer(len(rows.obs), shapes)
    buffer.add(**rows.fields)
    return lambda: buffer.sample(halfcheetah.BATCH_SIZE)


PEERS = {"stable_baselines3": _stable_baselines3, "torchrl": _torchrl, "cpprb": _cpprb}


def measure(rounds: int) -> Iterator[Measurement]:
    """Microseconds for a batch of 256, and bytes per row, on one thread."""
    torch.set_num_threads(1)
    for peer in PEERS:
        if importlib.util.find_spec(peer) is None:
            sys.stderr.write(f"replay: {peer} is not installed, and not measured\n")
    for capacity, limit in SIZES.items():
        yield from _of_size(capacity, limit, rounds)


def _of_size(capacity: int, limit: float, rounds: int) -> Iterator[Measurement]:
    start = _resident()
    ring = _full_ring(capacity)
    ring_bytes, start = _resident() - start, _resident()
    control = NumpyBuffer(capacity)
    control_bytes = _resident() - start
    sampler = UniformSampler([ring], np.random.default_rng(1), guard=8)
    batch = np.empty((halfcheetah.BATCH_SIZE, LAYOUT.width), np.float32)
    functions: dict[str, Callable[[], object]] = {
        "ours": lambda: sampler.fill(batch),
        "NumPy arrays": lambda: control.sample(halfcheetah.BATCH_SIZE),
    }
    functions |= {peer: PEERS[peer](control) for peer in PEERS if importlib.util.find_spec(peer) is not None}
    limits = {"ours": limit}
    for name, samples in interleaved_us(functions, CALLS, 10 * rounds).items():
        yield Measurement("replay", f"sample 256 of {capacity:,} rows, {name}", "us", samples, limits.get(name))
    name = f"resident bytes per row of {capacity:,}"
    yield Measurement("replay", f"{name}, ours", "B", [ring_bytes / capacity], MOST_SHARE * BYTES_BEFORE)
    yield Measurement("replay", f"{name}, NumPy arrays", "B", [control_bytes / capacity])


def _full_ring(capacity: int) -> ReplayRing:
    """A ring in shared memory that has been filled with whole episodes."""
    block = SharedBlock.create("bench-replay", ReplayRing.nbytes_for(capacity, LAYOUT, num_envs=1, n_step=1))
    ring = ReplayRing(block.buffer, LAYOUT, capacity, num_envs=1)
    episodes: Float32 = np.ones((BLOCK, EPISODE + 1, LAYOUT.slot_width), np.float32)
    episodes[:, :, LAYOUT.discount] = 0.99
    codes = episodes.view(np.uint32)[:, :, -1]
    codes[:] = 1 << OFFSET_SHIFT
    codes[:, -2] |= IS_TRUNCATED
    codes[:, -1] = 0
    slots = episodes.reshape(-1, LAYOUT.slot_width)
    ring.restore_slots(0, [slots] * -(-capacity // (BLOCK * EPISODE)), slots[-1:])
    return ring


def _resident() -> int:
    """Returns the bytes of the process's resident set."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields["VmRSS"].split()[0])
