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

from offpolicy.errors import ConfigError, HangError
from offpolicy.replay import prefetch_source as prefetch
from offpolicy.replay.prefetch_source import Packer, PrefetchSource, PrefetchSpec, rows_recycled_while_open
from offpolicy.replay.rate_limiter import LearningStart, RateLimiter
from offpolicy.replay.replay_source import ReplaySource, SourceSpec
from offpolicy.replay.ring import Ring
from offpolicy.replay.row_layout import RowLayout
from offpolicy.replay.sampler import UniformSampler
from offpolicy.replay.staging import Slot
from offpolicy.seeding import generator_state
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import PackerPhase
from offpolicy.timing.time_account import NullLedger
from tests.fakes import fill_from

LAYOUT = RowLayout(obs_dim=2, action_dim=1)
CPU = torch.device("cpu")
LIMITER = RateLimiter(Fraction(1), start=10, start_updates=0, lead=0, credit=0, max_updates=1, total=1000)
SOURCE = SourceSpec(LAYOUT, LIMITER, batch_size=64, device=CPU, normalize_obs=True, fresh_rings=(0,))


def spec_of(
    num_slots: int = 2, prefetch: bool = True, newest: bool = False, *, is_crowded: bool = False, **source: Any
) -> PrefetchSpec:
    return PrefetchSpec(replace(SOURCE, **source), num_slots, prefetch, newest, lambda: is_crowded)


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
        nbytes = Ring.nbytes(capacity, LAYOUT.width, 4)
        self.rings = [Ring(memoryview(bytearray(nbytes)), LAYOUT.width, np.float32) for _ in range(num_rings)]
        self.landed = threading.Condition()
        self.is_waited_for = threading.Event()
        self.collect(11)

    @property
    def env_steps(self) -> int:
        return sum(ring.committed for ring in self.rings)

    def collect(self, count: int) -> None:
        with self.landed:
            for ring in self.rings:
                rows = np.arange(ring.committed, ring.committed + count, dtype=np.float32)
                ring.append(rows[:, None].repeat(LAYOUT.width, axis=1))
            self.landed.notify_all()

    def wait_for(self, env_steps: int) -> None:
        with self.landed:
            if self.env_steps < env_steps:
                self.is_waited_for.set()
            self.landed.wait_for(lambda: self.env_steps >= env_steps)

    def grant(self, env_steps: int) -> None: ...

    def sampler(self) -> UniformSampler:
        return UniformSampler(self.rings, np.random.default_rng(0), guard=0)


MakeSource = Callable[..., PrefetchSource]


@pytest.fixture
def make_source() -> Iterator[MakeSource]:
    made: list[PrefetchSource] = []

    def make(world: World, *, sampler: UniformSampler | None = None, **spec: Any) -> PrefetchSource:
        plan = spec_of(**spec)
        packer = Packer(sampler or world.sampler(), world, plan.source.device, Ledger(PackerPhase))
        source = PrefetchSource(plan, world.rings, packer, world, world, updates=0)
        made.append(source)
        return source

    yield make
    for source in made:
        source.close()


def take(source: PrefetchSource) -> torch.Tensor:
    """A copy of one iteration's rows [U, B, W]."""
    source.wait_batch()
    rows = source.sample()
    torch.stack([batch.reward for batch in source.to_device(rows).updates])  # what the learner would touch
    return rows.cpu().clone()


def wait_until_packed(source: PrefetchSource) -> None:
    """Return when the packer has done all it was asked for."""
    with source._packer._changed:
        assert source._packer._changed.wait_for(lambda: not source._packer._todo, timeout=10)


