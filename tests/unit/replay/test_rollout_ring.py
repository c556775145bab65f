"""The ring of rollouts: a slot has one owner at a time, so that none is lost, taken twice or torn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from offpolicy.replay.rollout_ring import RolloutLayout, RolloutRing, RolloutStamp
from tests.interleaving import deaths

SMALL = RolloutLayout(obs_dim=1, action_dim=1, length=2, num_envs=2)


def make_ring(num_slots: int) -> RolloutRing:
    return RolloutRing(memoryview(bytearray(RolloutRing.nbytes(SMALL, num_slots))), SMALL, num_slots)


def stamp(number: int) -> RolloutStamp:
    return RolloutStamp(number, version=10 * number, num_steps=100 + number)


def put(ring: RolloutRing, number: int) -> bool:
    ring.reserve()[:] = number
    return ring.commit(stamp(number))


def take(ring: RolloutRing) -> tuple[RolloutStamp, list[float]]:
    """The stamp of the oldest rollout and the distinct numbers of its rows."""
    rows = np.full(ring.layout.shape, np.nan, dtype=np.float32)
    return ring.take(rows), np.unique(rows).tolist()


def test_rollouts_are_taken_in_their_order_with_their_stamps() -> None:
    ring = make_ring(2)
    for number in range(7):
        assert put(ring, number)
        assert ring.head == stamp(number)
        assert take(ring) == (stamp(number), [number])
    assert (ring.committed, ring.taken, ring.unread, ring.dropped) == (7, 7, 0, 0)


def test_a_ring_is_full_when_as_many_rollouts_wait_as_it_has_slots() -> None:
    ring = make_ring(2)
    seen = []
    for number in range(2):
        seen.append((ring.unread, ring.is_full))
        put(ring, number)
    seen.append((ring.unread, ring.is_full))
    take(ring)
    assert [*seen, (ring.unread, ring.is_full)] == [(0, False), (1, False), (2, True), (1, False)]
    put(ring, 2)
    ring.skip()
    assert (ring.unread, ring.is_full, ring.head) == (1, False, stamp(2))


def test_without_a_free_slot_at_its_end_a_rollout_is_thrown_away_and_counted() -> None:
    ring = make_ring(1)
    put(ring, 0)
    assert not put(ring, 1)
    assert (ring.dropped, ring.committed, ring.unread) == (1, 1, 1)
    assert take(ring) == (stamp(0), [0])
    assert put(ring, 2)
    assert take(ring) == (stamp(2), [2])


def test_a_rollout_begun_without_a_free_slot_is_handed_over_if_there_is_one_at_its_end() -> None:
    ring = make_ring(1)
    put(ring, 0)
    ring.reserve()[:] = 1.0
    assert take(ring) == (stamp(0), [0])
    assert ring.commit(stamp(1))
    assert take(ring) == (stamp(1), [1])
    assert ring.dropped == 0


def writer_steps(ring: RolloutRing, count: int, begun: set[int]) -> Iterator[bool]:
    """Writes rollouts 0, 1, ...: each step says whether it could be done. A rollout is reserved, half full, whole."""
    for number in range(count):
        while ring.is_full:
            yield False
        rows = ring.reserve()
        begun.add(rows.ctypes.data)
        rows[:1] = number
        yield True
        rows[1:] = number
        yield True
        begun.clear()
        ring.commit(stamp(number))
        yield True


def reader_steps(ring: RolloutRing, count: int, taken: list[tuple[RolloutStamp, list[float]]]) -> Iterator[bool]:
    for _ in range(count):
        while not ring.unread:
            yield False
        taken.append(take(ring))
        yield True


def clashes(order: tuple[int, ...], num_slots: int, count: int) -> int:
    """Runs the steps of both sides in this order; how often a slot was written that waits, or came out wrong."""
    ring, begun, taken = make_ring(num_slots), set[int](), list[tuple[RolloutStamp, list[float]]]()
    sides = (writer_steps(ring, count, begun), reader_steps(ring, count, taken))
    found = 0
    for side in order + (0, 1) * 4 * count:  # then both continue to their ends
        next(sides[side], None)
        waiting = {rows.ctypes.data for _, rows in ring.waiting()}
        found += len(waiting & begun)
    return found + (taken != [(stamp(number), [number]) for number in range(count)])


@pytest.mark.parametrize("num_slots", [1, 2])
def test_no_order_of_steps_reserves_a_slot_that_waits_or_loses_a_rollout(num_slots: int) -> None:
    orders = itertools.product((0, 1), repeat=10)
    assert sum(clashes(order, num_slots, count=4) for order in orders) == 0


@pytest.mark.promise("no-torn-row")
def test_a_rollout_is_counted_if_and_only_if_it_was_handed_over() -> None:
    ends = set()
    for run in deaths():
        ring = make_ring(2)
        ring.reserve()[:] = 1
        ring.commit(stamp(1))
        ring.reserve()[:] = 2
        run(partial(ring.commit, stamp(2)))
        ends.add(ring.unread)
        assert [take(ring)[1] for _ in range(ring.unread)] == [[1.0], [2.0]][: max(ends)]
    assert ends == {1, 2}
