"""Ten million rows through each source while a process per ring writes flat out: none torn, stale or foreign.

Every float of a row is a function of its ring and of its index there (modulo `PERIOD`), so a row that is not what was
asked for shows. A round of a ring takes milliseconds, and there may be more processes than cores: readers are overtaken
all the time, now and then by several rounds.
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
from offpolicy.replay.prefetch_source import Packer, PrefetchSource
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.replay_source import SourceSpec
from offpolicy.replay.resident_source import ResidentSampler, ResidentSource
from offpolicy.replay.ring import Ring
from offpolicy.replay.row_layout import RowLayout
from offpolicy.replay.sampler import UniformSampler
from offpolicy.timing.device_timer import DeviceTimer, StreamSync
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import PackerPhase

pytestmark = pytest.mark.mp
REPOSITORY = Path(__file__).resolve().parents[2]
LAYOUT = RowLayout(obs_dim=4, action_dim=1)
WIDTH, CAPACITY, CHUNK, PERIOD, NUM_RINGS = LAYOUT.width, 200_000, 512, 2**18, 2
GUARD = 8 * CHUNK
CPU = torch.device("cpu")
PACE = RateLimiter(Fraction(1), start=0, start_updates=0, lead=0, credit=0, max_updates=2, total=2**60)
SPEC = SourceSpec(LAYOUT, PACE, batch_size=2048, device=CPU, normalize_obs=False)

WRITER = """
import sys
import numpy as np
from offpolicy.replay.ring import Ring
from offpolicy.processes.shared_memory import SharedBlock

fd, table_fd, number, num_rings, width, chunk = map(int, sys.argv[1:])
table = np.frombuffer(SharedBlock.attach(table_fd).buffer, dtype=np.float32).reshape(num_rings, -1, width)[number]
ring = Ring(SharedBlock.attach(fd).buffer, width, np.float32)
while True:
    start = ring.committed % len(table)
    ring.append(table[start : start + chunk])
"""


class Field:
    """Two rings, and what must be in them: row i of ring r is `table[r, i % PERIOD]`."""

    def __init__(self) -> None:
        self.table_block = SharedBlock.create("rows-table", 4 * NUM_RINGS * PERIOD * WIDTH)
        self.blocks = [SharedBlock.create("rows-ring", Ring.nbytes(CAPACITY, WIDTH, 4)) for _ in range(NUM_RINGS)]
        self.rings = [Ring(block.buffer, WIDTH, np.float32) for block in self.blocks]
        table = np.frombuffer(self.table_block.buffer, dtype=np.float32).reshape(NUM_RINGS, PERIOD, WIDTH)
        index, column = np.arange(PERIOD)[:, None], np.arange(WIDTH)
        for number in range(NUM_RINGS):
            table[number] = (index * (7 * column + 3) + 5 * column + number) % 65_521
            table[number, :, :2] = np.stack([np.full(PERIOD, number), np.arange(PERIOD)], axis=1)
        self.table = table

    @property
    def env_steps(self) -> int:
        return sum(ring.committed for ring in self.rings)

    def wait_for(self, env_steps: int) -> None:
        while self.env_steps < env_steps:
            time.sleep(0.0001)

    def grant(self, env_steps: int) -> None: ...

    @contextmanager
    def written(self) -> Iterator[Field]:
        """While a process per ring writes as fast as it can."""
        writers = [self._start_writer(number) for number in range(NUM_RINGS)]
        try:
            while any(ring.committed < 2 * CAPACITY for ring in self.rings):
                assert all(writer.poll() is None for writer in writers)
                time.sleep(0.001)
            yield self
        finally:
            for writer in writers:
                writer.kill()
                writer.wait()

    def _start_writer(self, number: int) -> subprocess.Popen[bytes]:
        fds = (self.blocks[number].fd, self.table_block.fd)
        words = [*fds, number, NUM_RINGS, WIDTH, CHUNK]
        command = [sys.executable, "-c", WRITER, *map(str, words)]
        return subprocess.Popen(command, pass_fds=fds, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})

    def sampler(self) -> UniformSampler:
        return UniformSampler(self.rings, np.random.default_rng(0), GUARD)

    def torn_rows(self, rows: np.ndarray) -> int:
        """How many of `rows` [n, W] are not one row of one ring: the first two numbers say which one it would be."""
        ring, code = rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64)
        known = np.isin(rows[:, 0], range(NUM_RINGS)) & (code >= 0) & (code < PERIOD)
        expected = self.table[np.where(known, ring, 0), np.where(known, code, 0)]
        return int((~known | (rows != expected).any(axis=1)).sum())


counts = pytest.mark.parametrize(
    "count", [300_000, pytest.param(10_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)


@pytest.mark.promise("no-torn-row")
@counts
def test_the_sampler_hands_out_what_it_drew(count: int) -> None:
    with Field().written() as field:
        sampler, out = field.sampler(), np.empty((4096, WIDTH), dtype=np.float32)
        for _ in range(0, count, len(out)):
            first = [ring.oldest for ring in field.rings]
            draw = sampler.fill(out)
            assert (draw.position >= np.array(first)[draw.ring]).all()
            assert (out == field.table[draw.ring, draw.position % PERIOD]).all()


@pytest.mark.promise("no-torn-row")
@counts
def test_the_prefetching_source_hands_out_whole_rows(count: int) -> None:
    """Also while they are in use: the packer is busy meanwhile."""
    with Field().written() as field:
        packer = Packer(field.sampler(), CPU, Ledger(PackerPhase))
        source = PrefetchSource(SPEC, field.rings, packer, field, field, updates=0)
        try:
            while source.samples < count:
                source.wait_ready()
                source.wait_batch()
                rows = source.sample().flatten(0, 1).numpy()
                assert [field.torn_rows(rows) for _ in range(2)] == [0, 0]
        finally:
            source.close()


@pytest.mark.promise("no-torn-row")
@counts
def test_the_resident_source_hands_out_whole_rows(count: int) -> None:
    with Field().written() as field:
        sampler = ResidentSampler(field.rings, CPU, 0, DeviceTimer(StreamSync(CPU)))
        source = ResidentSource(replace(SPEC, batch_size=8192), sampler, field, field, updates=0)
        while source.samples < count:
            assert field.torn_rows(source.sample().flatten(0, 1).numpy()) == 0