@devices
def test_with_one_slot_and_no_prefetch_it_equals_the_direct_source_bit_for_bit(
    make_source: MakeSource, device: torch.device
) -> None:
    world, rate_limiter = World(num_rings=2, capacity=64), replace(LIMITER, utd=Fraction(3, 2), max_updates=5)
    ahead = make_source(world, num_slots=1, prefetch=False, rate_limiter=rate_limiter, device=device)
    spec = replace(SOURCE, rate_limiter=rate_limiter, device=device)
    direct = ReplaySource(spec, world.rings, world.sampler(), world, world, updates=0)
    sizes = set()
    for _ in range(50):
        ahead.wait_batch()
        got, expected = ahead.to_device(ahead.sample()), direct.to_device(direct.sample())
        sizes.add(len(got.updates))
        assert got.fresh_obs is not None
        assert expected.fresh_obs is not None
        assert torch.equal(got.fresh_obs, expected.fresh_obs)
        assert len(got.updates) == len(expected.updates)
        for one, other in zip(got.updates, expected.updates, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        world.collect(1)
    assert ahead.random_state() == {**direct.random_state(), "requests": []}
    assert (ahead.updates, ahead.samples, ahead.sample_age_sum) == (
        direct.updates, direct.samples, direct.sample_age_sum,
    )  # fmt: skip
    assert len(sizes) > 1


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
        wait_until_packed(source)
        newest = int(take(source).max())
        assert newest < asked_at
        newest_seen += newest == asked_at - 1
        asked_at = world.rings[0].committed
    assert newest_seen > 0


@pytest.mark.parametrize(("num_slots", "is_crowded"), [(2, False), (3, False), (3, True), (4, True)])
def test_the_newest_rows_can_always_be_drawn_where_they_are_demanded(
    make_source: MakeSource, num_slots: int, is_crowded: bool
) -> None:
    """With three slots and packing behind the grant, requests of an iteration before were used: a row was missing."""
    world = World()
    source = make_source(world, newest=True, num_slots=num_slots, is_crowded=is_crowded)
    for iteration in range(50):
        take(source)
        request = source._in_use.request
        assert request.bounds is not None
        assert request.bounds.last == (11 + iteration,)
        source.release()
        (asked_for,) = source._packer._todo  # and not drawn before the row is there
        assert asked_for.request.env_steps == 12 + iteration
        world.collect(1)


def test_where_the_newest_rows_are_demanded_each_iteration_gets_a_slot_of_its_own(make_source: MakeSource) -> None:
    world = World()
    rate_limiter = replace(LIMITER, max_updates=4)
    source = make_source(world, newest=True, rate_limiter=rate_limiter, num_slots=3)
    sizes, asked_at = [], []
    for count in (3, 2, 4, 1):
        sizes.append(len(take(source)))  # what else was packed is dropped
        assert source._in_use.request.bounds is not None
        asked_at += source._in_use.request.bounds.last
        world.collect(count)
    assert sizes == [1, 3, 2, 4]
    assert asked_at == [11, 14, 16, 20]


def test_a_slot_is_not_touched_while_the_learner_uses_it(make_source: MakeSource) -> None:
    world = World()
    source = make_source(world)
    for _ in range(30):
        source.wait_batch()
        rows = source.sample()
        before = rows.clone()
        world.collect(1)
        wait_until_packed(source)
        assert torch.equal(rows, before)


def test_the_next_batches_are_asked_for_as_soon_as_a_slot_is_taken_into_use(make_source: MakeSource) -> None:
    world = World()
    source = make_source(world)
    take(source)
    wait_until_packed(source)
    assert len(source._packer._packed) == 1


def test_where_packing_takes_a_core_from_the_update_it_begins_behind_the_grant(make_source: MakeSource) -> None:
    world, asked = World(), list[int]()
    source = make_source(world, is_crowded=True)
    take(source)
    assert source._packer.is_idle

    def grant(env_steps: int) -> None:
        asked.append(len(source._requests))
        world.collect(5)

    world.grant = grant  # type: ignore[method-assign]
    source.release()
    wait_until_packed(source)
    assert asked == [1]  # the request is made before the collectors are let go, and submitted then
    assert int(take(source).max()) < 11
    source.release()
    source.release()  # nothing is asked for twice
    assert len(source._free) == 0


def test_without_prefetch_nothing_is_asked_for_before_it_is_needed(make_source: MakeSource) -> None:
    source = make_source(World(), prefetch=False, num_slots=2)
    take(source)
    assert source._packer.is_idle


def test_one_slot_is_refilled_only_when_it_is_used_up(make_source: MakeSource) -> None:
    world = World()
    source = make_source(world, num_slots=1)
    for count in range(11, 16):
        assert int(take(source).max()) < count
        assert source._packer.is_idle
        assert source._in_use.request.bounds is not None
        assert source._in_use.request.bounds.last == (count,)  # asked for when it was needed
        world.collect(1)


def test_batches_left_in_a_slot_are_used_by_the_next_iterations(make_source: MakeSource) -> None:
    world = World()
    source = make_source(world, rate_limiter=replace(LIMITER, max_updates=4))
    asked_at, iterations = [], []
    for _ in range(9):
        iterations.append(take(source))
        assert source._in_use.request.bounds is not None
        asked_at += source._in_use.request.bounds.last
        world.collect(1)
    assert [len(rows) for rows in iterations] == [1] * 9
    assert asked_at == [11] * 8 + [15]  # the second slot was asked for with the first row, the third with the fifth
    out = np.empty((8 * 64, LAYOUT.width), dtype=np.float32)
    World().sampler().fill(out)
    assert torch.equal(torch.cat(iterations[:8]), torch.from_numpy(out).reshape(8, 64, -1))


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


@pytest.mark.parametrize("num_slots", [1, 2, 3, 5])
def test_every_batch_is_handed_out_once_and_in_the_order_of_the_draws(make_source: MakeSource, num_slots: int) -> None:
    world = World(capacity=16)  # nothing is written: the draws depend on the sampler's stream alone
    source = make_source(world, num_slots=num_slots)
    got = torch.cat([take(source) for _ in range(20)])
    out = np.empty((20 * 64, LAYOUT.width), dtype=np.float32)
    World(capacity=16).sampler().fill(out)
    assert torch.equal(got, torch.from_numpy(out).reshape(20, 64, -1))


def test_on_the_cpu_batches_are_views_of_the_slot(make_source: MakeSource) -> None:
    source = make_source(World())
    source.wait_batch()
    rows = source.sample()
    assert rows.data_ptr() in [block.data_ptr() for block in source._staging]
    assert source.to_device(rows).updates[0].obs.data_ptr() == rows.data_ptr()


def test_the_age_is_measured_when_a_batch_is_handed_out(make_source: MakeSource) -> None:
    world = World()
    source = make_source(world)
    take(source)
    wait_until_packed(source)
    before = source.sample_age_sum
    world.collect(100)
    drawn = take(source)[..., 0]
    assert source.sample_age_sum - before == float((111 - drawn).sum())
    assert source.samples == 128


class BrokenSampler(UniformSampler):
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
    source.close()
    assert not source._packer._thread.is_alive()


def test_closing_ends_and_joins_the_thread(make_source: MakeSource) -> None:
    used, unused = make_source(World()), make_source(World())
    take(used)
    threads = [used._packer._thread, unused._packer._thread]
    assert [thread.name for thread in threads] == ["packer", "packer"]
    for source in (used, unused):
        source.close()
        source.close()
    assert not any(thread.is_alive() for thread in threads)


def test_closing_does_not_wait_for_rows_that_will_never_come(
    make_source: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "CLOSE_S", 0.05)
    world = World()
    source = make_source(world, newest=True)
    take(source)
    assert world.is_waited_for.wait(10)
    source.close()
    assert source._packer._thread.is_alive()
    world.collect(1)  # lets the thread go
    source._packer._thread.join(10)
    assert not source._packer._thread.is_alive()


def test_a_gate_that_fails_while_rows_are_waited_for_leaves_no_excuse_to_hang(make_source: MakeSource) -> None:
    world = World()
    source = make_source(world, newest=True)

    def fail(env_steps: int) -> None:
        raise OSError("the gate is gone")

    world.wait_for = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="the gate is gone"):
        source.wait_batch()
    assert not source._packer._is_waiting_for_rows


