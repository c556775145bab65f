"""The batch sources on a simulated device: a batch holds what was drawn, whatever runs ahead of what.

The host never waits behind an update here, unless a source does. CUDA would not report rows that are read before their
copy, or overwritten while they are still read.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from offpolicy.protocols import BatchSource
from offpolicy.replay.demonstrations import Demonstrations
from offpolicy.replay.prefetch_source import PackerTimers, PrefetchSource
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.replay_source import ReplaySource, SourceSpec
from offpolicy.replay.resident_source import ResidentSampler, ResidentSource
from offpolicy.timing.device_timer import DeviceTimer, StreamSync
from offpolicy.timing.ledger import NullLedger
from offpolicy.types import Batches
from tests.replay_scene import NUMBERED, World
from tests.simulated_device import CUDA, MS, SimulatedDevice

LAYOUT = NUMBERED
BATCH = 16
CAPACITY = 32  # the ring wraps every few iterations
STEPS = 3  # rows that the collector appends per iteration
LIMITER = RateLimiter(Fraction(1), start=10, start_updates=0, lead=0, credit=0, max_updates=1, total=10**6)
SPEC = SourceSpec(LAYOUT, LIMITER, BATCH, CUDA, normalize_obs=True, fresh_rings=(0,))
Source = BatchSource


def new_world(num_rings: int = 1) -> World:
    """Rings and a collector that is always ahead."""
    return World(num_rings, CAPACITY, 20)


def direct(world: World) -> Source:
    return ReplaySource(SPEC, world.sampler(), world, world, updates=0)


def prefetched(world: World) -> Source:
    return PrefetchSource(SPEC, world.sampler(), world, world, 0, PackerTimers(NullLedger()))


def on_device(world: World, demos: Demonstrations | None = None) -> Source:
    sampler = ResidentSampler(world.rings, CUDA, 7, DeviceTimer(StreamSync(CUDA)), demos)
    return ResidentSource(SPEC, sampler, world, world, 0)


def mixed(world: World) -> Source:
    """Half of each batch are demonstrations, whose rows are negative."""
    rows = -1.0 - np.arange(10, dtype=np.float32)[:, None].repeat(LAYOUT.width, axis=1)
    rows[:, LAYOUT.next_obs] += 1
    return on_device(world, Demonstrations(rows, BATCH // 2, BATCH, "tens", seed=0))


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
        for column in (obs, action, next_obs - 1):
            assert torch.equal(column, index.expand_as(column)), "a row is not whole"
        is_demo = reward < 0
        assert (is_demo | ((reward >= oldest) & (reward < newest))).all(), "a row is of another time"
        assert torch.equal(fresh[:, 0], torch.arange(newest - len(fresh), newest).float()), "an observation is missing"
        self.num_read += 1


SOURCES = {"direct": direct, "prefetch": prefetched, "resident": on_device, "demonstrations": mixed}
SPEEDS = {"slow kernels": {"copy_ns": 10_000, "kernel_ns": 2_000}, "slow copies": {"copy_ns": 4 * MS, "kernel_ns": 500}}


@pytest.mark.promise("no-torn-row")
@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_a_batch_holds_what_was_drawn_however_far_the_host_runs_ahead(
    make: Callable[[World], Source], speed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty iterations in which the host waits for nothing that the source does not wait for."""
    with SimulatedDevice(**SPEEDS[speed]).installed(monkeypatch) as device:
        world = new_world()
        source, ring = make(world), world.rings[0]
        consumer, asked = Consumer(device, MS if speed == "slow kernels" else 1_000), [ring.oldest] * 4
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
            device.default.synchronize()
        finally:
            source.close()
        assert consumer.num_read == 40


@pytest.mark.parametrize(("name", "num_rings"), [("direct", 1), ("resident", 1), ("resident", 4)])
def test_a_batch_on_its_way_to_the_device_makes_the_host_wait_for_nothing(
    device: SimulatedDevice, name: str, num_rings: int
) -> None:
    """Neither for its rows, nor for a block of another collector's rows, nor for fresh observations."""
    device.copy_ns, world = MS, new_world(num_rings)
    source = SOURCES[name](world)
    for _ in range(5):
        source.to_device(source.sample())
        assert (device.calls["synchronize"], device.calls["event"]) == (0, 0)
        device.default.synchronize()
        device.calls.clear()
        world.collect(STEPS)
