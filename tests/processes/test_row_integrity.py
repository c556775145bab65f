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
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.replay.prefetch_source import Packer, PrefetchSource, PrefetchSpec
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.replay_source import SourceSpec
from offpolicy.replay.resident_source import ResidentSampler, ResidentSource
from offpolicy.replay.ring import Ring
from offpolicy.replay.row_layout import RowLayout
from offpolicy.replay.sampler import Draw, SampleAges, UniformSampler
from offpolicy.timing.device_timer import StreamSync
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import PackerPhase

pytestmark = pytest.mark.mp
REPOSITORY = Path(__file__).resolve().parents[2]
LAYOUT = RowLayout(obs_dim=4, action_dim=1)
WIDTH, CAPACITY, CHUNK, PERIOD, NUM_RINGS = LAYOUT.width, 200_000, 512, 2**18, 2
GUARD = 8 * CHUNK
CPU = torch.device("cpu")
RECYCLED_S = 30.0  # for a writer to come round; milliseconds where it has a core
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

    def __init__(self, kind: type[Ring] = Ring) -> None:
        self.table_block = SharedBlock.create("rows-table", 4 * NUM_RINGS * PERIOD * WIDTH)
        self.blocks = [SharedBlock.create("rows-ring", Ring.nbytes(CAPACITY, WIDTH, 4)) for _ in range(NUM_RINGS)]
        self.rings = [kind(block.buffer, WIDTH, np.float32) for block in self.blocks]
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

    def bad_rows(self, rows: np.ndarray, draw: Draw) -> int:
        """How many of `rows` [n, W] are not those that were drawn."""
        return int((rows != self.table[draw.ring, draw.position % PERIOD]).any(axis=1).sum())


class NoSecondLook(Ring):
    """Seeded bug: whether rows were recycled during the copy is not looked at.

    Each copy is made once the oldest of its rows has been written over: one that lasts too long holds the same.
    """

    def read(self, index: Any, out: Any, lowest: int = -1) -> Any:
        deadline_s = time.monotonic() + RECYCLED_S
        while self.oldest <= int(index.min()) + CHUNK:  # a writer says which chunk comes next before it writes it
            assert time.monotonic() < deadline_s, "the writer has stopped"
            time.sleep(0.0001)
        super().read(index, out, lowest)
        return np.ones(len(index), dtype=np.bool_)


def check_sampler(count: int, kind: type[Ring] = Ring) -> int:
    """Bad rows among `count` of the sampler."""
    bad = 0
    with Field(kind).written() as field:
        sampler, out = field.sampler(), np.empty((4096, WIDTH), dtype=np.float32)
        for _ in range(0, count, len(out)):
            first = [ring.oldest for ring in field.rings]
            draw = sampler.fill(out)
            bad += field.bad_rows(out, draw) + int((draw.position < np.array(first)[draw.ring]).sum())
    return bad


class HandedOut(SampleAges):
    """Keeps the draw of the batches handed out last."""

    def add(self, draw: Draw) -> None:
        super().add(draw)
        self.draw = draw


def check_prefetch(count: int, **spec: Any) -> int:
    """Bad rows among `count` of a prefetching source, when they are handed out or while they are in use."""
    bad = 0
    with Field().written() as field:
        packer = Packer(field.sampler(), field, CPU, Ledger(PackerPhase))
        source = PrefetchSource(PrefetchSpec(SPEC, **spec), field.rings, packer, field, field, updates=0)
        source._ages = handed_out = HandedOut(field.rings)
        try:
            while source.samples < count:
                source.wait_ready()
                source.wait_batch()
                rows = source.sample().flatten(0, 1).numpy()
                bad += sum(field.bad_rows(rows, handed_out.draw) for _ in range(2))  # the packer is busy meanwhile
        finally:
            source.close()
    return bad


def check_resident(count: int) -> int:
    """Bad rows among `count` of a resident source: torn, foreign, or not in what its copy is said to hold."""
    bad = 0
    with Field().written() as field:
        sampler = ResidentSampler(field.rings, CPU, 0, StreamSync(CPU))
        spec = replace(SPEC, batch_size=8192)
        source = ResidentSource(spec, field.rings, sampler, field, field, updates=0)
        while source.samples < count:
            rows = source.sample().flatten(0, 1).numpy()
            known = np.isin(rows[:, 0], range(NUM_RINGS))  # a place that was never copied to holds anything
            bad += int((~known).sum())
            rows = rows[known]
            ring, code = (rows[:, column].astype(np.int64) for column in (0, 1))
            first, last = (
                np.array([getattr(mirror, end) for mirror in sampler._mirrors])[ring] for end in ("first", "last")
            )
            newest = last - 1
            index = newest - (newest - code) % PERIOD  # the newest row below `last` with this code
            bad += field.bad_rows(rows, Draw(ring, index)) + int((index < first).sum())
    return bad


counts = pytest.mark.parametrize(
    "count", [300_000, pytest.param(10_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)


@pytest.mark.promise("no-torn-row")
@counts
def test_the_sampler_hands_out_what_it_drew(count: int) -> None:
    assert check_sampler(count) == 0


@pytest.mark.promise("no-torn-row")
@counts
@pytest.mark.parametrize(
    ("prefetch", "newest"),
    [(True, False), *(pytest.param(*given, marks=pytest.mark.slow) for given in ((True, True), (False, False)))],
)
def test_the_prefetching_source_hands_out_what_it_drew(count: int, *, prefetch: bool, newest: bool) -> None:
    assert check_prefetch(count, prefetch=prefetch, newest=newest) == 0


@pytest.mark.promise("no-torn-row")
@counts
def test_the_resident_source_hands_out_what_its_copy_holds(count: int) -> None:
    assert check_resident(count) == 0


@pytest.mark.slow
def test_a_sampler_that_takes_no_second_look_is_caught() -> None:
    assert check_sampler(30_000, NoSecondLook)
