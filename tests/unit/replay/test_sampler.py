"""Sampling from the union of rings: only intact rows, uniformly, reproducibly, with their age."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.sampler import Draw, Sampler
from tests.interleaving import interruptions
from tests.replay_scene import NUMBERED, Scene, append, numbered_ring, numbers_of


def sampler(*rings: ReplayRing, seed: int = 0, guard: int = 0) -> Sampler:
    return Sampler(rings, np.random.default_rng(seed), guard)


def drawn(source: Sampler, count: int, **options: Any) -> list[int]:
    out = np.empty((count, NUMBERED.width), dtype=np.float32)
    source.fill(out, **options)
    return numbers_of(out).tolist()


def test_every_committed_row_is_drawn_and_no_other() -> None:
    assert set(drawn(sampler(numbered_ring(16, 40)), 4000)) == set(range(24, 40))


def test_rows_about_to_be_recycled_are_left_out() -> None:
    assert min(drawn(sampler(numbered_ring(64, 100), guard=8), 4000)) == 36 + 8


@pytest.mark.parametrize("num_transitions", [80, 95, 100])
def test_of_a_replay_that_is_nearly_full_the_rows_about_to_be_recycled_are_left_out_too(num_transitions: int) -> None:
    """It has room for many more rows than it keeps transitions."""
    scene = Scene(np.random.default_rng(0), 1, 1, 100, "float32")
    while scene.ring.num_written < num_transitions:
        scene.step(0.05, 0.0)
    bounds = Sampler([scene.ring], np.random.default_rng(1), guard=20).bounds()
    for _ in range(20):
        scene.step(0.05, 0.0)
    assert scene.ring.oldest <= bounds.first[0] <= 25


def test_rows_of_unequally_filled_rings_are_equally_likely() -> None:
    rings = [numbered_ring(64, count) for count in (10, 0, 90, 30)]  # one empty, one wrapped
    source, count = sampler(*rings), 104_000
    out = np.empty((count, NUMBERED.width), dtype=np.float32)
    draw = source.fill(out)
    assert np.array_equal(numbers_of(out), draw.position)
    seen = {(ring, index) for ring, index in zip(draw.ring.tolist(), draw.position.tolist(), strict=True)}
    expected = {(0, i) for i in range(10)} | {(2, i) for i in range(26, 90)} | {(3, i) for i in range(30)}
    assert seen == expected
    hits = np.unique(draw.ring * 1000 + draw.position, return_counts=True)[1]
    chi_square = ((hits - 1000) ** 2 / 1000).sum()
    assert 50 < chi_square < 175  # 103 degrees of freedom: mean 103, standard deviation 14


def test_rows_recycled_since_the_snapshot_are_replaced_by_others_of_it_or_by_present_ones() -> None:
    ring = numbered_ring(16, 16)
    source = sampler(ring)
    at_request = source.bounds()
    append(ring, 10)
    assert set(drawn(source, 512, bounds=at_request)) == set(range(10, 16))
    append(ring, 9)
    assert set(drawn(source, 512, bounds=at_request)) == set(range(19, 35))


def test_an_age_is_what_was_written_to_all_rings_up_to_the_hand_out() -> None:
    rings = [numbered_ring(16, 5), numbered_ring(16, 5)]
    ages = Sampler(rings, np.random.default_rng(0), guard=0)
    draw = Draw(np.array([0, 1, 1]), np.array([4, 4, 0]))
    ages.hand_out(draw)
    assert (ages.samples, ages.age_sum) == (3, 2.0 * (1 + 1 + 5))
    for ring in rings:
        append(ring, 1)
    ages.hand_out(draw)
    assert (ages.samples, ages.age_sum) == (6, 2.0 * (1 + 1 + 5) + 2.0 * (2 + 2 + 6))


def transitions_in(ring: ReplayRing) -> list[int]:
    index = np.arange(ring.oldest, ring.committed)
    return index[ring.read(index, np.empty((len(index), ring.layout.width), np.float32))].tolist()


def ring_of_short_episodes(seed: int, chance_of_end: float, n_step: int = 1, dtype: str = "float32") -> ReplayRing:
    """Two environments; the ring has wrapped, and one slot in a few is no transition."""
    scene = Scene(np.random.default_rng(seed), 2, n_step, 60, dtype)
    for _ in range(300):
        scene.step(chance_of_end, 0.0)
    assert scene.ring.oldest > scene.ring.capacity
    return scene.ring


def advance(scene: Scene, steps: int) -> None:
    for _ in range(steps):
        scene.step(0.05, 0.0)


@pytest.mark.promise("no-torn-row")
@pytest.mark.parametrize("n_step", [1, 3])
def test_rows_that_the_writer_recycles_during_the_copy_are_not_intact(n_step: int) -> None:
    """Also where none of them was when they were drawn, which is all that `lowest` can say."""
    num_recycled = 0
    for run in interruptions():
        scene = Scene(np.random.default_rng(2), 2, n_step, 20, "float32")
        advance(scene, 100)
        ring, before, columns = scene.ring, scene.ring.oldest, scene.ring.layout.next_obs.stop
        index = np.arange(before, ring.committed)
        at_rest, out = (np.empty((len(index), ring.layout.width), np.float32) for _ in range(2))
        was_intact = ring.read(index, at_rest, before)
        overwrite_all = partial(advance, scene, ring.capacity // 2 + 5)
        intact = run(overwrite_all, partial(ring.read, index, out, before))
        num_recycled += int((was_intact & ~intact).sum())
        assert np.array_equal(out[intact, :columns], at_rest[intact, :columns])
    assert num_recycled > 0


@pytest.mark.parametrize(
    ("num_rings", "chance_of_end", "batch_size"), [(1, 0.3, 31), (2, 0.02, 256), (2, 1.0, 256)]
)  # with 256, some rows are drawn to spare
def test_transitions_are_equally_likely_whatever_lies_between_them(
    num_rings: int, chance_of_end: float, batch_size: int
) -> None:
    rings = [ring_of_short_episodes(seed, chance_of_end) for seed in range(num_rings)]
    source = Sampler(rings, np.random.default_rng(1), guard=0)
    out = np.empty((batch_size, rings[0].layout.width), np.float32)
    most, num_batches = max(ring.committed for ring in rings), 60_000 // batch_size
    hits = np.zeros(num_rings * most, np.int64)
    for _ in range(num_batches):
        draw = source.fill(out)
        hits += np.bincount(draw.ring * most + draw.position, minlength=len(hits))
    expected = [number * most + index for number, ring in enumerate(rings) for index in transitions_in(ring)]
    assert np.flatnonzero(hits).tolist() == expected
    mean, freedom = num_batches * batch_size / len(expected), len(expected) - 1
    chi_square = ((hits[expected] - mean) ** 2 / mean).sum()
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize(("chance_of_end", "dtype", "n_step"), [(0.03, "float32", 3), (0.3, "uint8", 1)])
def test_a_batch_holds_the_rows_that_were_drawn_in_place_of_others_too(
    chance_of_end: float, dtype: str, n_step: int
) -> None:
    rings = [ring_of_short_episodes(seed, chance_of_end, n_step, dtype) for seed in range(2)]
    layout, source = rings[0].layout, Sampler(rings, np.random.default_rng(1), guard=0)
    out = np.empty((256, layout.width), np.float32)
    for _ in range(20):
        draw = source.fill(out)
        for number, ring in enumerate(rings):
            here = draw.ring == number
            rows = np.empty((here.sum(), layout.width), np.float32)
            assert ring.read(draw.position[here], rows).all()
            assert np.array_equal(rows[:, : layout.next_obs.stop], out[here, : layout.next_obs.stop])


def test_rows_that_one_of_several_writers_recycles_meanwhile_are_drawn_again() -> None:
    """Each ring has its own bounds: rows of the second one are recycled, none of the first."""
    scenes = [Scene(np.random.default_rng(seed), 2, 1, 60, "float32") for seed in (0, 1)]
    for scene, steps in zip(scenes, (300, 100), strict=True):
        for _ in range(steps):
            scene.step(0.0, 0.0)
    still, written = scenes
    source = Sampler([still.ring, written.ring], np.random.default_rng(0), guard=0)
    given = source.bounds()
    for _ in range(10):
        written.step(0.0, 0.0)
    draw = source.fill(np.empty((512, still.ring.layout.width), np.float32), given)
    assert draw.position[draw.ring == 1].min() >= written.ring.oldest > given.first[1]


def test_an_age_is_in_transitions_where_every_second_row_is_none() -> None:
    ring = ring_of_short_episodes(0, 1.0)
    ages = Sampler([ring], np.random.default_rng(0), guard=0)
    ages.hand_out(Draw(np.array([0]), np.array([ring.committed - 20])))
    assert ages.age_sum == pytest.approx(10, abs=1)
