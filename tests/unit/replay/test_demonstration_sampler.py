"""Demonstrations in the batches of every source: their share, their order, their time, and no age."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from offpolicy.protocols import StatefulBatchSource
from offpolicy.replay.demonstration_sampler import DemoShare, EndlessRows, MixedSampler, ResidentDemos
from offpolicy.replay.prefetch_source import Packer, PrefetchSource
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.replay_source import ReplaySource, SourceSpec
from offpolicy.replay.resident_source import ResidentSampler, ResidentSource
from offpolicy.replay.ring import Ring
from offpolicy.replay.row_layout import RowLayout
from offpolicy.replay.sampler import UniformSampler
from offpolicy.timing.device_timer import DeviceTimer, StreamSync
from offpolicy.timing.ledger import NullLedger
from offpolicy.types import Batches

LAYOUT = RowLayout(obs_dim=2, action_dim=1)
CPU = torch.device("cpu")
LIMITER = RateLimiter(Fraction(3, 2), start=10, start_updates=0, lead=0, credit=0, max_updates=5, total=1000)
SPEC = SourceSpec(LAYOUT, LIMITER, batch_size=8, device=CPU, normalize_obs=True, fresh_rings=(0,))
NUM_DEMOS, PER_BATCH = 10, 3
KINDS = ("direct", "prefetch", "resident")

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
    """A ring whose rows encode their index; the gate and the agreed env steps."""

    def __init__(self) -> None:
        self.ring = Ring(memoryview(bytearray(Ring.nbytes(256, LAYOUT.width, 4))), LAYOUT.width, np.float32)
        self.collect(12)

    @property
    def env_steps(self) -> int:
        return self.ring.committed

    def collect(self, count: int) -> None:
        rows = np.arange(self.ring.committed, self.ring.committed + count, dtype=np.float32)
        self.ring.append(rows[:, None].repeat(LAYOUT.width, axis=1))

    def wait_for(self, env_steps: int) -> None: ...

    def grant(self, env_steps: int) -> None: ...


def demos() -> DemoShare:
    """Rows that differ from the replay's by their sign: row i holds -1 - i."""
    rows = -1.0 - np.arange(NUM_DEMOS, dtype=np.float32)[:, None].repeat(LAYOUT.width, axis=1)
    return DemoShare(EndlessRows(rows, seed=3), PER_BATCH, SPEC.batch_size, "ten rows")


MakeSource = Callable[..., StatefulBatchSource[Batches]]


@pytest.fixture
def make_source() -> Iterator[MakeSource]:
    """`make_source(kind, world, share)`: a source of that kind, with demonstrations in its batches if there are any."""
    made: list[StatefulBatchSource[Batches]] = []

    def make(
        kind: str, world: World, share: DemoShare | None, device: torch.device = CPU
    ) -> StatefulBatchSource[Batches]:
        rings, spec = (world.ring,), replace(SPEC, device=device)
        uniform = UniformSampler(rings, np.random.default_rng(0), guard=0)
        sampler = uniform if share is None else MixedSampler(uniform, share)
        source: StatefulBatchSource[Batches]
        if kind == "direct":
            source = ReplaySource(spec, rings, sampler, world, world, updates=0)
        elif kind == "prefetch":
            packer = Packer(sampler, device, NullLedger())
            source = PrefetchSource(spec, rings, packer, world, world, updates=0)
        else:
            device_sync = StreamSync(device)
            mixed = None if share is None else ResidentDemos(share, LIMITER.max_updates, device, device_sync)
            resident = ResidentSampler(rings, device, 0, DeviceTimer(device_sync))
            source = ResidentSource(spec, resident, world, world, 0, mixed)
        made.append(source)
        return source

    yield make
    for source in made:
        source.close()


def take(source: StatefulBatchSource[Batches]) -> torch.Tensor:
    """A copy of one iteration's rows [U, B, W]; each must be whole."""
    source.wait_batch()
    rows = source.sample().cpu().clone()
    assert (rows == rows[..., :1]).all()
    return rows


def taken(source: StatefulBatchSource[Batches], world: World, iterations: int) -> torch.Tensor:
    """The first numbers of all rows [n, B] of some iterations."""
    blocks = []
    for _ in range(iterations):
        blocks.append(take(source)[..., 0])
        world.collect(2)
    return torch.cat(blocks)


