"""Every transition is found again, whole, though its next observation is stored with another one."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from offpolicy.collect.replay_writer import BadRowError, ReplayWriter
from offpolicy.errors import CheckpointError
from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.replay.replay_ring import RELEASED_BYTES, ReplayRing
from offpolicy.replay.row_conversion import slots_of, transitions_of
from offpolicy.replay.row_layout import RowLayout, TransitionLayout
from offpolicy.types import Choice, StepOutcome

OBS_DIM, ACTION_DIM, GAMMA = 3, 2, 0.5
PLAIN = TransitionLayout(OBS_DIM, ACTION_DIM)


def layout_of(dtype: str) -> RowLayout:
    return RowLayout(OBS_DIM, ACTION_DIM, dtype)


def memory_of(most: int, num_envs: int, n_step: int, dtype: str, slots: int = 0) -> memoryview:
    """Room for so many transitions, and for more slots."""
    layout = layout_of(dtype)
    return memoryview(bytearray(ReplayRing.nbytes_for(most, layout, num_envs, n_step) + slots * layout.nbytes))


def make_ring(most: int, *, num_envs: int = 1, n_step: int = 1, dtype: str = "float32") -> ReplayRing:
    memory = memory_of(most, num_envs, n_step, dtype)
    return ReplayRing(memory, layout_of(dtype), most, num_envs=num_envs, n_step=n_step)


def rows_in(ring: ReplayRing) -> np.ndarray:
    """All that can be drawn, as rows of a batch without the columns that mean nothing."""
    out = np.empty((ring.committed - ring.oldest, ring.layout.width), np.float32)
    return out[ring.read(np.arange(ring.oldest, ring.committed), out), : ring.layout.next_obs.stop]


@dataclass
class Row:
    """A transition as it should be read again."""

    step: int
    env: int
    obs: np.ndarray
    action: np.ndarray
    reward: float = 0.0
    discount: float = 1.0
    num_steps: int = 0
    next_obs: np.ndarray | None = None
    flags: tuple[bool, bool] = (False, False)
    is_open: bool = True


@dataclass
class Scene:
    """Random episodes of N environments, written step by step, and what must be in the ring."""

    rng: np.random.Generator
    num_envs: int
    n_step: int
    most: int
    dtype: str
    ring: ReplayRing = field(init=False)
    rows: list[Row] = field(default_factory=list)
    time: int = 0
    first_open: int = 0  # vector step
    memory: memoryview = field(init=False)

    def __post_init__(self) -> None:
        self.ring = self.new_ring()
        self.writer = self.new_writer()
        self.writer.begin(0)
        self.obs = self.new_obs()
        self.is_over = np.zeros(self.num_envs, np.bool_)

    def new_ring(self) -> ReplayRing:
        room = 2 * self.most + 40 * self.num_envs  # for the shortest episodes, and for what restarts break off
        self.memory = memory_of(self.most, self.num_envs, self.n_step, self.dtype, room)
        return self.attached()

    def attached(self) -> ReplayRing:
        layout = layout_of(self.dtype)
        return ReplayRing(self.memory, layout, self.most, num_envs=self.num_envs, n_step=self.n_step)

    def new_writer(self) -> ReplayWriter:
        return ReplayWriter(self.ring, gamma=GAMMA, n_step=self.n_step)

    def new_obs(self) -> np.ndarray:
        return self.rng.integers(0, 256, (self.num_envs, OBS_DIM)).astype(np.float32)

    def step(self, chance_of_end: float, chance_of_nan: float) -> None:
        count = self.num_envs
        action = self.rng.standard_normal((count, ACTION_DIM)).astype(np.float32)
        reward, is_valid = self.rng.standard_normal(count), ~self.is_over
        ends = self.rng.choice(4, count, p=[1 - chance_of_end, *[chance_of_end / 3] * 3])
        reward[(self.rng.random(count) < chance_of_nan) & is_valid] = np.nan
        terminated, truncated = (ends & 1 != 0) & is_valid, (ends & 2 != 0) & is_valid
        next_obs, unknown = self.new_obs(), np.full(count, np.nan, np.float32)
        outcome = StepOutcome(next_obs, reward, terminated, truncated, is_valid, unknown, unknown)
        bad: tuple[int, ...] = ()
        try:
            self.writer.write(self.obs, Choice(action, None, 0), outcome, self.time)
        except BadRowError as error:
            bad = error.envs
        assert bad == tuple(np.flatnonzero(np.isnan(reward)).tolist())
        self.expect(action, outcome, bad)
        self.obs, self.is_over = next_obs, (terminated | truncated) & is_valid
        if bad:
            self.writer.abandon(bad)
            self.rows = [row for row in self.rows if not (row.is_open and row.env in bad)]
            self.obs = np.where(np.isin(np.arange(count), bad)[:, None], self.new_obs(), next_obs)
            self.is_over[list(bad)] = False
        self.time += 1

    def expect(self, action: np.ndarray, outcome: StepOutcome, bad: tuple[int, ...]) -> None:
        for env in np.flatnonzero(outcome.is_valid):
            if env in bad:
                continue
            self.rows.append(Row(self.time, int(env), self.obs[env], action[env]))
            for row in self.rows:
                if not row.is_open or row.env != env:
                    continue
                row.reward += row.discount * float(np.float32(outcome.reward[env]))
                row.discount *= GAMMA
                row.num_steps += 1
                row.next_obs = outcome.next_obs[env]
                row.flags = bool(outcome.terminated[env]), bool(outcome.truncated[env])
                row.is_open = row.num_steps < self.n_step and not any(row.flags)
        self.first_open = min((row.step for row in self.rows if row.is_open), default=self.time + 1)

    @property
    def complete(self) -> list[Row]:
        """Rows of vector steps before the first with an open row, as of the last write."""
        return [row for row in self.rows if row.step < self.first_open]

    def restart(self) -> None:
        """The process dies between two steps, and another one continues with new episodes."""
        self.rows = self.complete
        self.ring = self.attached()
        self.writer = self.new_writer()
        self.writer.take_over(self.time)
        self.obs, self.is_over = self.new_obs(), np.zeros(self.num_envs, np.bool_)

    def resume(self, *, is_exact: bool) -> None:
        """Rows and open windows are saved and restored, exactly or with new episodes."""
        before, windows = self.ring, self.writer.open_windows()
        first, slots, ahead = before.oldest, before.read_range(before.oldest, before.committed), before.copy_open()
        self.ring = self.new_ring()
        self.ring.restore_slots(first, np.array_split(slots, [len(slots) // 2 // self.num_envs * self.num_envs]), ahead)
        self.writer = self.new_writer()
        if is_exact:
            self.writer.reopen_windows(*windows)
        self.writer.begin(self.time)
        if not is_exact:
            self.rows = self.complete
            self.obs, self.is_over = self.new_obs(), np.zeros(self.num_envs, np.bool_)

    def check(self) -> None:
        expected = self.complete[-self.ring.num_transitions :] if self.ring.num_transitions else []
        assert self.ring.num_transitions >= min(len(self.complete), self.most)
        assert self.ring.num_transitions <= self.most + self.num_envs
        columns = [
            [*row.obs, *row.action, np.float32(row.reward), np.float32(row.discount), float(row.flags[0])]
            + [*(row.next_obs if row.next_obs is not None else ())]
            for row in expected
        ]
        wanted = np.array(columns, np.float32).reshape(-1, layout_of(self.dtype).next_obs.stop)
        assert np.array_equal(rows_in(self.ring), wanted)
        ring = self.ring
        slots = np.concatenate(ring.spans(ring.oldest, ring.end)) if ring.end > ring.oldest else np.empty((0, 1))
        index = np.arange(ring.committed - ring.oldest)
        if len(index):
            plain = transitions_of(slots, index, ring.layout, self.num_envs)
            assert plain[:, -3:-1].tolist() == [[float(flag) for flag in row.flags] for row in expected]
            assert np.array_equal(plain[:, PLAIN.next_obs], wanted[:, ring.layout.next_obs])


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


def test_a_row_takes_its_observation_and_the_next_is_not_stored_with_it() -> None:
    layout = RowLayout(17, 6)
    before = TransitionLayout(17, 6).width * 4
    assert (layout.nbytes, before) == (104, 176)
    per_row = ReplayRing.nbytes_for(1_000_000, layout, 1, 1) / 1_000_000
    assert per_row <= 0.6 * before + 0.1


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
    words, scene.ring._words = scene.ring._words, Dying(scene.ring._words, left)  # type: ignore[assignment]
    try:
        scene.step(0.2, 0.0)
    except InterruptedError:
        scene.rows = before
    scene.ring._words = words
    scene.restart()
    after = rows_in(scene.ring).tolist()
    assert [row for row in after if row in rows] == rows[len(rows) - len([row for row in after if row in rows]) :]
    assert len(after) >= len(rows) - 2
    for _ in range(4):
        scene.step(0.2, 0.0)
    assert scene.ring.num_transitions == len(rows_in(scene.ring))


def test_slots_without_a_transition_are_never_called_one() -> None:
    ring = make_ring(10)
    ring.write(np.zeros((0, 1), np.float32), np.ones((1, OBS_DIM), np.float32))
    ring.break_off()
    assert (ring.committed, ring.num_transitions, len(rows_in(ring))) == (1, 0, 0)


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


def test_observations_of_bytes_take_a_byte_each_and_come_back_as_numbers() -> None:
    layout = RowLayout(obs_dim=10, action_dim=1, obs_dtype="uint8")
    assert (layout.nbytes, RowLayout(10, 1).nbytes) == (4 * (3 + 1 + 3), 4 * (10 + 1 + 3))


def plain_rows(count: int, rng: np.random.Generator, num_envs: int) -> np.ndarray:
    """Transitions as older checkpoints hold them, most of which go on where the one N before ended."""
    rows = rng.integers(0, 200, (count, PLAIN.width)).astype(np.float32)
    rows[:, -3:-1] = rng.integers(0, 2, (count, 2))
    goes_on = rng.random(count) < 0.8
    for index in range(num_envs, count):
        if goes_on[index]:
            rows[index, PLAIN.obs] = rows[index - num_envs, PLAIN.next_obs]
    return rows


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("count", [1, 7, 60])
def test_transitions_become_slots_and_those_transitions_again(num_envs: int, dtype: str, count: int) -> None:
    rows = plain_rows(count, np.random.default_rng(count), num_envs)
    slots = slots_of(rows, layout_of(dtype), num_envs)
    found = transitions_of(slots, np.arange(len(slots) - num_envs), layout_of(dtype), num_envs)
    assert np.array_equal(found, rows)
    if num_envs == 1 and count == 60:
        assert len(slots) < 1.5 * count


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
    slots, ahead = scene.ring.read_range(0, 12), scene.ring.copy_open()
    change(slots)
    with pytest.raises(CheckpointError, match=message):
        make_ring(20).restore_slots(0, [slots], ahead)


def test_saved_slots_of_another_number_of_environments_are_refused() -> None:
    with pytest.raises(CheckpointError, match="not those of 2 environments"):
        make_ring(20, num_envs=2).restore_slots(
            0, [np.zeros((3, RowLayout(OBS_DIM, ACTION_DIM).slot_width), np.float32)], np.empty(0)
        )


def test_a_fresh_observation_is_that_of_a_transition() -> None:
    scene, seen = Scene(np.random.default_rng(3), 2, 1, 50, "float32"), deque[list[float]]()
    for _ in range(10):
        scene.step(0.3, 0.0)
    seen.extend(row.obs.tolist() for row in scene.rows)
    assert scene.ring.read_obs(0, scene.ring.committed, OBS_DIM).tolist() == list(seen)