@pytest.mark.parametrize("newest", [False, True])  # True: after it has waited for rows
def test_a_thread_that_hangs_is_named(make_source: MakeSource, monkeypatch: pytest.MonkeyPatch, newest: bool) -> None:
    monkeypatch.setattr(prefetch, "CLOSE_S", 0.05)
    world, begun, go_on = World(), threading.Event(), threading.Event()

    class Hanging(UniformSampler):
        def fill(self, *args: Any, **options: Any) -> Any:
            begun.set()
            go_on.wait()
            return super().fill(*args, **options)

    source = make_source(world, sampler=Hanging(world.rings, np.random.default_rng(0), 0), newest=newest)
    source._submit()
    assert begun.wait(10)
    with pytest.raises(HangError, match=r"packing thread did not end within 0\.05 s"):
        source.close()
    go_on.set()
    source._packer._thread.join(10)


@devices
def test_the_packers_account_closes(make_source: MakeSource, device: torch.device) -> None:
    world = World()
    source = make_source(world, newest=True, device=device)
    assert source.packer_account() is None
    for _ in range(10):
        take(source)
        world.collect(1)
    wait_until_packed(source)
    account = source.packer_account()
    assert account is not None
    assert sum(account.phases_ns.values()) == account.wall_ns
    assert account.iterations == 11
    used = {name for name, ns in account.phases_ns.items() if ns}
    assert {"request_wait", "rows_wait", "pack"} <= used
    assert ("copy" in used) == (device.type == "cuda")


