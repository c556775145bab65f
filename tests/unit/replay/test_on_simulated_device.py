"""The batch sources on a simulated device: a batch holds what was drawn, whatever runs ahead of what.

The host never waits behind an update here, unless a source does. Each seeded bug is one that CUDA would not report:
rows that are read before their copy, or overwritten while they are still read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from offpolicy.loop import Parts, train
from offpolicy.protocols import StatefulBatchSource
from offpolicy.replay import resident_source as resident
from offpolicy.replay.demonstration_sampler import DemoShare, EndlessRows, ResidentDemos
from offpolicy.replay.prefetch_source import Packer, PrefetchSource, PrefetchSpec
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.replay_source import RateLimitedSource, ReplaySource, SourceSpec
from offpolicy.replay.resident_source import DrawOptions, ResidentSampler, ResidentSource, ResidentTimers
from offpolicy.replay.ring import Ring
from offpolicy.replay.row_layout import RowLayout
from offpolicy.replay.sampler import UniformSampler
from offpolicy.replay.staging import CopyStream, StagingBlock
from offpolicy.timing.device_events import DEVICE_SPANS, CudaEvent
from offpolicy.timing.device_timer import BackgroundCopyTimer, DeviceTimer, DeviceTraces, StreamSync
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import DeviceSpan, LearnerPhase
from offpolicy.timing.time_account import NullLedger
from offpolicy.timing.trace_reader import read_tracks
from offpolicy.timing.trace_writer import create_tracks, open_track
from offpolicy.types import Batches
from tests.simulated_device import CUDA, MS, SimulatedDevice

LAYOUT = RowLayout(obs_dim=2, action_dim=1)
BATCH = 16
CAPACITY = 32  # the ring wraps every few iterations
STEPS = 3  # rows that the collector appends per iteration
LIMITER = RateLimiter(Fraction(1), start=10, start_updates=0, lead=0, credit=0, max_updates=1, total=10**6)
SPEC = SourceSpec(LAYOUT, LIMITER, BATCH, CUDA, normalize_obs=True, fresh_rings=(0,))


class World:
    """Rings whose rows hold their index in every column, and a collector that is always ahead."""

    def __init__(self, num_rings: int = 1) -> None:
        nbytes = Ring.nbytes(CAPACITY, LAYOUT.width, 4)
        self.rings = [Ring(memoryview(bytearray(nbytes)), LAYOUT.width, np.float32) for _ in range(num_rings)]
        self.collect(20)

    @property
    def env_steps(self) -> int:
        return sum(ring.committed for ring in self.rings)

    def collect(self, count: int) -> None:
        for ring in self.rings:
            for index in range(ring.committed, ring.committed + count):
                ring.append(np.full((1, LAYOUT.width), index, np.float32))

    def wait_for(self, env_steps: int) -> None: ...
    def grant(self, env_steps: int) -> None: ...

    def sampler(self) -> UniformSampler:
        return UniformSampler(self.rings, np.random.default_rng(0), guard=0)


class HeldSampler(UniformSampler):
    """Packs when it is let."""

    def __init__(self, world: World) -> None:
        super().__init__(world.rings, np.random.default_rng(0), guard=0)
        self.permits = threading.Semaphore(1)

    def fill(self, *args: Any, **options: Any) -> Any:
        assert self.permits.acquire(timeout=10)
        return super().fill(*args, **options)


def direct(world: World) -> ReplaySource:
    return ReplaySource(SPEC, world.rings, world.sampler(), world, world, updates=0)


def prefetched(world: World, num_slots: int = 2) -> PrefetchSource:
    return prefetched_by(Packer(world.sampler(), world, CUDA, NullLedger()), world, num_slots)


def prefetched_by(packer: Packer, world: World, num_slots: int = 2) -> PrefetchSource:
    return PrefetchSource(PrefetchSpec(SPEC, num_slots), world.rings, packer, world, world, updates=0)


def on_device(
    world: World, timers: ResidentTimers = resident.NO_TIMERS, demos: ResidentDemos | None = None
) -> ResidentSource:
    sampler = ResidentSampler(world.rings, CUDA, 7, StreamSync(CUDA), timers, DrawOptions(demos=demos))
    return ResidentSource(SPEC, world.rings, sampler, world, world, updates=0)


def mixed(world: World) -> ResidentSource:
    """Half of each batch are demonstrations, whose rows are negative."""
    rows = -1.0 - np.arange(10, dtype=np.float32)[:, None].repeat(LAYOUT.width, axis=1)
    share = DemoShare(EndlessRows(rows, 0, 0, 1), per_batch=BATCH // 2, batch_size=BATCH, description="tens")
    return on_device(world, demos=ResidentDemos(share, LIMITER.max_updates, CUDA, StreamSync(CUDA)))


class Consumer:
    """The learner's kernels: each reads a batch for `ns`, and its rows must be whole and those of its time."""

    def __init__(self, device: SimulatedDevice, ns: int) -> None:
        self._device, self._ns = device, ns
        self.num_read = 0

    def read(self, batches: Batches, oldest: int, newest: int) -> None:
        """Queues the kernel; the rows are as old as `oldest`, the first one of the ring when they were drawn."""
        fresh = batches.fresh_obs
        assert fresh is not None
        self._device.work(self._ns, [*batches.updates[0][:4], fresh], lambda *read: self._check(oldest, newest, *read))

    def _check(self, oldest: int, newest: int, *read: Tensor) -> None:
        obs, action, reward, next_obs, fresh = read
        index = reward[:, None]
        for column in (obs, action, next_obs):
            assert torch.equal(column, index.expand_as(column)), "a row is not whole"
        is_demo = reward < 0
        assert (is_demo | ((reward >= oldest) & (reward < newest))).all(), "a row is of another time"
        assert torch.equal(fresh[:, 0], torch.arange(newest - len(fresh), newest).float()), "an observation is missing"
        self.num_read += 1


