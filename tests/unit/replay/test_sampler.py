"""Sampling from the union of rings: only intact rows, uniformly, reproducibly, with their age."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offpolicy.replay.age_weights import AgeWeights
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.ring import Ring
from offpolicy.replay.sampler import AgeWeightedSampler, Bounds, Draw, SampleAges, UniformSampler
from tests.replay_scene import Scene

WIDTH = 3


def rows(start: int, count: int) -> np.ndarray:
    """Rows that encode their index in every column."""
    return np.arange(start, start + count, dtype=np.float32)[:, None].repeat(WIDTH, axis=1)


def make_ring(capacity: int, count: int, kind: type[Ring] = Ring) -> Ring:
    ring = kind(memoryview(bytearray(Ring.nbytes(capacity, WIDTH, 4))), WIDTH, np.float32)
    for index in range(count):
        ring.append(rows(index, 1))
    return ring


class LateWriter(Ring):
    """A ring whose writer adds `pending` rows between a draw and the copy."""

    pending = 0

    def read(self, index: Any, out: Any, lowest: int = -1) -> Any:
        pending, self.pending = self.pending, 0
        for _ in range(pending):
            self.append(rows(self.committed, 1))
        return super().read(index, out, lowest)


def sampler(*rings: Ring, seed: int = 0, guard: int = 0) -> UniformSampler:
    return UniformSampler(rings, np.random.default_rng(seed), guard)


def drawn(source: UniformSampler, count: int, **options: Any) -> list[int]:
    out = np.empty((count, WIDTH), dtype=np.float32)
    source.fill(out, **options)
    assert (out == out[:, :1]).all()
    return out[:, 0].astype(int).tolist()


def test_every_committed_row_is_drawn_and_no_other() -> None:
    assert set(drawn(sampler(make_ring(16, 40)), 4000)) == set(range(24, 40))


def test_rows_about_to_be_recycled_are_left_out() -> None:
    assert min(drawn(sampler(make_ring(64, 100), guard=8), 4000)) == 36 + 8


@pytest.mark.parametrize("num_transitions", [80, 95, 100])
def test_of_a_replay_that_is_nearly_full_the_rows_about_to_be_recycled_are_left_out_too(num_transitions: int) -> None:
    """It has room for many more rows than it keeps transitions."""
    scene = Scene(np.random.default_rng(0), 1, 1, 100, "float32")
    while scene.ring.num_written < num_transitions:
        scene.step(0.05, 0.0)
    bounds = UniformSampler([scene.ring], np.random.default_rng(1), guard=20).bounds()
    for _ in range(20):
        scene.step(0.05, 0.0)
    assert scene.ring.oldest <= bounds.first[0] <= 25


def test_the_ring_of_a_short_run_keeps_no_row_back_near_its_end_as_it_will_recycle_none() -> None:
    scene = Scene(np.random.default_rng(0), 1, 1, 100, "float32")
    while scene.ring.num_written < 99:
        scene.step(0.05, 0.0)
    rng = np.random.default_rng(1)
    assert UniformSampler([scene.ring], rng, guard=20, capacity=1_000).bounds().first == (0,)
    assert UniformSampler([scene.ring], rng, guard=20, capacity=100).bounds().first == (20,)


def test_one_ring_draws_the_rows_it_always_drew() -> None:
    """Literals: a run that was saved continues bit for bit."""
    full = sampler(make_ring(64, 100), guard=8)
    assert [drawn(full, 7), drawn(full, 5)] == [[79, 59, 46, 44, 89, 95, 77], [84, 74, 96, 89, 44]]
    filling = sampler(make_ring(1000, 700), seed=3, guard=8)
    assert [drawn(filling, 7), drawn(filling, 5)] == [[59, 165, 560, 407, 65, 303, 335], [111, 514, 79, 273, 361]]


def test_rows_of_unequally_filled_rings_are_equally_likely() -> None:
    rings = [make_ring(64, 10), make_ring(64, 0), make_ring(64, 90), make_ring(64, 30)]  # one empty, one wrapped
    source, count = sampler(*rings), 104_000
    out = np.empty((count, WIDTH), dtype=np.float32)
    draw = source.fill(out)
    assert np.array_equal(out[:, 0], draw.position)
    seen = {(ring, index) for ring, index in zip(draw.ring.tolist(), draw.position.tolist(), strict=True)}
    expected = {(0, i) for i in range(10)} | {(2, i) for i in range(26, 90)} | {(3, i) for i in range(30)}
    assert seen == expected
    hits = np.unique(draw.ring * 1000 + draw.position, return_counts=True)[1]
    chi_square = ((hits - 1000) ** 2 / 1000).sum()
    assert 50 < chi_square < 175  # 103 degrees of freedom: mean 103, standard deviation 14


def test_recycled_rows_are_drawn_again() -> None:
    ring = make_ring(16, 16, LateWriter)
    ring.pending = 8  # half of the ring
    assert set(drawn(sampler(ring), 512)) == set(range(8, 16))


def test_recycled_rows_of_one_ring_of_several_are_drawn_again() -> None:
    late, calm = make_ring(16, 16, LateWriter), make_ring(16, 16)
    late.pending = 8
    out = np.empty((512, WIDTH), dtype=np.float32)
    draw = sampler(calm, late).fill(out)
    assert np.array_equal(out[:, 0], draw.position)
    assert draw.position[draw.ring == 1].min() == 8
    assert draw.position[draw.ring == 0].min() == 0


def test_a_draw_from_a_snapshot_is_the_same_whatever_is_written_meanwhile() -> None:
    calm, busy = (sampler(make_ring(64, 100), guard=8) for _ in range(2))
    at_request = busy.bounds()
    busy._rings[0].append(rows(100, 8))  # as many as the guard allows for
    assert drawn(busy, 100, bounds=at_request) == drawn(calm, 100)


def test_rows_recycled_since_the_snapshot_are_replaced_by_others_of_it() -> None:
    source = sampler(make_ring(16, 16))
    at_request = source.bounds()
    source._rings[0].append(rows(16, 10))
    assert set(drawn(source, 512, bounds=at_request)) == set(range(10, 16))


def test_when_all_of_the_snapshot_is_recycled_present_rows_are_drawn() -> None:
    source = sampler(make_ring(16, 16))
    at_request = source.bounds()
    source._rings[0].append(rows(16, 16))
    source._rings[0].append(rows(32, 3))
    assert set(drawn(source, 512, bounds=at_request)) == set(range(19, 35))


def test_rows_outside_the_snapshot_are_not_drawn_while_rows_of_it_are_left() -> None:
    out = np.empty((512, WIDTH), dtype=np.float32)
    draw = sampler(make_ring(8, 8), make_ring(8, 12)).fill(out, bounds=Bounds((3, 0), (8, 8)))
    assert [draw.position[draw.ring == ring].min() for ring in (0, 1)] == [3, 4]


def test_sampling_before_anything_was_written_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no ring holds a row"):
        drawn(sampler(make_ring(16, 0), make_ring(16, 0)), 1)


class FilledMeanwhile(Ring):
    """A ring that its writer fills between two looks at it."""

    @property
    def committed(self) -> int:
        before = super().committed
        self.append(rows(before, self.capacity))
        return before


def test_bounds_hold_rows_however_far_the_writer_gets_between_their_two_ends() -> None:
    bounds = sampler(make_ring(8, 8, FilledMeanwhile)).bounds()
    assert bounds.first[0] < bounds.last[0]


def test_bounds_of_rows_that_were_never_written_are_recognised() -> None:
    source = sampler(make_ring(16, 9), make_ring(16, 5))
    assert source.has_written(source.bounds())
    assert not sampler(make_ring(16, 9), make_ring(16, 4)).has_written(source.bounds())


def test_an_age_is_what_was_written_to_all_rings_up_to_the_hand_out() -> None:
    rings = [make_ring(16, 5), make_ring(16, 5)]
    ages = SampleAges(rings)
    draw = Draw(np.array([0, 1, 1]), np.array([4, 4, 0]))
    ages.add(draw)
    assert (ages.samples, ages.convert()) == (3, 2.0 * (1 + 1 + 5))
    for ring in rings:
        ring.append(rows(5, 1))
    ages.add(draw)
    assert (ages.samples, ages.convert()) == (6, 2.0 * (1 + 1 + 5) + 2.0 * (2 + 2 + 6))


def test_the_age_in_one_ring_is_counted_in_rows_written_since() -> None:
    ring = make_ring(16, 1)
    ages = SampleAges([ring])
    ages.add(sampler(ring).fill(np.empty((5, WIDTH), dtype=np.float32)))
    assert (ages.samples, ages.convert()) == (5, 5.0)


def ring_of_short_episodes(seed: int, chance_of_end: float, n_step: int = 1, dtype: str = "float32") -> ReplayRing:
    """Two environments; the ring has wrapped, and one slot in a few is no transition."""
    scene = Scene(np.random.default_rng(seed), 2, n_step, 60, dtype)
    for _ in range(300):
        scene.step(chance_of_end, 0.0)
    assert scene.ring.oldest > scene.ring.capacity
    return scene.ring


def recycle_during_the_next_copy(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer makes ten steps between the copy of the next rows that are read and the look at what it recycled."""
    gather = scene.ring._gather

    def copy_then_write(slots: Any, out: Any) -> Any:
        monkeypatch.undo()
        codes = gather(slots, out)
        for _ in range(10):
            scene.step(0.05, 0.0)
        return codes

    monkeypatch.setattr(scene.ring, "_gather", copy_then_write)


