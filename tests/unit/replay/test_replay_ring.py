"""Every transition is found again, whole, though its next observation is stored with another one."""

from __future__ import annotations

import errno
import os
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from offpolicy.collect.replay_writer import ReplayWriter
from offpolicy.errors import CheckpointError
from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.replay import replay_ring
from offpolicy.replay.replay_ring import RELEASED_BYTES, ReplayRing
from offpolicy.replay.row_layout import IS_TERMINATED, IS_TRUNCATED, OFFSET_SHIFT, RowLayout
from offpolicy.types import PolicyOutput, StepOutcome
from tests.replay_scene import OBS_DIM, Scene, layout_of, make_ring, rows_in


@pytest.mark.parametrize("seed", range(24))
def test_every_transition_is_read_again_whatever_has_happened(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scene = Scene(
        rng, int(rng.integers(1, 5)), int(rng.choice([1, 1, 2, 3, 5])), int(rng.choice([7, 40, 1000])),
        str(rng.choice(["float32", "uint8"])),
    )  # fmt: skip
    chance_of_end, chance_of_nan = float(rng.choice([0.02, 0.2, 1.0])), float(rng.choice([0.0, 0.05]))
    for _ in range(150):
        scene.step(chance_of_end, chance_of_nan)
        event = rng.random()
        if event < 0.02:
            scene.restart()
        elif event < 0.04 and scene.ring.num_transitions:
            scene.resume(is_exact=bool(rng.integers(2)))
        scene.check()


@dataclass
class Dying:
    """Words of a ring whose writer dies before the store number `left` to one of them."""

    words: Any
    left: int

    def __getitem__(self, word: int) -> int:
        return int(self.words[word])

    def __setitem__(self, word: int, value: int) -> None:
        if self.left == 0:
            raise InterruptedError
        self.left -= 1
        self.words[word] = value


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("left", range(8))
def test_wherever_a_writer_dies_its_rows_are_there_or_not_and_the_others_are_whole(left: int, n_step: int) -> None:
    scene = Scene(np.random.default_rng(left), 2, n_step, 6, "float32")
    for _ in range(9):
        scene.step(0.2, 0.0)
    before, rows = scene.complete, rows_in(scene.ring).tolist()
    counts = [scene.ring.num_written]
    words, scene.ring._words = scene.ring._words, Dying(scene.ring._words, left)  # type: ignore[assignment]
    try:
        scene.step(0.2, 0.0)
    except InterruptedError:
        scene.rows = before
    scene.ring._words = words
    scene.restart()
    after = rows_in(scene.ring).tolist()
    counts.append(counts[0] + len([row for row in after if row not in rows]))
    assert scene.ring.num_written == counts[1]
    assert scene.ring.num_transitions == len(after)
    assert [row for row in after if row in rows] == rows[len(rows) - len([row for row in after if row in rows]) :]
    assert len(after) >= len(rows) - 2
    for _ in range(4):
        scene.step(0.2, 0.0)
    assert scene.ring.num_transitions == len(rows_in(scene.ring))


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_second_writer_that_dies_before_its_first_step_counts_the_committed_rows_too(n_step: int) -> None:
    scene = Scene(np.random.default_rng(3), 1, n_step, 30, "float32")
    for _ in range(10):
        scene.step(0.0, 0.0)
    counts = [scene.attached().take_over(9) for _ in range(2)]  # the tenth step was not announced
    assert counts == [10, 10]


def test_slots_without_a_transition_are_never_called_one() -> None:
    ring = make_ring(10)
    ring.write(np.zeros((0, 1), np.float32), np.ones((1, OBS_DIM), np.float32))
    ring.break_off()
    assert (ring.committed, ring.num_transitions, len(rows_in(ring))) == (1, 0, 0)


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_ring_without_room_for_short_episodes_keeps_fewer_and_counts_them(n_step: int) -> None:
    ring = make_ring(40, num_envs=2, n_step=n_step)
    writer, obs, unknown = ReplayWriter(ring, gamma=0.5, n_step=n_step), np.zeros((2, OBS_DIM), np.float32), np.zeros(2)
    writer.begin(0)
    output, is_over = PolicyOutput(np.zeros((2, 2), np.float32), None, 0), np.zeros(2, np.bool_)
    for step in range(200):
        nan, next_obs = unknown.astype(np.float32), np.full((2, OBS_DIM), step + 1, np.float32)
        ends = np.array([step % 2 == 0, step % 6 == 0]) & ~is_over
        writer.write(obs, output, StepOutcome(next_obs, unknown, ends, ~ends & ends, ~is_over, nan, nan))
        obs, is_over = next_obs, ends
        found = rows_in(ring)
        assert len(found) == ring.num_transitions
        assert (found[:, ring.layout.next_obs] > found[:, ring.layout.obs]).all()
    assert 20 < ring.num_transitions < 40


def test_more_transitions_than_asked_for_are_not_kept() -> None:
    scene = Scene(np.random.default_rng(1), 1, 1, 5, "float32")
    for _ in range(40):
        scene.step(0.5, 0.0)
    assert (scene.ring.num_transitions, scene.ring.max_transitions) == (5, 5)
    assert scene.ring.num_written == len(scene.rows)


def numbered(number: int, num_envs: int) -> np.ndarray:
    return np.full((num_envs, 100), number, np.float32)


@pytest.mark.parametrize(("length", "slots_per_row"), [(1, 2.0), (4, 1.25), (1000, 1.02)])
def test_as_many_transitions_are_kept_however_short_episodes_are_and_no_more_memory(
    length: int, slots_per_row: float
) -> None:
    """Each process maps the whole room; the kernel has memory only for what is in use."""
    layout, most, num_envs = RowLayout(100, 1), 40_000, 500
    size = ReplayRing.nbytes_for(most, layout, num_envs, 1)
    block = SharedBlock.create("test-ring", size, ReplayRing.room_for(most, layout, num_envs, 1))
    ring = ReplayRing(block.buffer, layout, most, num_envs=num_envs)
    ring.begin(0)
    ring.write(np.empty((0, 1), np.float32), numbered(0, num_envs))
    tails = np.zeros((num_envs, 4), np.float32)
    most_bytes = 0
    for step in range(1, 800):
        tails.view(np.uint32)[:, -1] = 0 if step % (length + 1) == 0 else 4
        ring.write(tails, numbered(step, num_envs))
        most_bytes = max(most_bytes, 512 * os.fstat(block.fd).st_blocks)
    assert most <= ring.num_transitions < most + num_envs
    out = np.empty((ring.committed - ring.oldest, layout.width), np.float32)
    found = out[ring.read(np.arange(ring.oldest, ring.committed), out)]
    assert len(found) == ring.num_transitions
    first = ring.oldest // num_envs
    expected = [step for step in range(first, 799) if (step + 1) % (length + 1)]
    assert np.array_equal(found[::num_envs, 0], expected[-len(found) // num_envs :])
    assert (found[:, layout.next_obs] == found[:, :1] + 1).all()
    assert most_bytes <= max(size, slots_per_row * most * layout.nbytes) + 2 * RELEASED_BYTES


def test_a_kernel_that_takes_no_memory_back_leaves_it_with_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = list[str]()

    def refuse(site: str) -> None:
        if site == "memory.release":
            attempts.append(site)
            raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(replay_ring.fault, "hit", refuse)
    monkeypatch.setattr(replay_ring, "RELEASED_BYTES", 4096)
    layout = RowLayout(100, 1)
    size, room = (of(200, layout, 1, 1) for of in (ReplayRing.nbytes_for, ReplayRing.room_for))
    block = SharedBlock.create("test-ring", size, room)
    ring = ReplayRing(block.buffer, layout, 200, num_envs=1)
    ring.begin(0)
    ring.write(np.empty((0, 1), np.float32), numbered(0, 1))
    tails = np.zeros((1, 4), np.float32)
    tails.view(np.uint32)[:, -1] = 1 << OFFSET_SHIFT
    for step in range(1, 1500):
        ring.write(tails, numbered(step, 1))
    out = np.empty((200, layout.width), np.float32)
    assert ring.read(np.arange(ring.oldest, ring.committed), out).all()
    assert out[:, 0].tolist() == list(range(1299, 1499))
    assert len(attempts) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda slots: slots.view(np.uint32)[:, -1].fill(0), "hold no transition"),
        (lambda slots: slots.view(np.uint32)[-1:, -1].fill(0xFFFFFFFF), "beyond row"),
    ],
)
def test_saved_slots_that_no_writer_leaves_are_refused(change: Any, message: str) -> None:
    scene = Scene(np.random.default_rng(1), 1, 1, 20, "float32")
    for _ in range(12):
        scene.step(0.0, 0.0)
    slots, ahead = scene.ring.read_range(0, 12), scene.ring.copy_open(scene.ring.committed)
    change(slots)
    with pytest.raises(CheckpointError, match=message):
        make_ring(20).restore_slots(0, [slots], ahead, 12)