@pytest.mark.parametrize("kind", KINDS)
@devices
def test_every_batch_has_its_share_and_the_demonstrations_go_round(
    kind: str, device: torch.device, make_source: MakeSource
) -> None:
    world = World()
    rows = taken(make_source(kind, world, demos(), device), world, iterations=12)
    assert len(rows) > 20
    assert rows.shape[1] == SPEC.batch_size
    assert ((rows < 0).sum(dim=1) == PER_BATCH).all()
    order = (-1 - rows[rows < 0]).int().tolist()
    expected = demos().rows.take(len(order)).tolist()
    assert order == expected


@pytest.mark.parametrize("kind", KINDS)
def test_only_rows_of_the_replay_have_an_age_and_are_counted(kind: str, make_source: MakeSource) -> None:
    world = World()
    source, age, count = make_source(kind, world, demos()), 0.0, 0
    for _ in range(6):
        rows = take(source)[..., 0]
        replayed = rows[rows >= 0]
        age, count = age + float((world.ring.committed - replayed).sum()), count + len(replayed)
        world.collect(2)
    assert (source.samples, source.sample_age_sum) == (count, age)


@pytest.mark.parametrize("kind", KINDS)
def test_the_normaliser_is_shown_collected_observations_only(kind: str, make_source: MakeSource) -> None:
    world = World()
    source = make_source(kind, world, demos())
    source.wait_batch()
    fresh = source.to_device(source.sample()).fresh_obs
    assert fresh is not None
    assert fresh[:, 0].tolist() == list(range(12))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [1, 2, 5])
def test_a_new_source_goes_on_in_the_middle_of_a_cycle(kind: str, before: int, make_source: MakeSource) -> None:
    world, share = World(), demos()
    whole = make_source(kind, world, share)
    taken(whole, world, before)
    state = json.loads(json.dumps(whole.random_state()))
    again = make_source(kind, world, demos())
    again.updates = whole.updates  # type: ignore[attr-defined]  # every source of a replay has them
    again.set_random_state(state)
    for _ in range(6):
        assert torch.equal(take(again), take(whole))
        world.collect(2)


def test_without_demonstrations_no_bit_changes(make_source: MakeSource) -> None:
    """The stream of the replay is its own: what is mixed in takes no random number from it."""
    mixed, plain = World(), World()
    rng = np.random.default_rng(0)
    out = np.empty((3 * 5, LAYOUT.width), np.float32)
    UniformSampler((plain.ring,), rng, guard=0).fill(out)
    rows = take(make_source("direct", mixed, demos()))[..., 0]
    assert rows[rows >= 0].tolist() == out[:, 0].tolist()


TEN = np.arange(10, dtype=np.float32)[:, None]


def endless(seed: int = 0, rank: int = 0, num_ranks: int = 1, rows: np.ndarray = TEN) -> EndlessRows:
    return EndlessRows(rows, seed, rank, num_ranks)


def rows_taken(source: EndlessRows, batches: int, batch: int = 4) -> list[int]:
    return np.concatenate([source.take(batch) for _ in range(batches)]).tolist()


def test_every_cycle_has_every_row_once_and_an_order_of_its_own() -> None:
    found = rows_taken(endless(), batches=10)
    cycles = [found[start : start + 10] for start in range(0, 40, 10)]
    assert all(sorted(cycle) == list(range(10)) for cycle in cycles)
    assert len({tuple(cycle) for cycle in cycles}) == 4


@pytest.mark.parametrize("before", [0, 1, 2, 3, 7])
def test_it_goes_on_from_its_state_in_the_middle_of_a_cycle(before: int) -> None:
    whole = endless()
    rows_taken(whole, before) if before else None
    state = json.loads(json.dumps(whole.state()))
    again = endless()
    again.set_state(state)
    assert rows_taken(again, 8) == rows_taken(whole, 8)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_take_different_rows_and_all_of_them_together(num_ranks: int) -> None:
    ranks = [endless(rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    found = np.stack([rank.take(40) for rank in ranks], axis=1).ravel()
    cycles = [found[start : start + 10].tolist() for start in range(0, 40 * num_ranks, 10)]
    assert all(sorted(cycle) == list(range(10)) for cycle in cycles)


def test_an_empty_set_is_refused_when_it_is_made() -> None:
    with pytest.raises(ValueError, match="no rows"):
        endless(rows=TEN[:0])