def run_ahead(device: SimulatedDevice, source: StatefulBatchSource[Batches], world: World, kernel_ns: int) -> None:
    """Forty iterations in which the host waits for nothing that the source does not wait for."""
    consumer, ring, asked = Consumer(device, kernel_ns), world.rings[0], [world.rings[0].oldest] * 8
    try:
        for _ in range(40):
            source.wait_batch()
            rows = source.sample()
            asked.append(ring.oldest)
            # A slot may have been packed ahead, at most as many iterations before as there are slots.
            oldest = asked[-4] if isinstance(source, PrefetchSource) else ring.oldest
            consumer.read(source.to_device(rows), oldest, ring.committed)
            source.release()
            world.collect(STEPS)
            if isinstance(source, PrefetchSource):
                _wait_until_packed(source)
        device.default.synchronize()
    finally:
        source.close()
    assert consumer.num_read == 40


def _wait_until_packed(source: PrefetchSource) -> None:
    """In lockstep, so that every run is the same."""
    packer = source._packer
    with packer._changed:
        assert packer._changed.wait_for(lambda: not packer._todo or packer._error, timeout=10)


SOURCES: dict[str, Callable[[World], StatefulBatchSource[Batches]]] = {
    "direct": direct, "prefetch": prefetched, "three slots": lambda world: prefetched(world, 3),
    "resident": on_device, "demonstrations": mixed,
}  # fmt: skip
SPEEDS = {"slow kernels": {"copy_ns": 10_000, "kernel_ns": 2_000}, "slow copies": {"copy_ns": 4 * MS, "kernel_ns": 500}}


def run_at_every_speed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "STAGING_ROWS", 5)
    for speed in SPEEDS.values():
        with pytest.MonkeyPatch.context() as patch, SimulatedDevice(**speed).installed(patch) as device:
            world = World()
            run_ahead(device, SOURCES[name](world), world, kernel_ns=MS if speed["copy_ns"] < MS else 1_000)