def test_saved_slots_of_another_number_of_environments_are_refused() -> None:
    slots = np.zeros((3, layout_of("float32").slot_width), np.float32)
    with pytest.raises(CheckpointError, match="not those of 2 environments"):
        make_ring(20, num_envs=2).restore_slots(0, [slots], slots[:0])


def test_a_fresh_observation_is_that_of_a_transition() -> None:
    scene, seen = Scene(np.random.default_rng(3), 2, 1, 50, "float32"), deque[list[float]]()
    for _ in range(10):
        scene.step(0.3, 0.0)
    seen.extend(row.obs.tolist() for row in scene.rows)
    assert scene.ring.read_obs(0, scene.ring.committed, OBS_DIM).tolist() == list(seen)


def test_the_supervisor_takes_over_from_a_writer_in_memory_that_was_cleared_since_the_last_time() -> None:
    """Its view of the ring is older than the writer's, which begins with the first slot again."""
    scene = Scene(np.random.default_rng(6), 1, 1, 30, "float32")
    view_of_supervisor = scene.attached()
    for _ in range(100):
        scene.step(0.1, 0.0)
    view_of_supervisor.take_over(100)
    scene.memory[:] = bytes(len(scene.memory))
    scene.ring, scene.rows, scene.time = scene.attached(), [], 0
    scene.writer = scene.new_writer()
    scene.writer.begin(0)
    for _ in range(10):
        scene.step(0.0, 0.0)
    view_of_supervisor.take_over(10)
    assert (scene.ring.committed, scene.ring.end) == (11, 11)  # ten rows, and the last observation
    assert len(rows_in(scene.ring)) == scene.ring.num_transitions >= 9


