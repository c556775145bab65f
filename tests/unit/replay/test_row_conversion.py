"""Rows of older checkpoints, and of another number of environments, in a ring of today."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from offpolicy.checkpoint import Checkpoint, CheckpointStore
from offpolicy.errors import CheckpointError
from offpolicy.replay import row_conversion
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_conversion import (
    restore_ring,
    restored_ends,
    slots_of,
    transitions_of,
    why_rows_differ,
)
from offpolicy.replay.row_layout import RowLayout
from offpolicy.replay.row_saver import RowSaver
from tests.replay_scene import PLAIN, Scene, layout_of, make_ring, rows_in

OLDER_CHECKPOINTS = Path(__file__).parents[2] / "older_checkpoints"
NO_SLOTS = np.empty((0, layout_of("float32").slot_width), np.float32)


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


def older(root: Path, rows: np.ndarray, layout: int, first: int = 0) -> Checkpoint:
    """A checkpoint of layout 2 or 3 with these rows."""
    with CheckpointStore(root).begin(1000) as draft:
        draft.add_json("state", {"replay_first": [first], "replay_end": [first + len(rows)], "has_replay": True})
        if layout == 2:
            draft.add_rows("replay-0", [rows])
        else:
            half = len(rows) // 2
            draft.add_rows(f"replay-0-{first:015d}", [rows[:half]])
            draft.add_rows(f"replay-0-{first + half:015d}", [rows[half:]])
    assert draft.saved is not None
    return draft.saved


def as_batch(rows: np.ndarray, dtype: str = "float32") -> np.ndarray:
    """Transitions in the columns of a batch."""
    layout = layout_of(dtype)
    batch = np.zeros((len(rows), layout.next_obs.stop), np.float32)
    batch[:, layout.obs], batch[:, layout.next_obs] = rows[:, PLAIN.obs], rows[:, PLAIN.next_obs]
    batch[:, layout.action], batch[:, layout.reward] = rows[:, PLAIN.action], rows[:, PLAIN.reward]
    batch[:, layout.terminated], batch[:, layout.discount] = rows[:, -3], rows[:, -1]
    return batch


@pytest.mark.parametrize("layout", [2, 3])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("most", [50, 20])
def test_a_ring_holds_the_newest_rows_of_an_older_checkpoint(
    tmp_path: Path, layout: int, num_envs: int, most: int
) -> None:
    rows = plain_rows(43, np.random.default_rng(0), num_envs)
    found = older(tmp_path, rows, layout, first=7)
    ring = bigger_ring(most, num_envs)
    restore_ring(ring, found, 0)
    kept = ring.num_transitions
    assert min(most, 43) <= kept < most + num_envs
    assert np.array_equal(rows_in(ring), as_batch(rows)[-kept:])
    assert [ring.committed] == restored_ends(found, num_envs)
    assert why_rows_differ(found, num_envs) == "its replay is of an older layout"


@pytest.mark.parametrize("layout", [2, 3])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_rows_of_a_pendulum_saved_by_a_version_of_that_time_obey_its_equations(layout: int, num_envs: int) -> None:
    """Gymnasium's Pendulum-v1: cos, sin and speed of the angle; torque of up to 2; a step of 0.05 s."""
    found = CheckpointStore(OLDER_CHECKPOINTS / f"layout_{layout}" / "checkpoints").at(330)
    columns = RowLayout(obs_dim=3, action_dim=1)
    memory = memoryview(bytearray(ReplayRing.room_for(200, columns, num_envs, 1)))
    ring = ReplayRing(memory, columns, 200, num_envs=num_envs)
    restore_ring(ring, found, 0)
    rows = rows_in(ring).astype(np.float64)
    assert len(rows) == 200
    obs, next_obs, torque = rows[:, columns.obs], rows[:, columns.next_obs], 2 * rows[:, columns.action][:, 0]
    angle = np.arctan2(obs[:, 1], obs[:, 0])
    speed = np.clip(obs[:, 2] + (15 * obs[:, 1] + 3 * torque) * 0.05, -8, 8)
    moved = np.stack([np.cos(angle + speed * 0.05), np.sin(angle + speed * 0.05), speed], axis=1)
    assert np.allclose(next_obs, moved, atol=1e-4)
    assert np.allclose(rows[:, columns.reward], -(angle**2 + 0.1 * obs[:, 2] ** 2 + 0.001 * torque**2), atol=1e-4)
    assert np.allclose(rows[:, columns.discount], 0.99)
    assert not rows[:, columns.terminated].any()


def bigger_ring(most: int, num_envs: int, n_step: int = 1) -> ReplayRing:
    memory = memoryview(bytearray(ReplayRing.room_for(most, layout_of("float32"), num_envs, n_step)))
    return ReplayRing(memory, layout_of("float32"), most, num_envs=num_envs, n_step=n_step)


