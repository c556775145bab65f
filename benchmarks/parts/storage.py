"""Replay ring and weight mailbox, in the shared memory they live in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.parts import halfcheetah
from benchmarks.parts.measurement import Measurement, interleaved_us
from offpolicy.nets.policy import flat_size, flatten_into, load_flat
from offpolicy.processes.mailbox import Mailbox
from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.replay.ring import Ring
from offpolicy.replay.sampler import UniformSampler

CAPACITY = 1_000_000  # rows: far more than any cache holds
FILL_ROWS = 50_000
CALLS = 500


def measure(rounds: int) -> Iterator[Measurement]:
    """Microseconds per call, on one thread."""
    torch.set_num_threads(1)
    yield from _replay(rounds)
    yield from _weights(rounds)


def _replay(rounds: int) -> Iterator[Measurement]:
    width = halfcheetah.LAYOUT.width
    block = SharedBlock.create("bench-replay", Ring.nbytes(CAPACITY, width, 4))
    ring = Ring(block.buffer, width, np.float32)
    for _ in range(CAPACITY // FILL_ROWS):
        ring.append(np.zeros((FILL_ROWS, width), dtype=np.float32))
    sampler = UniformSampler([ring], np.random.default_rng(1), guard=8)
    batch, row = np.empty((halfcheetah.BATCH_SIZE, width), dtype=np.float32), np.zeros((1, width), dtype=np.float32)
    functions = {"sample 256 rows": lambda: sampler.fill(batch), "append 1 row": lambda: ring.append(row)}
    for name, samples in interleaved_us(functions, CALLS, 10 * rounds).items():
        yield Measurement("replay", name, "us", samples)


def _weights(rounds: int) -> Iterator[Measurement]:
    policy = halfcheetah.learner("sac").policy
    flat = np.zeros(flat_size(policy), dtype=np.float32)
    mailbox = Mailbox(SharedBlock.create("bench-weights", Mailbox.nbytes(flat.nbytes)).buffer, flat.nbytes)
    mailbox.publish(flat)
    functions = {
        "flatten the policy": lambda: flatten_into(policy, flat),
        "mailbox publish": lambda: mailbox.publish(flat),
        "mailbox read": lambda: mailbox.read(flat),
        "load the policy": lambda: load_flat(policy, flat),
    }
    for name, samples in interleaved_us(functions, CALLS, 10 * rounds).items():
        yield Measurement("weights", f"{name} ({flat.nbytes / 1e3:.0f} kB)", "us", samples)