def test_without_timing_there_is_no_account() -> None:
    world = World()
    packer = Packer(world.sampler(), world, CPU, NullLedger())
    source = PrefetchSource(spec_of(), world.rings, packer, world, world, updates=0)
    take(source)
    assert source.packer_account() is None
    source.close()


class Track:
    """A trace track that records its calls."""

    def __init__(self) -> None:
        self.tape: list[str] = []
        self.uses = 0

    def enter_thread(self) -> None:
        self.tape.append("begin")

    def learner_mark(self) -> str:
        self.uses += 1
        return f"use {self.uses}"

    def copy(self, target: torch.Tensor, source: torch.Tensor, after: str | None) -> str:
        self.tape.append(f"copy after {after}")
        target.copy_(source)
        return "copy"

    def block_until(self, mark: str | None) -> None:
        self.tape.append(f"wait for {mark}")


def test_a_slot_is_shown_once_its_copy_is_done_and_copied_once_its_last_use_has_ended(
    make_source: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_stream = Track()
    monkeypatch.setattr(prefetch, "CopyStream", lambda *args: copy_stream)
    source = make_source(World(), num_slots=2)
    assert [slot.last_use for slot in (source._in_use, *source._free)] == ["use 1", "use 2"]
    staging = source._staging[1]
    source._free[0] = staged = Slot(staging, torch.zeros_like(staging))  # as on a device: the learner sees copies only
    staged.last_use = "use 2"  # type: ignore[assignment]
    rows = take(source)
    assert copy_stream.tape == ["begin", "wait for use 2", "copy after use 2", "wait for copy"]
    assert torch.equal(rows, staging)
    take(source)
    assert staged.last_use == "use 4"  # marked when the learner asked for the next batch; use 3 was that of the other


@pytest.mark.parametrize("num_slots", [1, 2, 3])
@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("max_updates", [1, 4])
@pytest.mark.parametrize("is_crowded", [False, True])
def test_a_resumed_source_hands_out_the_batches_the_interrupted_one_would_have(
    make_source: MakeSource, *, num_slots: int, newest: bool, max_updates: int, is_crowded: bool
) -> None:
    limiter = replace(LIMITER, max_updates=max_updates)
    options = {"num_slots": num_slots, "newest": newest, "rate_limiter": limiter, "is_crowded": is_crowded}
    world = World()
    source = make_source(world, **options)
    for _ in range(6):
        take(source)
        source.release()
        world.collect(1)
    take(source)
    state = json.loads(json.dumps(source.random_state()))  # saved before the collectors are let go
    rows, updates = world.rings[0].read_range(0, 17), source.updates
    source.release()
    world.collect(1)
    expected = []
    for _ in range(6):
        expected.append(take(source))
        source.release()
        world.collect(1)

    again = World()
    fill_from(again.rings[0], 0, rows[:17])
    resumed = make_source(again, sampler=again.sampler(), **options)
    resumed.set_random_state(state)
    resumed.updates = updates
    resumed.release()
    again.collect(1)
    for batches in expected:
        assert torch.equal(take(resumed), batches)
        resumed.release()
        again.collect(1)


@pytest.mark.parametrize("num_slots", [1, 2, 12])
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
        sampler = UniformSampler(world.rings, np.random.default_rng(0), guard)
        return world, make_source(world, sampler=sampler, **options)

    def iterate(world: World, source: PrefetchSource) -> torch.Tensor:
        rows = take(source)
        wait_until_packed(source)
        source.release()
        world.collect(limiter.chunk)
        return rows

    world, source = made(3_000)
    for _ in range(12):
        iterate(world, source)
    take(source)
    wait_until_packed(source)
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


def test_a_rank_that_releases_after_the_leader_asked_before_its_grant(make_source: MakeSource) -> None:
    """Where cores are few, packing begins behind the release; the rows are those that all ranks have agreed on."""
    world = World()
    source = make_source(world, is_crowded=True)
    take(source)
    world.collect(5)  # as the leader's grant lets the collector do
    source.release()
    assert int(take(source).max()) < 11


def test_requests_that_are_not_submitted_yet_are_saved(make_source: MakeSource) -> None:
    world = World()
    source = make_source(world)
    take(source)
    state = source.random_state()
    resumed = make_source(world)
    resumed.set_random_state(state)
    assert resumed.random_state()["requests"] == state["requests"]


def test_the_saved_stream_is_that_of_the_first_batch_still_to_come(make_source: MakeSource) -> None:
    world, third = World(), threading.Event()

    class HeldUp(UniformSampler):
        calls = 0

        def fill(self, *args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == 3:
                third.wait()
            return super().fill(*args, **options)

    source = make_source(world, num_slots=3, sampler=HeldUp(world.rings, np.random.default_rng(0), 0))
    take(source)
    with source._packer._changed:
        assert source._packer._changed.wait_for(lambda: source._packer._packed, timeout=10)
    state = source.random_state()  # one slot is packed, the next one is being packed
    third.set()
    expected = world.sampler()
    expected.fill(np.empty((64, LAYOUT.width), dtype=np.float32))
    assert {**generator_state(expected.rng), "requests": state["requests"]} == state
    assert len(state["requests"]) == 2


def test_requests_for_rows_that_a_resumed_run_does_not_have_are_forgotten(make_source: MakeSource) -> None:
    world = World()
    world.collect(500)
    source = make_source(world)
    take(source)
    resumed = make_source(World())
    resumed.set_random_state(source.random_state())
    assert int(take(resumed).max()) == 10


def test_a_source_describes_itself_in_a_line(make_source: MakeSource) -> None:
    assert make_source(World(), batch_size=256).describe() == "replay source: prefetch, 2 slots of 12.3 KB on the host"


def test_refused_page_locked_memory_is_named_with_its_size_and_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*shape: Any, **options: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "empty", refuse)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    world, plan = World(), spec_of(device=torch.device("cuda", 0))
    packer = Packer(world.sampler(), world, plan.source.device, Ledger(PackerPhase))
    with pytest.raises(ConfigError) as refused:
        PrefetchSource(plan, world.rings, packer, world, world, updates=0)
    assert str(refused.value) == (
        "replay.source=prefetch: the host refuses 6.14 KB of page-locked memory; lower replay.slots or"
        " algo.batch_size, or use replay.source=direct (CUDA error: out of memory)"
    )
    packer.close()
