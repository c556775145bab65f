"""The source that packs ahead: which rows it may draw, whose the slots are, and how its thread ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.replay.prefetch_source import PackerTimers, PrefetchSource, rows_recycled_while_open
from offpolicy.replay.rate_limiter import LearningStart, RateLimiter
from offpolicy.replay.replay_source import ReplaySource, SourceSpec
from offpolicy.replay.sampler import Sampler
from offpolicy.replay.staging import CopyStream
from offpolicy.timing.device_timer import StreamSync
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import PackerPhase
from tests.replay_scene import NUMBERED, append, numbered_ring

LAYOUT = NUMBERED
CPU = torch.device("cpu")
LIMITER = RateLimiter(Fraction(1), start=10, start_updates=0, lead=0, credit=0, max_updates=1, total=1000)
SOURCE = SourceSpec(LAYOUT, LIMITER, batch_size=64, device=CPU, normalize_obs=True, fresh_rings=(0,))


devices = pytest.mark.parametrize(
    "device",
    [
        CPU,
        pytest.param(
            torch.device("cuda", 0),
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
            id="cuda",
        ),
    ],
)


class World:
    """A ring per collector, the gate and the agreed env steps; each row encodes its index."""

    def __init__(self, num_rings: int = 1, capacity: int = 4096) -> None:
        self.rings = [numbered_ring(capacity) for _ in range(num_rings)]
        self.landed = threading.Condition()
        self.collect(11)

    @property
    def env_steps(self) -> int:
        return sum(ring.committed for ring in self.rings)

    def collect(self, count: int) -> None:
        with self.landed:
            for ring in self.rings:
                append(ring, count)
            self.landed.notify_all()

    def wait_for(self, env_steps: int) -> None:
        with self.landed:
            self.landed.wait_for(lambda: self.env_steps >= env_steps)

    def grant(self, env_steps: int) -> None: ...

    def sampler(self, guard: int = 0) -> Sampler:
        return Sampler(self.rings, np.random.default_rng(0), guard)


MakeSource = Callable[..., PrefetchSource]


@pytest.fixture
def make_source() -> Iterator[MakeSource]:
    made: list[PrefetchSource] = []

    def make(world: World, *, sampler: Sampler | None = None, **spec: Any) -> PrefetchSource:
        plan = replace(SOURCE, **spec)
        timers = PackerTimers(Ledger(PackerPhase))
        source = PrefetchSource(plan, sampler or world.sampler(), world, world, 0, timers)
        made.append(source)
        return source

    yield make
    for source in made:
        source.close()


def take(source: PrefetchSource) -> torch.Tensor:
    """A copy of the columns with a meaning of one iteration's rows [U, B, ...]."""
    source.wait_batch()
    rows = source.sample()
    torch.stack([batch.reward for batch in source.to_device(rows).updates])  # what the learner would touch
    return rows.cpu()[..., : LAYOUT.next_obs.stop].clone()


def packers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "packer"]


