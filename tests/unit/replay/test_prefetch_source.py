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
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import PackerPhase
from tests.replay_scene import CPU, NUMBERED, World, devices

LAYOUT = NUMBERED
LIMITER = RateLimiter(Fraction(1), start=10, start_updates=0, lead=0, credit=0, max_updates=1, total=1000)
SOURCE = SourceSpec(LAYOUT, LIMITER, batch_size=64, device=CPU, normalize_obs=True, fresh_rings=(0,))


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


LOW_UTD = RateLimiter.of("alternate", 0.05, 1, band=0, start=LearningStart(1100, 0), total=10**6)


@pytest.mark.parametrize(
    ("num_slots", "limiter"),
    [
        (1, replace(LIMITER, max_updates=4)),
        (3, LIMITER),
        (3, replace(LIMITER, max_updates=4)),
        (1, LOW_UTD),
        (3, LOW_UTD),
    ],
)
def test_a_resumed_source_hands_out_the_batches_the_interrupted_one_would_have(
    make_source: MakeSource, num_slots: int, limiter: RateLimiter
) -> None:
    """At a low UTD the ring is full and twenty rows are written between two updates: none that is drawn is recycled."""
    is_low = limiter is LOW_UTD
    guard = 8 + rows_recycled_while_open(limiter, 1, num_slots) if is_low else 0

    def made(collected: int) -> tuple[World, PrefetchSource]:
        world = World(capacity=4 * guard + 100 if is_low else 4096)
        world.collect(collected)
        return world, make_source(world, sampler=world.sampler(guard), num_slots=num_slots, rate_limiter=limiter)

    def let_go(world: World, source: PrefetchSource) -> None:
        source.release()
        world.collect(limiter.chunk)

    def iterate(world: World, source: PrefetchSource) -> torch.Tensor:
        rows = take(source)
        let_go(world, source)
        return rows

    world, source = made(3_000 if is_low else 0)
    for _ in range(6 + 6 * is_low):
        iterate(world, source)
    take(source)
    state = json.loads(json.dumps(source.random_state()))  # saved before the collectors are let go
    again, resumed = made(world.rings[0].committed - 11)
    resumed.set_random_state(state)
    resumed.updates = source.updates
    let_go(world, source)
    let_go(again, resumed)
    for _ in range(2 * num_slots + 2):
        assert torch.equal(iterate(again, resumed), iterate(world, source))
