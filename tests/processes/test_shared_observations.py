"""Rows that share their observations, sampled while another process writes them flat out: none torn, stale or foreign.

Every number of a slot is a function of its index, so a row shows whether its two halves are those that belong together.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_layout import RowLayout
from offpolicy.replay.sampler import UniformSampler

pytestmark = pytest.mark.mp
REPOSITORY = Path(__file__).resolve().parents[2]
LAYOUT, MOST, NUM_ENVS, PERIOD, EPISODE = RowLayout(obs_dim=4, action_dim=1), 40_000, 256, 1024, 50
CPU = torch.device("cpu")

WRITER = """
import sys
import numpy as np
from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.replay.replay_ring import ReplayRing
from tests.processes.test_shared_observations import EPISODE, LAYOUT, MOST, NUM_ENVS, PERIOD, numbers

ring = ReplayRing(SharedBlock.attach(int(sys.argv[1])).buffer, LAYOUT, MOST, num_envs=NUM_ENVS)
steps = [numbers(np.arange(step * NUM_ENVS, (step + 1) * NUM_ENVS)) for step in range(PERIOD)]
tails = [np.concatenate([rows[:, 4:6], rows[:, 6:7], rows[:, :1]], axis=1) for rows in steps]
for step, tail in enumerate(tails):
    tail.view(np.uint32)[:, -1] = 0 if step % EPISODE == 0 else 4
ring.begin()
ring.write(tails[0][:0], steps[0][:, :4])
step = 0
while True:
    tail, step = tails[step], (step + 1) % PERIOD
    ring.write(tail, steps[step][:, :4])
"""


def numbers(index: np.ndarray) -> np.ndarray:
    """Seven numbers for each slot [n, 7]; the first is its index, modulo `PERIOD` vector steps."""
    place = index[:, None] % (PERIOD * NUM_ENVS)
    column = np.arange(7)
    return np.where(column == 0, place, (place * (7 * column + 3) + 5 * column) % 65_521).astype(np.float32)


@contextmanager
def written() -> Iterator[ReplayRing]:
    """A ring that a process writes as fast as it can, with 1.1 slots per row that is kept."""
    block = SharedBlock.create("shared-observations", int(1.1 * MOST * LAYOUT.nbytes))
    ring = ReplayRing(block.buffer, LAYOUT, MOST, num_envs=NUM_ENVS)
    command = [sys.executable, "-c", WRITER, str(block.fd)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    writer = subprocess.Popen(command, pass_fds=(block.fd,), env=environment, cwd=REPOSITORY)
    try:
        while ring.committed < 3 * ring.capacity:
            assert writer.poll() is None
            time.sleep(0.001)
        yield ring
    finally:
        writer.kill()
        writer.wait()


def bad_rows(rows: np.ndarray) -> int:
    """How many of `rows` [n, W] are not a slot's, with the observation of the slot after it; holes are none, too."""
    index = rows[:, 0].astype(np.int64)
    own, following = numbers(index), numbers(index + NUM_ENVS)
    is_right = (rows[:, :7] == own).all(axis=1) & (rows[:, LAYOUT.next_obs] == following[:, :4]).all(axis=1)
    is_right &= (index // NUM_ENVS) % EPISODE != 0
    return int((~is_right).sum())


@pytest.mark.promise("no-torn-row")
@pytest.mark.parametrize("count", [400_000, pytest.param(10_000_000, marks=pytest.mark.slow)])
def test_the_sampler_joins_what_belongs_together(count: int) -> None:
    with written() as ring:
        sampler = UniformSampler([ring], np.random.default_rng(0), 4 * NUM_ENVS)
        out = np.empty((2048, LAYOUT.width), np.float32)
        for _ in range(0, count, len(out)):
            sampler.fill(out)
            assert bad_rows(out) == 0