@devices
def test_with_one_slot_it_equals_the_direct_source_bit_for_bit(make_source: MakeSource, device: torch.device) -> None:
    world = World(num_rings=2, capacity=64)
    ahead = make_source(world, num_slots=1, device=device)
    direct = ReplaySource(replace(SOURCE, device=device), world.sampler(), world, world, updates=0)
    for _ in range(50):
        ahead.wait_batch()
        got, expected = ahead.to_device(ahead.sample()), direct.to_device(direct.sample())
        assert got.fresh_obs is not None
        assert expected.fresh_obs is not None
        assert torch.equal(got.fresh_obs, expected.fresh_obs)
        for one, other in zip(got.updates, expected.updates, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        world.collect(1)
    assert ahead.random_state() == {**direct.random_state(), "requests": []}
    assert (ahead.updates, ahead.samples, ahead.sample_age_sum) == (
        direct.updates, direct.samples, direct.sample_age_sum,
    )  # fmt: skip


@devices
def test_a_prefetched_batch_holds_the_rows_of_the_instant_it_was_asked_for(
    make_source: MakeSource, device: torch.device
) -> None:
    world = World()
    source = make_source(world, device=device)
    take(source)
    asked_at = world.rings[0].committed
    newest_seen = 0
    for _ in range(50):
        world.collect(40)
        newest = int(take(source)[..., 0].max())
        assert newest < asked_at
        newest_seen += newest == asked_at - 1
        asked_at = world.rings[0].committed
    assert newest_seen > 0


def test_an_iteration_takes_no_more_than_is_due_and_no_more_than_is_packed(make_source: MakeSource) -> None:
    world = World()
    source = make_source(world, rate_limiter=replace(LIMITER, max_updates=4))
    sizes = []
    for count in (1, 5, 2, 9, 1, 1):
        sizes.append(len(take(source)))
        world.collect(count)
    # due: 1, 1, then 5, of which the slot has 2; then 5 again, of which the next has 4; then 10, 7
    assert sizes == [1, 1, 2, 4, 4, 4]
    assert source.updates == sum(sizes)


@pytest.mark.parametrize("num_slots", [1, 3])
def test_every_batch_is_handed_out_once_and_in_the_order_of_the_draws(make_source: MakeSource, num_slots: int) -> None:
    world = World(capacity=16)  # nothing is written: the draws depend on the sampler's stream alone
    source = make_source(world, num_slots=num_slots)
    got = torch.cat([take(source) for _ in range(20)])
    out = np.empty((20 * 64, LAYOUT.width), dtype=np.float32)
    again = World(capacity=16).sampler()
    for batch in np.split(out, 20):
        again.fill(batch)
    assert torch.equal(got, torch.from_numpy(out).reshape(20, 64, -1)[..., : LAYOUT.next_obs.stop])


class BrokenSampler(Sampler):
    calls = 0

    def fill(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls == 2:
            raise OSError("the replay went away")
        return super().fill(*args, **options)


def test_an_error_of_the_packing_thread_is_raised_on_the_learners(make_source: MakeSource) -> None:
    world = World()
    source = make_source(world, sampler=BrokenSampler(world.rings, np.random.default_rng(0), 0))
    take(source)
    with pytest.raises(OSError, match="the replay went away"):
        source.wait_batch()
    for made in (source, make_source(World())):  # the second one was never used
        made.close()
        made.close()
    assert packers() == []


@devices
def test_the_packers_account_closes(make_source: MakeSource, device: torch.device) -> None:
    world = World()
    source = make_source(world, device=device)
    assert source.packer_account().is_empty
    for _ in range(10):
        take(source)
        world.collect(1)
    account = source.packer_account()
    assert sum(account.phases_ns.values()) == account.wall_ns
    assert account.iterations >= 10
    used = {name for name, ns in account.phases_ns.items() if ns}
    assert {"request_wait", "pack"} <= used
    assert ("copy" in used) == (device.type == "cuda")


@pytest.mark.parametrize(("num_slots", "max_updates"), [(1, 4), (3, 1), (3, 4)])
def test_a_resumed_source_hands_out_the_batches_the_interrupted_one_would_have(
    make_source: MakeSource, num_slots: int, max_updates: int
) -> None:
    options = {"num_slots": num_slots, "rate_limiter": replace(LIMITER, max_updates=max_updates)}
    world = World()
    source = make_source(world, **options)
    for _ in range(6):
        take(source)
        source.release()
        world.collect(1)
    take(source)
    state = json.loads(json.dumps(source.random_state()))  # saved before the collectors are let go
    written, updates = world.rings[0].committed, source.updates
    source.release()
    world.collect(1)
    expected = []
    for _ in range(6):
        expected.append(take(source))
        source.release()
        world.collect(1)

    again = World()
    again.collect(written - 11)
    resumed = make_source(again, sampler=again.sampler(), **options)
    resumed.set_random_state(state)
    resumed.updates = updates
    resumed.release()
    again.collect(1)
    for batches in expected:
        assert torch.equal(take(resumed), batches)
        resumed.release()
        again.collect(1)


@pytest.mark.parametrize("num_slots", [1, 3])
def test_at_a_low_utd_a_resumed_source_draws_no_row_that_is_recycled_before_it_packs(
    make_source: MakeSource, num_slots: int
) -> None:
    """The ring is full, and the collector writes twenty rows between two updates."""
    limiter = RateLimiter.of("alternate", 0.05, 1, band=0, start=LearningStart(1100, 0), total=10**6)
    options = {"num_slots": num_slots, "rate_limiter": limiter}
    guard = 8 + rows_recycled_while_open(limiter, 1, num_slots)

    def made(collected: int) -> tuple[World, PrefetchSource]:
        world = World(capacity=4 * guard + 100)
        for _ in range(collected):
            world.collect(1)
        return world, make_source(world, sampler=world.sampler(guard), **options)

    def iterate(world: World, source: PrefetchSource) -> torch.Tensor:
        rows = take(source)
        source.release()
        world.collect(limiter.chunk)
        return rows

    world, source = made(3_000)
    for _ in range(12):
        iterate(world, source)
    take(source)
    state, updates, written = json.loads(json.dumps(source.random_state())), source.updates, world.rings[0].committed
    source.release()
    world.collect(limiter.chunk)
    expected = [iterate(world, source) for _ in range(2 * num_slots + 2)]

    again, resumed = made(written - 11)
    resumed.set_random_state(state)
    resumed.updates = updates
    resumed.release()
    again.collect(limiter.chunk)
    for rows in expected:
        assert torch.equal(iterate(again, resumed), rows)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_the_device_a_copy_waits_for_the_learner_and_the_learner_for_the_copy() -> None:
    device = torch.device("cuda", 0)
    copy_stream = CopyStream(device, StreamSync(device))
    target = torch.zeros(1 << 20, device=device)
    source = torch.ones(1 << 20, pin_memory=True)
    busy = torch.randn(4096, 4096, device=device)
    for _ in range(50):
        busy = busy @ busy * 1e-3
    seen_before = target.clone()  # queued after the matrix products, before the copy
    copied = copy_stream.copy(target, source, after=copy_stream.learner_mark())
    copy_stream.stall_learner_stream(copied)
    seen_after = target.clone()
    copy_stream.block_until(copied)
    assert copied is not None
    assert copied.query()
    assert (seen_before.sum().item(), seen_after.sum().item()) == (0.0, float(1 << 20))