@pytest.mark.parametrize("most", [40_000, 20_000])
def test_a_restored_ring_never_uses_more_memory_than_one_that_is_written(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saved slots lie across the middle of the room, the first half of which is allocated."""
    layout, most_bytes = RowLayout(100, 1), 0
    size = ReplayRing.nbytes_for(most, layout, 1, 1)
    block = SharedBlock.create("test-ring", size, ReplayRing.room_for(most, layout, 1, 1))
    ring = ReplayRing(block.buffer, layout, most, num_envs=1)
    place = ReplayRing._place

    def watched(*given: Any) -> None:
        nonlocal most_bytes
        place(*given)
        most_bytes = max(most_bytes, 512 * os.fstat(block.fd).st_blocks)

    monkeypatch.setattr(replay_ring, "RESTORED_ROWS", 1000)
    monkeypatch.setattr(ReplayRing, "_place", watched)
    slots = np.full((40_000, layout.slot_width), 1 << OFFSET_SHIFT, np.uint32).view(np.float32)
    ring.restore_slots(60_000, [slots], np.zeros((1, layout.slot_width), np.float32), 100_000)
    assert (ring.num_transitions, ring.num_written) == (most, 100_000)
    assert most_bytes <= size + 3 * RELEASED_BYTES // 2


def test_a_ring_that_could_not_be_restored_is_unused_again() -> None:
    scene, ring = Scene(np.random.default_rng(1), 1, 1, 20, "float32"), make_ring(20)
    for _ in range(12):
        scene.step(0.0, 0.0)
    slots, ahead = scene.ring.read_range(0, 12), scene.ring.copy_open(scene.ring.committed)
    bad = slots.copy()
    bad.view(np.uint32)[-1, -1] = 0xFFFFFFFF
    with pytest.raises(CheckpointError):
        ring.restore_slots(0, [slots[:6], bad[6:]], ahead, 12)
    assert (ring.committed, ring.end, ring.num_transitions) == (0, 0, 0)
    ring.restore_slots(0, [slots], ahead, 12)
    assert np.array_equal(rows_in(ring), rows_in(scene.ring))


def test_what_the_rows_of_a_checkpoint_end_in_is_the_same_after_another_process_has_taken_over() -> None:
    scene = Scene(np.random.default_rng(1), 2, 3, 60, "float32")
    for _ in range(20):
        scene.step(0.1, 0.0)
    committed = scene.ring.committed
    ahead = scene.ring.copy_open(committed)
    scene.restart()
    assert scene.ring.committed == committed + len(ahead) > committed
    assert np.array_equal(scene.ring.copy_open(committed), ahead)


def test_a_writer_that_dies_before_its_first_step_in_a_restored_ring_loses_no_count() -> None:
    scene, ring = Scene(np.random.default_rng(1), 1, 1, 20, "float32"), make_ring(20)
    for _ in range(12):
        scene.step(0.0, 0.0)
    ring.restore_slots(0, [scene.ring.read_range(0, 12)], scene.ring.copy_open(scene.ring.committed), 12)
    ring.begin(12)
    ring.take_over(12)
    assert (ring.num_transitions, ring.num_written) == (12, 12)


@pytest.mark.parametrize("num_blocks", [1, 2, 5])
def test_a_ring_that_was_restored_is_restored_again_by_the_process_after_one_that_died(num_blocks: int) -> None:
    scene, ring = Scene(np.random.default_rng(1), 2, 1, 60, "float32"), make_ring(60, num_envs=2)
    for _ in range(80):
        scene.step(0.1, 0.0)
    first, committed = scene.ring.oldest, scene.ring.committed
    slots = scene.ring.read_range(first, committed)
    by_step = np.array_split(slots.reshape(-1, 2, slots.shape[1]), num_blocks)
    saved = [block.reshape(-1, slots.shape[1]) for block in by_step]
    found = []
    for _ in range(3):
        ring.restore_slots(first, saved, scene.ring.copy_open(scene.ring.committed), scene.ring.num_written)
        found.append((ring.oldest, ring.committed, ring.num_written, rows_in(ring).tolist()))
    assert found == [found[0]] * 3
    assert found[0][1:3] == (committed, scene.ring.num_written)
    assert len(found[0][3]) >= 50


def test_slots_of_which_no_transition_was_ever_made_are_restored() -> None:
    """All rows of a collector can be bad until its first checkpoint."""
    ring, slots = make_ring(20), np.zeros((3, layout_of("float32").slot_width), np.float32)
    ring.restore_slots(0, [slots], slots[:1], 0)
    assert (ring.committed, ring.num_transitions, ring.num_written) == (3, 0, 0)


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_smaller_ring_takes_the_newest_of_the_saved_transitions(n_step: int) -> None:
    scene = Scene(np.random.default_rng(4), 2, n_step, 60, "float32")
    for _ in range(40):
        scene.step(0.2, 0.0)
    before, saved = rows_in(scene.ring), scene.ring.read_range(0, scene.ring.committed)
    for most in (20, 8):
        ring = make_ring(most, num_envs=2, n_step=n_step)
        ring.restore_slots(0, np.array_split(saved, [len(saved) // 4 * 2]), scene.ring.copy_open(scene.ring.committed))
        found = rows_in(ring)
        assert most / 2 < len(found) == ring.num_transitions <= most + 2
        assert np.array_equal(found, before[-len(found) :])


# -- seeded bugs ------------------------------------------------------------------------------------------------------


class TheNextRowsObservation(ReplayRing):
    """Seeded bug: the row after an episode's end is the next one of the ring that is a transition, not of autoreset."""

    def read(self, index: Any, out: Any, lowest: int = -1) -> Any:
        intact = super().read(index, out, lowest)
        ends = (self._codes[index % self.capacity] & self.flag) != 0
        following = (index[ends] + 2 * self.num_envs) % self.capacity
        out[ends, self.layout.next_obs] = self._rows[following, : self.layout.obs_dim]
        return intact

    flag = IS_TERMINATED


class TheNextRowsObservationAfterTruncation(TheNextRowsObservation):
    """Seeded bug: likewise after the end of a truncated episode."""

    flag = IS_TRUNCATED


class TheLastRowHasItsOwn(ReplayRing):
    """Seeded bug: the last rows before the head end in the observation that is in the ring there from before."""

    def write(self, tails: Any, obs: Any, env_steps: int = 0) -> None:
        slot = self._head % self.capacity
        stale = self._obs[slot : slot + self.num_envs].copy()
        super().write(tails, obs, env_steps)
        if obs is not None:
            self._obs[slot : slot + self.num_envs] = stale


class DoesNotWrap(ReplayRing):
    """Seeded bug: the row behind the last slot is the last slot itself."""

    def _gather(self, slots: Any, out: Any) -> Any:
        pair = slots.reshape(-1, 2) % self.capacity
        pair[:, 1] = np.where(pair[:, 1] < pair[:, 0], self.capacity - 1, pair[:, 1])
        return super()._gather(pair.ravel(), out)


class TheNextEnvironments(ReplayRing):
    """Seeded bug: the next slot is taken, which is another environment's."""

    def _gather(self, slots: Any, out: Any) -> Any:
        pair = slots.reshape(-1, 2)
        pair[:, 1] = pair[:, 0] + (pair[:, 1] - pair[:, 0]) // self.num_envs
        return super()._gather(pair.ravel(), out)


class HolesAreRows(ReplayRing):
    """Seeded bug: slots that are no transitions are drawn, too."""

    def read(self, index: Any, out: Any, lowest: int = -1) -> Any:
        super().read(index, out, lowest)
        return index >= self.oldest


def run(kind: type[ReplayRing], n_step: int) -> None:
    """Compares rows with a buffer that stores all of them, after each of many steps; the ring wraps twice."""
    scene = Scene(np.random.default_rng(7), 2, n_step, 20, "float32", kind)
    for _ in range(200):
        scene.step(0.2, 0.0)
        scene.check()
    assert scene.ring.committed > 2 * scene.ring.capacity


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize(
    "kind",
    [
        TheNextRowsObservation,
        TheNextRowsObservationAfterTruncation,
        TheLastRowHasItsOwn,
        DoesNotWrap,
        TheNextEnvironments,
        HolesAreRows,
    ],
)
def test_a_seeded_bug_is_caught(kind: type[ReplayRing], n_step: int) -> None:
    run(ReplayRing, n_step)
    with pytest.raises(AssertionError):
        run(kind, n_step)
