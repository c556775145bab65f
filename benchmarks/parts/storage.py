"""Writing a row of the replay, and the weight mailbox, in the shared memory they live in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.parts import halfcheetah
from benchmarks.parts.measurement import Measurement, interleaved_us
from offpolicy.collect.replay_writer import ReplayWriter
from offpolicy.nets.policy import flat_size, flatten_into, load_flat
from offpolicy.processes.mailbox import Mailbox
from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.types import PolicyOutput, StepOutcome

CAPACITY = 1_000_000  # rows: far more than any cache holds
CALLS = 500


def measure(rounds: int) -> Iterator[Measurement]:
    """Microseconds per call, on one thread."""
    torch.set_num_threads(1)
    yield from _replay(rounds)
    yield from _weights(rounds)


def _replay(rounds: int) -> Iterator[Measurement]:
    layout = halfcheetah.LAYOUT
    block = SharedBlock.create("bench-replay", ReplayRing.nbytes_for(CAPACITY, layout, num_envs=1, n_step=1))
    writer = ReplayWriter(ReplayRing(block.buffer, layout, CAPACITY, num_envs=1), gamma=0.99, n_step=1)
    writer.begin(0)
    obs, one, still = np.zeros((1, layout.obs_dim), np.float32), np.zeros(1), np.zeros(1, np.bool_)
    output = PolicyOutput(np.zeros((1, layout.action_dim), np.float32), None, 0)
    outcome = StepOutcome(obs, one, still, still, ~still, one.astype(np.float32), one.astype(np.float32))
    functions = {"write 1 row": lambda: writer.write(obs, output, outcome)}
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