def wrapped_scene(n_step: int) -> Scene:
    scene = Scene(np.random.default_rng(2), 2, n_step, 60, "float32")
    for _ in range(300):
        scene.step(0.05, 0.0)
    return scene


@pytest.mark.parametrize("n_step", [1, 3])
def test_rows_that_the_writer_recycles_during_the_copy_are_not_intact(
    n_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where none of them was when they were drawn, which is all that `lowest` can say."""
    scene = wrapped_scene(n_step)
    ring, before = scene.ring, scene.ring.oldest
    index = np.arange(before, ring.committed)
    out = np.empty((len(index), ring.layout.width), np.float32)
    at_rest = ring.read(index, out, before)
    recycle_during_the_next_copy(scene, monkeypatch)
    intact = ring.read(index, out, before)
    assert before < ring.oldest
    assert at_rest[index < ring.oldest].any()  # what would be taken for whole
    assert intact.tolist() == (at_rest & (index >= ring.oldest)).tolist()


@pytest.mark.parametrize("batch_size", [31, 256])  # none, and some are drawn to spare
def test_a_batch_holds_no_row_that_was_recycled_during_its_copy(
    batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = wrapped_scene(1)
    source = UniformSampler([scene.ring], np.random.default_rng(1), guard=0)
    recycle_during_the_next_copy(scene, monkeypatch)
    draw = source.fill(np.empty((batch_size, scene.ring.layout.width), np.float32))
    assert draw.position.min() >= scene.ring.oldest


@pytest.mark.parametrize("batch_size", [1, 31, 256])  # none, none and some are drawn to spare
@pytest.mark.parametrize("chance_of_end", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("num_rings", [1, 2])
def test_transitions_are_equally_likely_whatever_lies_between_them(
    num_rings: int, chance_of_end: float, batch_size: int
) -> None:
    rings = [ring_of_short_episodes(seed, chance_of_end) for seed in range(num_rings)]
    source = UniformSampler(rings, np.random.default_rng(1), guard=0)
    out = np.empty((batch_size, rings[0].layout.width), np.float32)
    most, num_batches = max(ring.committed for ring in rings), {1: 8_000, 31: 2_000, 256: 6_000}[batch_size]
    hits = np.zeros(num_rings * most, np.int64)
    for _ in range(num_batches):
        draw = source.fill(out)
        hits += np.bincount(draw.ring * most + draw.position, minlength=len(hits))
    expected = [
        number * most + index
        for number, ring in enumerate(rings)
        for index in range(ring.oldest, ring.committed)
        if ring._codes[index % ring.capacity]
    ]
    assert np.flatnonzero(hits).tolist() == expected
    mean, freedom = num_batches * batch_size / len(expected), len(expected) - 1
    chi_square = ((hits[expected] - mean) ** 2 / mean).sum()
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("chance_of_end", [0.03, 0.3])  # spare rows are enough, and are not
def test_a_batch_holds_the_rows_that_were_drawn_in_place_of_others_too(
    chance_of_end: float, dtype: str, n_step: int
) -> None:
    rings = [ring_of_short_episodes(seed, chance_of_end, n_step, dtype) for seed in range(2)]
    layout, source = rings[0].layout, UniformSampler(rings, np.random.default_rng(1), guard=0)
    out = np.empty((256, layout.width), np.float32)
    for _ in range(20):
        draw = source.fill(out)
        for number, ring in enumerate(rings):
            here = draw.ring == number
            rows = np.empty((here.sum(), layout.width), np.float32)
            assert ring.read(draw.position[here], rows).all()
            assert np.array_equal(rows[:, : layout.next_obs.stop], out[here, : layout.next_obs.stop])


def test_a_restored_sampler_draws_the_same_transitions() -> None:
    ring = ring_of_short_episodes(0, 0.1)
    source = UniformSampler([ring], np.random.default_rng(1), guard=4)
    out, again = (np.empty((256, ring.layout.width), np.float32) for _ in range(2))
    source.fill(out)
    other = UniformSampler([ring], np.random.default_rng(2), guard=4)
    other.set_state(source.state())
    for _ in range(5):
        source.fill(out)
        other.fill(again)
        assert np.array_equal(out[:, : ring.layout.next_obs.stop], again[:, : ring.layout.next_obs.stop])


@pytest.mark.parametrize("counts", [(90,), (10, 0, 90, 30)])  # one ring is empty, one has wrapped
def test_rows_are_drawn_with_the_weight_of_their_age(counts: tuple[int, ...]) -> None:
    rings = [make_ring(64, count) for count in counts]
    source = AgeWeightedSampler(rings, np.random.default_rng(0), 0, AgeWeights(decay=40, floor=0.25))
    out = np.empty((100_000, WIDTH), dtype=np.float32)
    draw = source.fill(out)
    assert np.array_equal(out[:, 0], draw.position)
    hits = np.bincount(draw.ring * 90 + draw.position, minlength=90 * len(rings)).reshape(-1, 90)
    weights = np.zeros_like(hits, dtype=float)
    for number, ring in enumerate(rings):
        rows_of_ring = np.arange(ring.oldest, ring.committed)
        weights[number, rows_of_ring] = np.maximum(0.25, 1 - (ring.committed - rows_of_ring - 0.5) / 40)
    expected = 100_000 * weights / weights.sum()
    assert hits[expected == 0].sum() == 0
    assert (np.abs(hits - expected) < 5 * np.sqrt(expected) + 1).all()


def test_a_floor_of_one_draws_uniformly() -> None:
    source = AgeWeightedSampler([make_ring(64, 90)], np.random.default_rng(0), 0, AgeWeights(decay=10, floor=1.0))
    hits = np.bincount(drawn(source, 64_000), minlength=90)
    assert hits[:26].sum() == 0
    assert np.abs(hits[26:] - 1000).max() < 5 * np.sqrt(1000)


def test_weighted_draws_leave_out_what_is_no_transition_and_go_on_after_a_restore() -> None:
    ring = ring_of_short_episodes(0, 0.3)
    source = AgeWeightedSampler([ring], np.random.default_rng(1), 0, AgeWeights(decay=30, floor=0.1))
    state, out = source.state(), np.empty((256, ring.layout.width), np.float32)
    first = source.fill(out).position.copy()
    assert ring.read(first, out).all()
    source.set_state(state)
    assert np.array_equal(source.fill(out).position, first)


def test_an_age_counts_transitions_and_not_the_rows_between_them() -> None:
    """Episodes of one step: every second row is none."""
    ring = ring_of_short_episodes(0, 1.0)
    source = AgeWeightedSampler([ring], np.random.default_rng(0), 0, AgeWeights(decay=30, floor=0.2))
    draw = source.fill(np.empty((50_000, ring.layout.width), np.float32))
    every = np.arange(ring.oldest, ring.committed)
    transitions = every[ring.read(every, np.empty((len(every), ring.layout.width), np.float32))]
    assert 0.45 < len(transitions) / len(every) < 0.55
    weights = np.maximum(0.2, 1 - (np.arange(len(transitions))[::-1] + 0.5) / 30)
    hits = np.bincount(draw.position, minlength=ring.committed)[transitions]
    # A row and its neighbour that is none share a weight: half a step of the slope off at most, 1 / 60.
    assert np.abs(hits / hits.sum() - weights / weights.sum()).max() < 1.5 / 60 / weights.sum() + 0.003


def test_rows_that_one_of_several_writers_recycles_meanwhile_are_drawn_again() -> None:
    """Each ring has bounds of its own: rows of the second one are recycled, none of the first."""
    scenes = [Scene(np.random.default_rng(seed), 2, 1, 60, "float32") for seed in (0, 1)]
    for scene, steps in zip(scenes, (300, 100), strict=True):
        for _ in range(steps):
            scene.step(0.0, 0.0)
    still, written = scenes
    source = UniformSampler([still.ring, written.ring], np.random.default_rng(0), guard=0)
    given = source.bounds()
    for _ in range(10):
        written.step(0.0, 0.0)
    draw = source.fill(np.empty((512, still.ring.layout.width), np.float32), given)
    assert draw.position[draw.ring == 1].min() >= written.ring.oldest > given.first[1]


def test_a_single_row_that_was_recycled_is_not_intact() -> None:
    ring = ring_of_short_episodes(0, 0.0)
    out = np.empty(ring.layout.width, np.float32)
    assert [ring.read_row(index, out) for index in (ring.oldest - 1, ring.oldest)] == [False, True]


def test_an_age_is_in_transitions_where_every_second_row_is_none() -> None:
    ring = ring_of_short_episodes(0, 1.0)
    ages = SampleAges([ring])
    ages.add(Draw(np.array([0]), np.array([ring.committed - 20])))
    assert ages.convert() == pytest.approx(10, abs=1)
