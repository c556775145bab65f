"""Rows of older checkpoints, and of another number of environments, in a ring of today."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from offpolicy.checkpoint import Checkpoint, CheckpointStore
from offpolicy.errors import CheckpointError
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_conversion import (
    restore_ring,
    restored_ends,
    why_rows_differ,
)
from offpolicy.replay.row_saver import RowSaver
from tests.replay_scene import PLAIN, Scene, layout_of, make_ring, rows_in


def plain_rows(count: int, rng: np.random.Generator, num_envs: int) -> np.ndarray:
    """Transitions as older checkpoints hold them, most of which go on where the one N before ended."""
    rows = rng.integers(0, 200, (count, PLAIN.width)).astype(np.float32)
    rows[:, -3:-1] = rng.integers(0, 2, (count, 2))
    goes_on = rng.random(count) < 0.8
    for index in range(num_envs, count):
        if goes_on[index]:
            rows[index, PLAIN.obs] = rows[index - num_envs, PLAIN.next_obs]
    return rows


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
