"""The ring under fire: a writer process is killed at random instants, again and again, while rows are sampled.

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
import time
import numpy as np
from offpolicy.replay.ring import Ring
from offpolicy.processes.shared_memory import SharedBlock

fd, width, most, variant = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
ring = Ring(SharedBlock.attach(fd).buffer, width, np.float64)
RESERVED, COMMITTED, ANNOUNCED = 0, 1, 7  # the last one is ours: the control page's env steps


def commit_first(rows, env_steps):  # seeded bug: the rows are shown before they are there
    start = ring._words[COMMITTED]
    ring._words[RESERVED] = ring._words[COMMITTED] = start + len(rows)
    index = np.arange(start, start + len(rows)) % ring.capacity
    for half in np.array_split(np.arange(len(rows)), 50):
        ring._rows[index[half]] = rows[half]


append = commit_first if variant == "commit_first" else ring.append
if variant == "keep_floor":  # seeded bug: what the dead writer has damaged is not remembered
    ring._words[RESERVED] = ring.committed
    time.sleep(0.05)  # or the next append announces the same rows
else:
    steps = ring.take_over(ring._words[ANNOUNCED])
    if variant == "right" and steps != 3 * ring.committed:
        sys.exit(f"{steps} env steps, {ring.committed} rows")
chunks = np.random.default_rng(ring.committed)
chunk = most if variant != "right" else 0
while True:
    start, count = ring.committed, chunk or int(chunks.integers(1, most))
    append(np.arange(start, start + count, dtype=np.float64)[:, None] + np.arange(width) / 1024, 3 * (start + count))
    ring._words[ANNOUNCED] = 3 * (start + count)
"""


def start_writer(fd: int, variant: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WRITER, str(fd), str(WIDTH), str(CHUNK), variant]
    return subprocess.Popen(command, pass_fds=(fd,), env={**os.environ, "PYTHONPATH": str(REPOSITORY)})


def sample(ring: Ring, rng: np.random.Generator, count: int = 4096) -> tuple[int, int]:
    """Rows that were called intact, and how many of them were not what their index says."""
    newest, oldest = ring.committed, ring.oldest
    if newest <= oldest:  # empty, or written round between the two reads, when this process had no core
        return 0, 0
    index = rng.integers(oldest, newest, count)
    out = np.empty((count, WIDTH))
    intact = ring.read(index, out)
    expected = index[:, None] + np.arange(WIDTH) / 1024
    return int(intact.sum()), int((out[intact] != expected[intact]).any(axis=1).sum())


def fire(variant: str, kills: int, *, until_bad: bool = False) -> tuple[int, int, bool]:
    """Sample while a writer is killed `kills` times: rows seen, bad ones, and whether the count ever went back.

    With `until_bad` it ends after the first kill that left a bad row.
    """
    block = SharedBlock.create("kill-test", Ring.nbytes(CAPACITY, WIDTH, 8))
    ring = Ring(block.buffer, WIDTH, np.float64)
    rng, chance = np.random.default_rng(0), random.Random(0)
    seen = bad = committed = 0
    went_back = False
    for _ in range(kills):
        writer = start_writer(block.fd, variant)
        try:
            before = ring.committed
            while ring.committed == before:
                assert writer.poll() is None, "a writer that took over counted wrongly"
                counts = sample(ring, rng)
                seen, bad = seen + counts[0], bad + counts[1]
            until = time.monotonic() + chance.uniform(0.0, 0.05)
            while time.monotonic() < until:
                counts = sample(ring, rng)
                seen, bad = seen + counts[0], bad + counts[1]
        finally:
            writer.kill()
            writer.wait()
        went_back |= ring.committed < committed
        committed = ring.committed
        for _ in range(3):  # what the dead writer left
            counts = sample(ring, rng)
            seen, bad = seen + counts[0], bad + counts[1]
        if until_bad and bad:
            break
    return seen, bad, went_back


@pytest.mark.promise("no-torn-row")
def test_no_row_is_torn_stale_or_foreign_whenever_the_writer_is_killed() -> None:
    seen, bad, went_back = fire("right", kills=12)
    assert seen > 100_000
    assert (bad, went_back) == (0, False)


@pytest.mark.slow
def test_ten_million_rows_and_three_hundred_kills() -> None:
    seen, bad, went_back = fire("right", kills=300)
    assert seen > 10_000_000
    assert (bad, went_back) == (0, False)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["commit_first", "keep_floor"])
def test_a_ring_with_a_seeded_bug_is_caught(variant: str) -> None:
    """The negative controls: the test above would see these mistakes, most of them in its twelve kills."""
    assert fire(variant, kills=100, until_bad=True)[1] > 0