@pytest.mark.parametrize("name", SOURCES)
def test_a_batch_holds_what_was_drawn_however_far_the_host_runs_ahead(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_at_every_speed(name, monkeypatch)


def test_the_packing_thread_makes_its_device_the_current_one() -> None:
    """Otherwise torch opens the first GPU beside it."""
    with pytest.MonkeyPatch.context() as patch, SimulatedDevice().installed(patch) as device:
        world = World()
        run_ahead(device, prefetched(world), world, kernel_ns=MS)
        assert device.entered == {"packer"}


def never_wait(self: CopyStream, mark: object) -> None:
    """A missing wait of the host: a block, or a slot, is used again too early."""


def wait_on_the_learners_stream(self: CopyStream, mark: Any) -> None:
    """The host waits for the wrong stream."""
    if mark is not None and not mark.query():
        torch.cuda.current_stream(self._device).synchronize()


def never_stall(self: CopyStream, until: object) -> None:
    """A missing wait of the device: rows are gathered before their copy."""


def mark_the_copy_stream(self: CopyStream) -> Any:
    """A mark in the wrong stream: it is reached before the learner's kernels are."""
    assert self._stream is not None
    return self._stream.record_event()


def mark_nothing(self: CopyStream) -> None:
    """A missing mark: rows are overwritten while they are read."""


def copy_on_the_learners_stream_unmarked(self: CopyStream, target: Tensor, source: Tensor, after: object) -> Any:
    """The copy is in the learner's stream, its mark in the other one."""
    target.copy_(source, non_blocking=True)
    assert self._stream is not None
    return self._stream.record_event()


BUGS = [
    ("direct", "block_until", never_wait),
    ("direct", "learner_mark", mark_the_copy_stream),
    ("direct", "learner_mark", mark_nothing),
    ("prefetch", "block_until", never_wait),
    ("prefetch", "block_until", wait_on_the_learners_stream),
    ("prefetch", "learner_mark", mark_the_copy_stream),
    ("prefetch", "learner_mark", mark_nothing),
    ("three slots", "learner_mark", mark_nothing),
    ("prefetch", "copy", copy_on_the_learners_stream_unmarked),
    ("resident", "block_until", never_wait),
    ("resident", "stall_learner_stream", never_stall),
    ("resident", "learner_mark", mark_the_copy_stream),
    ("resident", "learner_mark", mark_nothing),
    ("demonstrations", "block_until", never_wait),
    ("demonstrations", "stall_learner_stream", never_stall),
    ("demonstrations", "learner_mark", mark_nothing),
]


@pytest.mark.parametrize(("name", "method", "bug"), BUGS, ids=lambda value: getattr(value, "__name__", value))
def test_a_wrong_stream_an_early_reuse_and_a_missing_wait_are_found_out(
    name: str, method: str, bug: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CopyStream, method, bug)
    with pytest.raises(AssertionError, match=r"race|whole|another time|out of bounds"):
        run_at_every_speed(name, monkeypatch)


def require_no_wait(device: SimulatedDevice, name: str, num_rings: int) -> None:
    """Takes five batches; the host may wait behind an update only."""
    device.copy_ns, world = MS, World(num_rings)
    source = SOURCES[name](world)
    for _ in range(5):
        source.to_device(source.sample())
        assert (device.calls["synchronize"], device.calls["event"]) == (0, 0)
        device.default.synchronize()
        device.calls.clear()
        world.collect(STEPS)


@pytest.mark.parametrize(("name", "num_rings"), [("direct", 1), ("resident", 1), ("resident", 4)])
def test_a_batch_on_its_way_to_the_device_makes_the_host_wait_for_nothing(
    device: SimulatedDevice, name: str, num_rings: int
) -> None:
    """Neither for its rows, nor for a block of another collector's rows, nor for fresh observations."""
    require_no_wait(device, name, num_rings)


def pageable(self: RateLimitedSource, device: torch.device, fresh: Tensor) -> Tensor:
    """The host waits for the stream, and for everything in it."""
    return fresh.to(device)


def blocking(self: RateLimitedSource, rows: Tensor) -> Batches:
    """The host waits for the rows, which the device could copy while the update is queued."""
    return Batches(tuple(LAYOUT.split(batch) for batch in rows.to(CUDA)), None)


def two_blocks(count: int, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> list[StagingBlock]:
    """Two blocks for the rows of all collectors."""
    return [StagingBlock(torch.empty(shape, dtype=dtype, pin_memory=True)) for _ in range(2)]


@pytest.mark.parametrize(
    ("source", "owner", "name", "bug"),
    [
        ("direct", RateLimitedSource, "to_device", blocking),
        ("resident", RateLimitedSource, "_fresh_on", pageable),
        ("resident", resident, "_staging", two_blocks),
    ],
)
def test_a_blocking_copy_pageable_memory_and_too_few_blocks_are_found_out(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, source: str, owner: Any, name: str,
    bug: Callable[..., Any],
) -> None:  # fmt: skip
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError, match=r"\(0, 0\)"):
        require_no_wait(device, source, 1 if source == "direct" else 4)


class Idle:
    """Everything of the loop but source and learner."""

    is_stopping = False

    def agree(self, *, is_stopping: bool) -> bool:
        return False

    def run_last(self, *, is_complete: bool) -> bool:
        return is_complete

    def is_due(self) -> bool:
        return False

    def nothing(self) -> None: ...

    publish = run_if_due = nothing


class Learner:
    """An update of 10 ms, behind which the collector has appended rows."""

    def __init__(self, device: SimulatedDevice, world: World) -> None:
        self._device, self._world = device, world

    def update(self, batches: Batches) -> None:
        self._device.work(10 * MS, [batches.updates[0].obs])
        self._world.collect(STEPS)


@pytest.mark.parametrize("kind", ["direct", "resident"])
@pytest.mark.parametrize("copy_ns", [10_000, 3 * MS])
@pytest.mark.parametrize("kernel_ns", [2_000, 300_000])
def test_copies_and_draws_on_the_device_are_the_time_of_their_phases(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, kind: str, copy_ns: int, kernel_ns: int
) -> None:
    """The host queues an iteration in no time, so that all of the device's time is waited for."""
    monkeypatch.setattr(RateLimiter, "is_spent", lambda limiter, env_steps, updates: updates >= 8)
    ledger, world, idle = Ledger(LearnerPhase, device), World(), Idle()
    timer = DeviceTimer(StreamSync(CUDA), ledger, lambda: CudaEvent(CUDA), device)
    timers = ResidentTimers(timer.span(DeviceSpan.H2D), timer.span(DeviceSpan.SAMPLE))
    source = direct(world) if kind == "direct" else on_device(world, timers)
    device.default.synchronize()
    device.copy_ns, device.kernel_ns = copy_ns, kernel_ns
    device.log.clear()
    ledger.end_warmup()  # the first iteration counts
    assert train(Parts(source, Learner(device, world), timer, *[idle] * 7, ledger))
    copies = [ran for ran in device.log if ran.stop_ns - ran.start_ns == copy_ns]
    draws = [ran for ran in device.log if ran.stop_ns - ran.start_ns == kernel_ns]
    spent, totals = ledger.account().phases_ns, timer.totals()
    assert (len(copies) >= 16, len(draws) >= 8) == (True, kind == "resident")
    assert (spent["replay_sample"], spent["h2d"]) == (kernel_ns * len(draws), copy_ns * len(copies))
    assert spent["train"] == 8 * 10 * MS
    assert totals is not None
    assert (totals.sample_ns, totals.h2d_ns, totals.train_ns) == (
        spent["replay_sample"], spent["h2d"], spent["train"],
    )  # fmt: skip


def drawn_and_true_copies(device: SimulatedDevice, directory: Path) -> tuple[list[tuple[int, int]], ...]:
    """The copies of a prefetching source behind updates of 30 ms: begin and end in the trace, and in truth."""
    names = ("device-0", "device_copies-0")
    create_tracks(directory, names, 1)
    traces = DeviceTraces(*(open_track(str(directory), name, DEVICE_SPANS, "learner 0", name) for name in names))
    timer = DeviceTimer(StreamSync(CUDA), NullLedger(), lambda: CudaEvent(CUDA), device, traces)
    world = World()
    sampler = HeldSampler(world)
    source = prefetched_by(Packer(sampler, world, CUDA, NullLedger(), copies=timer.background_copies()), world)
    try:
        for _ in range(50):  # more than a second: the anchor is renewed
            source.wait_batch()
            batches = source.to_device(source.sample())
            with timer.span(DeviceSpan.TRAIN):
                device.work(30 * MS, [batches.updates[0].obs])
            sampler.permits.release()  # the next batch is packed behind this update
            _wait_until_packed(source)
            timer.end_update()
            world.collect(STEPS)
    finally:
        source.close()
    tracks = {track.name: track for track in read_tracks(directory)}
    starts, stops = tracks["device_copies-0"].spans("h2d_hidden")
    true = [(ran.start_ns, ran.stop_ns) for ran in device.log if ran.stream != "default"]
    return list(zip(starts.tolist(), stops.tolist(), strict=True)), true


def test_copies_behind_an_update_are_drawn_where_they_were(device: SimulatedDevice, tmp_path: Path) -> None:
    drawn, true = drawn_and_true_copies(device, tmp_path / "0")
    assert len(true) == 51
    assert drawn == true[1:]  # the first one is before the first anchor


def test_an_anchor_in_the_learners_stream_is_found_out(
    device: SimulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split_finished = BackgroundCopyTimer.split_finished

    def outside_the_copy_stream(self: BackgroundCopyTimer) -> None:
        with device.stream(device.default):
            split_finished(self)

    monkeypatch.setattr(BackgroundCopyTimer, "split_finished", outside_the_copy_stream)
    drawn, true = drawn_and_true_copies(device, tmp_path / "0")
    misplaced_ms = [(truth[0] - copy[0]) / MS for copy, truth in zip(drawn, true[-len(drawn) :], strict=True)]
    assert max(misplaced_ms) > 20.0  # too early, by what was left of an update
