"""Demonstrations in the batches of every source: their share, their order, their time, and no age."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from offpolicy.protocols import BatchSource
from offpolicy.replay.demonstrations import Demonstrations
from offpolicy.replay.prefetch_source import PackerTimers, PrefetchSource
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.replay_source import ReplaySource, SourceSpec
from offpolicy.replay.resident_source import ResidentSampler, ResidentSource
from offpolicy.timing.device_timer import DeviceTimer, StreamSync
from offpolicy.timing.ledger import NullLedger
from tests.replay_scene import CPU, NUMBERED, World, devices

LAYOUT = NUMBERED
LIMITER = RateLimiter(Fraction(3, 2), start=10, start_updates=0, lead=0, credit=0, max_updates=5, total=1000)
SPEC = SourceSpec(LAYOUT, LIMITER, batch_size=8, device=CPU, normalize_obs=True, fresh_rings=(0,))
NUM_DEMOS, PER_BATCH = 10, 3
KINDS = ("direct", "prefetch", "resident")
TEN = -1.0 - np.arange(NUM_DEMOS, dtype=np.float32)[:, None].repeat(LAYOUT.width, axis=1)


def new_world() -> World:
    return World(capacity=256, count=12)


def demos(per_batch: int = PER_BATCH, seed: int = 3, rank: int = 0, num_ranks: int = 1) -> Demonstrations:
    """Rows that differ from the replay's by their sign: row i holds -1 - i."""
    return Demonstrations(TEN, per_batch, SPEC.batch_size, "ten rows", seed, rank, num_ranks)


MakeSource = Callable[..., BatchSource]


@pytest.fixture
def make_source() -> Iterator[MakeSource]:
    """`make_source(kind, world)`: a source of that kind, with demonstrations in its batches."""
    made: list[BatchSource] = []

    def make(kind: str, world: World, device: torch.device = CPU) -> BatchSource:
        spec, sampler = replace(SPEC, device=device), world.sampler(demos=demos())
        source: BatchSource
        if kind == "direct":
            source = ReplaySource(spec, sampler, world, world, updates=0)
        elif kind == "prefetch":
            source = PrefetchSource(spec, sampler, world, world, 0, PackerTimers(NullLedger()))
        else:
            resident = ResidentSampler(world.rings, device, 0, DeviceTimer(StreamSync(device)), demos())
            source = ResidentSource(spec, resident, world, world, 0)
        made.append(source)
        return source

    yield make
    for source in made:
        source.close()


def take(source: BatchSource) -> torch.Tensor:
    """A copy of the first numbers of one iteration's rows [U, B]."""
    source.wait_batch()
    return source.sample().cpu()[..., 0].clone()


def taken(source: BatchSource, world: World, iterations: int) -> torch.Tensor:
    """The first numbers of all rows [n, B] of some iterations."""
    blocks = []
    for _ in range(iterations):
        blocks.append(take(source))
        world.collect(2)
    return torch.cat(blocks)


@pytest.mark.parametrize("kind", KINDS)
@devices
def test_every_batch_has_its_share_and_the_demonstrations_go_round(
    kind: str, device: torch.device, make_source: MakeSource
) -> None:
    world = new_world()
    rows = taken(make_source(kind, world, device), world, iterations=12)
    assert len(rows) > 20
    assert rows.shape[1] == SPEC.batch_size
    assert ((rows < 0).sum(dim=1) == PER_BATCH).all()
    order = (-1 - rows[rows < 0]).int().tolist()
    assert order == demos().take(len(order) // PER_BATCH).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_only_rows_of_the_replay_are_counted_have_an_age_and_are_shown_to_the_normaliser(
    kind: str, make_source: MakeSource
) -> None:
    world = new_world()
    source, age, count = make_source(kind, world), 0.0, 0
    for _ in range(6):
        rows = take(source)
        replayed = rows[rows >= 0]
        age, count = age + float((world.env_steps - replayed).sum()), count + len(replayed)
        world.collect(2)
    assert (source.samples, source.sample_age_sum) == (count, age)
    source = make_source(kind, world)
    source.wait_batch()
    fresh = source.to_device(source.sample()).fresh_obs
    assert fresh is not None
    assert fresh[:, 0].tolist() == list(range(24))


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_source_goes_on_in_the_middle_of_a_cycle(kind: str, make_source: MakeSource) -> None:
    for before in (1, 2, 5):
        world = new_world()
        whole = make_source(kind, world)
        taken(whole, world, before)
        state = json.loads(json.dumps(whole.random_state()))
        again = make_source(kind, world)
        again.updates = whole.updates  # type: ignore[attr-defined]  # every source of a replay has them
        again.set_random_state(state)
        for _ in range(6):
            assert torch.equal(take(again), take(whole))
            world.collect(2)


def test_without_demonstrations_no_bit_changes(make_source: MakeSource) -> None:
    """The stream of the replay is its own: what is mixed in takes no random number from it."""
    out = np.empty((3 * 5, LAYOUT.width), np.float32)
    new_world().sampler().fill(out)
    rows = take(make_source("direct", new_world()))
    assert rows[rows >= 0].tolist() == out[:, 0].tolist()


def test_every_cycle_has_every_row_once_and_an_order_of_its_own() -> None:
    whole = demos(4)
    found = np.concatenate([whole.take(1) for _ in range(10)]).tolist()
    cycles = [found[start : start + 10] for start in range(0, 40, 10)]
    assert all(sorted(cycle) == list(range(10)) for cycle in cycles)
    assert len({tuple(cycle) for cycle in cycles}) == 4


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_take_different_rows_and_all_of_them_together(num_ranks: int) -> None:
    ranks = [demos(4, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    found = np.stack([rank.take(10) for rank in ranks], axis=1).ravel()
    cycles = [found[start : start + 10].tolist() for start in range(0, 40 * num_ranks, 10)]
    assert all(sorted(cycle) == list(range(10)) for cycle in cycles)
