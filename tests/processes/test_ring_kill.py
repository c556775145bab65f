"""The ring under fire: writer processes are killed at random instants while rows are sampled.

Every float of row i is a function of i, so a torn, stale or foreign row shows. Torch-free: a writer starts in 0.2 s.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.replay.ring import Ring

pytestmark = pytest.mark.mp
REPOSITORY = Path(__file__).resolve().parents[2]
WIDTH, CAPACITY, CHUNK = 64, 5000, 700

WRITER = """
import sys
import numpy as np
from offpolicy.replay.ring import Ring
from offpolicy.processes.shared_memory import SharedBlock

fd, width, most, seed = map(int, sys.argv[1:])
ring = Ring(SharedBlock.attach(fd).buffer, width, np.float64)
chunks = np.random.default_rng(seed)
while True:
    start, count = ring.committed, int(chunks.integers(1, most))
    ring.append(np.arange(start, start + count, dtype=np.float64)[:, None] + np.arange(width) / 1024)
"""


def sample(ring: Ring, rng: np.random.Generator, count: int = 4096) -> int:
    """Returns how many rows were called intact; each of them must be what its index says."""
    newest, oldest = ring.committed, ring.oldest
    if newest <= oldest:  # empty, or written round between the two reads, when this process had no core
        return 0
    start = int(rng.integers(oldest, newest))
    rows = ring.read_range(start, min(start + count, newest))
    assert len(rows) <= newest - start
    assert (np.diff(rows[:, 0]) == 1).all()
    assert (rows == rows[:, :1] + np.arange(WIDTH) / 1024).all()
    return len(rows)


@pytest.mark.promise("no-torn-row")
@pytest.mark.parametrize(("kills", "least"), [(12, 100_000), pytest.param(300, 10_000_000, marks=pytest.mark.slow)])
def test_no_row_is_torn_stale_or_foreign_whenever_the_writer_is_killed(kills: int, least: int) -> None:
    rng, chance = np.random.default_rng(0), random.Random(0)
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    seen = 0
    for number in range(kills):
        block = SharedBlock.create("kill-test", Ring.nbytes(CAPACITY, WIDTH, 8))
        ring = Ring(block.buffer, WIDTH, np.float64)
        command = [sys.executable, "-c", WRITER, *map(str, (block.fd, WIDTH, CHUNK, number))]
        writer = subprocess.Popen(command, pass_fds=(block.fd,), env=environ)
        try:
            while ring.committed == 0:
                assert writer.poll() is None
            until = time.monotonic() + chance.uniform(0.0, 0.05)
            while time.monotonic() < until:
                seen += sample(ring, rng)
        finally:
            writer.kill()
            writer.wait()
        seen += sum(sample(ring, rng) for _ in range(3))  # what the dead writer left
    assert seen > least
