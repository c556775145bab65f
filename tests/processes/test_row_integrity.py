"""Millions of rows through each source while a process per ring writes flat out: none torn, stale or foreign.

Every number of a slot is a function of its ring and of its index there (modulo `PERIOD` vector steps), so a row that is
not what was asked for shows, and whether its two halves belong together. A round of a ring takes milliseconds, and
there may be more processes than cores: readers are overtaken all the time, now and then by several rounds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.replay.prefetch_source import PackerTimers, PrefetchSource
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.replay_source import SourceSpec
from offpolicy.replay.resident_source import ResidentSampler, ResidentSource
from offpolicy.replay.row_layout import RowLayout
from offpolicy.replay.sampler import Sampler
from offpolicy.timing.device_timer import DeviceTimer, StreamSync
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import PackerPhase

pytestmark = pytest.mark.mp
REPOSITORY = Path(__file__).resolve().parents[2]
LAYOUT, MOST, NUM_ENVS, PERIOD, EPISODE, NUM_RINGS = RowLayout(obs_dim=4, action_dim=1), 40_000, 256, 1024, 50, 2
CPU = torch.device("cpu")
PACE = RateLimiter(Fraction(1), start=0, start_updates=0, lead=0, credit=0, max_updates=2, total=2**60)
SPEC = SourceSpec(LAYOUT, PACE, batch_size=2048, device=CPU, normalize_obs=False)

WRITER = """
import sys
import numpy as np
from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.replay.replay_ring import ReplayRing
from tests.processes.test_row_integrity import EPISODE, LAYOUT, MOST, NUM_ENVS, PERIOD, numbers

fd, number = map(int, sys.argv[1:])
ring = ReplayRing(SharedBlock.attach(fd).buffer, LAYOUT, MOST, num_envs=NUM_ENVS)
steps = [numbers(np.arange(step * NUM_ENVS, (step + 1) * NUM_ENVS), number) for step in range(PERIOD)]
tails = [np.concatenate([rows[:, 4:7], rows[:, :1]], axis=1) for rows in steps]
for step, tail in enumerate(tails):
    tail.view(np.uint32)[:, -1] = 0 if step % EPISODE == 0 else 4
ring.begin()
ring.write(tails[0][:0], steps[0][:, :4])
step = 0
while True:
    tail, step = tails[step], (step + 1) % PERIOD
    ring.write(tail, steps[step][:, :4])
"""


def numbers(index: np.ndarray, ring: np.ndarray | int) -> np.ndarray:
    """Seven numbers for each slot [n, 7]; the first is its index, modulo `PERIOD` vector steps, the second its ring."""
    place, ring = index[:, None] % (PERIOD * NUM_ENVS), np.broadcast_to(ring, len(index))[:, None]
    column = np.arange(7)
    hashed = (place * (7 * column + 3) + 5 * column + ring) % 65_521
    return np.where(column == 0, place, np.where(column == 1, ring, hashed)).astype(np.float32)


class Field:
    """Rings, each written by a process as fast as it can, with 1.1 slots per row that is kept."""

    def __init__(self) -> None:
        size = int(1.1 * MOST * LAYOUT.nbytes)
        self.blocks = [SharedBlock.create("rows-ring", size) for _ in range(NUM_RINGS)]
        self.rings = [ReplayRing(block.buffer, LAYOUT, MOST, num_envs=NUM_ENVS) for block in self.blocks]

    @property
    def env_steps(self) -> int:
        return sum(ring.committed for ring in self.rings)

    def wait_for(self, env_steps: int) -> None:
        while self.env_steps < env_steps:
            time.sleep(0.0001)

    def grant(self, env_steps: int) -> None: ...

    def sampler(self) -> Sampler:
        return Sampler(self.rings, np.random.default_rng(0), 8 * NUM_ENVS)


@contextmanager
def written() -> Iterator[Field]:
    field, environment = Field(), {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(block.fd), str(number)],
            pass_fds=(block.fd,), env=environment, cwd=REPOSITORY,
        )
        for number, block in enumerate(field.blocks)
    ]  # fmt: skip
    try:
        while any(ring.committed < 3 * ring.capacity for ring in field.rings):
            assert all(writer.poll() is None for writer in writers)
            time.sleep(0.001)
        yield field
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()


def bad_rows(rows: np.ndarray) -> int:
    """How many of `rows` [n, W] are not a slot's, with the observation of the slot after it; holes are none, too."""
    index, ring = rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64)
    own, following = numbers(index, ring), numbers(index + NUM_ENVS, ring)
    is_right = (rows[:, :7] == own).all(axis=1) & (rows[:, LAYOUT.next_obs] == following[:, :4]).all(axis=1)
    is_right &= (index // NUM_ENVS) % EPISODE != 0
    return int((~is_right).sum())


counts = pytest.mark.parametrize(
    "count", [300_000, pytest.param(10_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)


@pytest.mark.promise("no-torn-row")
@counts
def test_the_prefetching_source_hands_out_whole_rows(count: int) -> None:
    """Also while they are in use: the packing thread is busy meanwhile."""
    with written() as field:
        source = PrefetchSource(SPEC, field.sampler(), field, field, 0, PackerTimers(Ledger(PackerPhase)))
        try:
            while source.samples < count:
                source.wait_ready()
                source.wait_batch()
                rows = source.sample().flatten(0, 1).numpy()
                assert [bad_rows(rows) for _ in range(2)] == [0, 0]
        finally:
            source.close()


@pytest.mark.promise("no-torn-row")
@counts
def test_the_resident_source_hands_out_whole_rows(count: int) -> None:
    with written() as field:
        sampler = ResidentSampler(field.rings, CPU, 0, DeviceTimer(StreamSync(CPU)))
        source = ResidentSource(replace(SPEC, batch_size=8192), sampler, field, field, updates=0)
        while source.samples < count:
            assert bad_rows(source.sample().flatten(0, 1).numpy()) == 0
