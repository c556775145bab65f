"""Random episodes of several environments in a replay ring, and what must be read from it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from offpolicy.checkpoint import Checkpoint, read_replay
from offpolicy.collect.replay_writer import BadRowError, ReplayWriter
from offpolicy.replay.demonstrations import Demonstrations
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_layout import IS_TERMINATED, IS_TRUNCATED, OFFSET_SHIFT, RowLayout
from offpolicy.replay.sampler import Sampler
from offpolicy.types import PolicyOutput, StepOutcome

OBS_DIM, ACTION_DIM, GAMMA = 3, 2, 0.5


def layout_of(dtype: str) -> RowLayout:
    return RowLayout(OBS_DIM, ACTION_DIM, dtype)


def memory_of(most: int, num_envs: int, n_step: int, dtype: str, slots: int = 0) -> memoryview:
    """Room for so many transitions, and for more slots."""
    layout = layout_of(dtype)
    return memoryview(bytearray(ReplayRing.nbytes_for(most, layout, num_envs, n_step) + slots * layout.nbytes))


def make_ring(most: int, *, num_envs: int = 1, n_step: int = 1, dtype: str = "float32") -> ReplayRing:
    memory = memory_of(most, num_envs, n_step, dtype)
    return ReplayRing(memory, layout_of(dtype), most, num_envs=num_envs, n_step=n_step)


NUMBERED = RowLayout(obs_dim=2, action_dim=1)  # of rings whose rows encode their index


def numbered_slots(start: int, count: int, layout: RowLayout = NUMBERED) -> np.ndarray:
    """Slots of one environment that hold their index in every column, and whose episode never ends."""
    slots = np.arange(start, start + count, dtype=np.float32)[:, None].repeat(layout.slot_width, axis=1)
    slots.view(np.uint32)[:, -1] = 1 << OFFSET_SHIFT
    return slots


def numbered_ring(capacity: int, count: int = 0, kind: type[ReplayRing] = ReplayRing) -> ReplayRing:
    """A ring that keeps `capacity` rows of `NUMBERED`, after `count` of them were written."""
    memory = memoryview(bytearray(ReplayRing.nbytes_for(capacity, NUMBERED, 1, 1)))
    ring = kind(memory, NUMBERED, capacity, num_envs=1)
    append(ring, count)
    return ring


def append(ring: ReplayRing, count: int) -> None:
    """Writes the next rows; each ends in the observation of the one after it."""
    slots = numbered_slots(ring.committed, count + 1)
    ring.begin()
    ring.write(slots[:0, 2:], slots[:1, :2])
    for index in range(count):
        ring.write(slots[index : index + 1, 2:], slots[index + 1 : index + 2, :2])


class World:
    """Rings of `NUMBERED` rows, one per collector, with the gate and the agreed env steps of a batch source."""

    def __init__(self, num_rings: int = 1, capacity: int = 4096, count: int = 11) -> None:
        self.rings = [numbered_ring(capacity, count) for _ in range(num_rings)]

    @property
    def env_steps(self) -> int:
        return sum(ring.committed for ring in self.rings)

    def collect(self, count: int) -> None:
        for ring in self.rings:
            append(ring, count)

    def wait_for(self, env_steps: int) -> None: ...

    def grant(self, env_steps: int) -> None: ...

    def sampler(self, guard: int = 0, demos: Demonstrations | None = None) -> Sampler:
        return Sampler(self.rings, np.random.default_rng(0), guard, demos=demos)


CPU = torch.device("cpu")
NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
devices = pytest.mark.parametrize(
    "device", [CPU, pytest.param(torch.device("cuda", 0), marks=[pytest.mark.gpu, NO_CUDA], id="cuda")]
)


def numbers_of(rows: np.ndarray) -> np.ndarray:
    """The indices of rows of a batch [..., W]; each row must be whole."""
    index = rows[..., 0]
    next_obs = rows[..., NUMBERED.next_obs]
    assert (rows[..., : NUMBERED.terminated] == index[..., None]).all()
    assert ((next_obs == index[..., None] + 1) & (rows[..., NUMBERED.terminated, None] == 0)).all()
    return index.astype(np.int64)


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
        self.writer.begin()
        self.obs = self.new_obs()
        self.is_over = np.zeros(self.num_envs, np.bool_)

    def new_ring(self) -> ReplayRing:
        room = 2 * self.most + 40 * self.num_envs  # for the shortest episodes, and for what a resume breaks off
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
            self.writer.write(self.obs, PolicyOutput(action, None, 0), outcome)
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

    def renew(self) -> None:
        """The environments are made again: new episodes begin, and open rows are dropped."""
        self.writer.abandon(range(self.num_envs))
        self.rows = [row for row in self.rows if not row.is_open]
        self.obs, self.is_over = self.new_obs(), np.zeros(self.num_envs, np.bool_)

    def resume(self, *, is_exact: bool) -> None:
        """Rows and open windows are saved and restored, exactly or with new episodes."""
        before, windows = self.ring, self.writer.open_windows()
        first, committed = before.oldest, before.committed
        slots, ahead = before.read_range(first, committed), before.copy_open()
        self.ring = self.new_ring()
        self.ring.restore_slots(first, np.array_split(slots, [len(slots) // 2 // self.num_envs * self.num_envs]), ahead)
        self.writer = self.new_writer()
        if is_exact:
            self.writer.reopen_windows(*windows)
        self.writer.begin()
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
        slots = (
            np.concatenate(ring.spans(ring.oldest, ring.end))
            if ring.end > ring.oldest
            else np.empty((0, 1), np.float32)
        )
        if num_rows := ring.committed - ring.oldest:
            plain = transitions_of(slots, num_rows, ring.layout, self.num_envs)
            assert plain[:, -3:-1].tolist() == [[float(flag) for flag in row.flags] for row in expected]
            assert np.array_equal(plain[:, OBS_DIM : 2 * OBS_DIM], wanted[:, ring.layout.next_obs])


def transitions_of(slots: np.ndarray, num_rows: int, layout: RowLayout, num_envs: int) -> np.ndarray:
    """The transitions among the first slots, as obs, next_obs, action, reward, terminated, truncated, discount."""
    codes = slots.view(np.uint32)[:num_rows, -1]
    index = np.flatnonzero(codes)
    code = codes[index]
    obs = slots.view(layout.obs_dtype)[:, : layout.obs_dim]
    next_obs = obs[index + (code >> OFFSET_SHIFT).astype(np.int64) * num_envs]
    flags = [code & IS_TERMINATED != 0, code & IS_TRUNCATED != 0]
    columns = [obs[index], next_obs, slots[index, layout.obs_words : -2], *flags, slots[index, -2]]
    return np.column_stack(columns).astype(np.float32)


def saved_transitions(checkpoint: Checkpoint, ring: int, layout: RowLayout, num_envs: int) -> np.ndarray | None:
    """The transitions of a ring in a checkpoint; None if none were saved."""
    found = read_replay(checkpoint, ring, layout.slot_width)
    if found is None:
        return None
    slots = np.concatenate([*found.blocks, found.ahead])
    return transitions_of(slots, len(slots) - len(found.ahead), layout, num_envs)