def saved(root: Path, scene: Scene) -> Checkpoint:
    """A checkpoint of today with the rows of a scene."""
    ring, saver = scene.ring, RowSaver([scene.ring])
    with CheckpointStore(root).begin(1000) as draft:
        numbers = {"replay_first": [ring.oldest], "replay_end": [ring.committed], "replay_envs": scene.num_envs}
        draft.add_json("state", {**numbers, "replay_written": [ring.num_written], "has_replay": True})
        saver.capture().write(draft)
    assert draft.saved is not None
    return draft.saved


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_ring_of_which_an_older_checkpoint_has_no_rows_stays_empty(tmp_path: Path, num_envs: int) -> None:
    found, ring = older(tmp_path, plain_rows(0, np.random.default_rng(0), 1), 2), bigger_ring(30, num_envs)
    restore_ring(ring, found, 0)
    assert [ring.committed, ring.num_transitions] == [*restored_ends(found, num_envs), 0] == [0, 0]


def test_slots_of_which_none_is_a_transition_are_converted(tmp_path: Path) -> None:
    slots, ring = np.zeros((4, layout_of("float32").slot_width), np.float32), bigger_ring(30, 3)
    with CheckpointStore(tmp_path).begin(1000) as draft:
        numbers = {"replay_first": [0], "replay_end": [4], "replay_envs": 2, "replay_written": [0]}
        draft.add_json("state", {**numbers, "has_replay": True})
        draft.add_rows("replay-0-000000000000000", [slots])
    assert draft.saved is not None
    restore_ring(ring, draft.saved, 0)
    assert [ring.committed] == restored_ends(draft.saved, 3)
    assert ring.num_transitions == 0


@pytest.mark.parametrize("is_older", [True, False])
def test_rows_are_converted_without_holding_all_of_them(
    tmp_path: Path, is_older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of a restore is the ring and a few blocks, however many rows were saved."""
    monkeypatch.setattr(row_conversion, "BLOCK_ROWS", 256)
    if is_older:
        found = older(tmp_path, plain_rows(20_000, np.random.default_rng(0), 1), 3)
    else:
        scene = Scene(np.random.default_rng(5), 2, 3, 20_000, "float32")
        scene.ring.restore_slots(0, [slots_of(plain_rows(20_000, scene.rng, 2), layout_of("float32"), 2)], NO_SLOTS)
        found = saved(tmp_path, scene)
    nbytes = sum(record.size for name, record in found.files.items() if name.startswith("replay"))
    ring = bigger_ring(20_000, 3)
    tracemalloc.start()
    try:
        restore_ring(ring, found, 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ring.num_transitions >= 20_000
    assert peak < nbytes / 4


@pytest.mark.parametrize("num_envs", [2, 3])
def test_saved_rows_are_restored_and_those_of_another_number_of_environments_too(tmp_path: Path, num_envs: int) -> None:
    scene = Scene(np.random.default_rng(5), 2, 3, 30, "float32")
    for _ in range(60):
        scene.step(0.1, 0.0)
    found, expected = saved(tmp_path, scene), rows_in(scene.ring)
    ring = bigger_ring(30, num_envs, 3)
    restore_ring(ring, found, 0)
    kept = min(ring.num_transitions, len(expected))
    assert kept >= 30 - num_envs
    assert np.array_equal(rows_in(ring)[-kept:], expected[-kept:])
    assert why_rows_differ(found, num_envs) == ("" if num_envs == 2 else "env.num_envs changed from 2 to 3")
    if num_envs == 2:
        assert (ring.oldest, ring.num_written) == (scene.ring.oldest, scene.ring.num_written)


def test_rows_of_more_environments_than_there_are_slots_are_refused(tmp_path: Path) -> None:
    scene = Scene(np.random.default_rng(5), 2, 1, 30, "float32")
    for _ in range(5):
        scene.step(0.0, 0.0)
    found = saved(tmp_path, scene)
    state = found.path / "state.json"
    state.write_text(state.read_text().replace('"replay_envs": 2', '"replay_envs": 9'))
    with pytest.raises(CheckpointError, match="ends in an observation beyond them"):
        restore_ring(bigger_ring(30, 2), found, 0)


def test_observations_behind_the_last_row_that_are_missing_are_noticed(tmp_path: Path) -> None:
    scene = Scene(np.random.default_rng(5), 1, 1, 30, "float32")
    for _ in range(5):
        scene.step(0.0, 0.0)
    with CheckpointStore(tmp_path).begin(1000) as draft:
        draft.add_json("state", {"replay_first": [0], "replay_end": [5], "replay_envs": 1, "has_replay": True})
        draft.add_rows("replay-0-000000000000000", [scene.ring.read_range(0, 5)])
    assert draft.saved is not None
    with pytest.raises(CheckpointError, match="end in an observation beyond row 5"):
        restore_ring(make_ring(30), draft.saved, 0)
