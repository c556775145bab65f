"""Rows saved by increments: which are linked, which are written, and while the ring goes on being filled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from offpolicy.checkpoint import Checkpoint, CheckpointStore, read_replay
from offpolicy.errors import SaveError
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_saver import CapturedRing, RowSaver
from tests.fakes import shared_state
from tests.replay_scene import NUMBERED, append, numbered_ring

WIDTH = NUMBERED.slot_width


class Saved:
    """A store, a ring and their saver; each save is of the number of rows written so far."""

    def __init__(self, root: Path, ring: ReplayRing, copied_rows: int = 100, small_rows: int = 0) -> None:
        self.ring, self.store = ring, CheckpointStore(root)
        self.saver = RowSaver([ring], copied_rows * 4 * WIDTH, small_rows * 4 * WIDTH)

    def capture(self) -> tuple[list[CapturedRing], dict[str, object]]:
        first, end = [self.ring.oldest], [self.ring.committed]
        return self.saver.capture(), shared_state(replay_first=first, replay_end=end, replay_written=end)

    def commit(self, captured: tuple[list[CapturedRing], dict[str, object]], env_steps: int) -> Checkpoint:
        rows, state = captured
        with self.store.begin(env_steps) as draft:
            draft.add_json("state", state)
            self.saver.write(rows, draft)
        assert draft.saved is not None
        self.saver.continue_after(draft.saved)
        return draft.saved

    def save(self) -> Checkpoint:
        return self.commit(self.capture(), self.ring.committed)

    def indices(self, checkpoint: Checkpoint) -> list[int]:
        found = read_replay(self.store.at(checkpoint.env_steps), 0, WIDTH)
        assert found is not None
        rows = np.concatenate(found.blocks)
        assert rows[0, 0] == found.first
        return rows[:, 0].astype(int).tolist()


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path / "checkpoints", numbered_ring(10))


def segments(checkpoint: Checkpoint) -> list[str]:
    return sorted(name for name in checkpoint.files if name.startswith("replay-"))


def test_a_save_writes_the_new_rows_only_and_holds_all(saved: Saved) -> None:
    append(saved.ring, 4)
    first = saved.save()
    append(saved.ring, 3)
    second = saved.save()
    assert segments(second) == ["replay-0-000000000000000.f32", "replay-0-000000000000004.f32"]
    assert saved.indices(second) == list(range(7))
    old, new = (second.path / name for name in segments(second))
    assert old.samefile(first.path / old.name)
    assert new.stat().st_size == 3 * 4 * WIDTH


def test_the_newest_file_grows_until_it_is_no_longer_small(tmp_path: Path) -> None:
    saved, held, written = Saved(tmp_path, numbered_ring(100), small_rows=5), list[list[str]](), list[int]()
    for _ in range(6):
        append(saved.ring, 2)
        newest = saved.save()
        held.append([name[-6:-4] for name in segments(newest)])
        new = [newest.path / name for name in segments(newest) if (newest.path / name).stat().st_nlink == 1]
        written.append(sum(path.stat().st_size for path in new) // (4 * WIDTH))
        assert saved.indices(newest) == list(range(saved.ring.committed))
    assert held == [["00"], ["00"], ["00"], ["00", "06"], ["00", "06"], ["00", "06"]]
    assert written == [2, 4, 6, 2, 4, 6]


def test_a_checkpoint_outlives_the_one_whose_rows_it_took_over_and_leaves_recycled_segments_behind(
    saved: Saved,
) -> None:
    for count in (4, 4, 4, 4):
        append(saved.ring, count)
        newest = saved.save()
    assert [path.name[-2:] for path in sorted(newest.path.parent.glob("step-*"))] == ["12", "16"]
    assert saved.indices(newest) == list(range(6, 16))  # the ring holds ten
    assert segments(newest) == [f"replay-0-{first:015d}.f32" for first in (4, 8, 12)]


def test_rows_of_the_instant_are_saved_while_the_ring_is_filled(tmp_path: Path) -> None:
    saved = Saved(tmp_path, numbered_ring(10), copied_rows=4)
    append(saved.ring, 8)
    captured = saved.capture()
    append(saved.ring, 6)  # recycles the rows 0 to 3, which were copied
    assert saved.indices(saved.commit(captured, 8)) == list(range(8))


def test_it_says_when_a_row_is_about_to_be_lost_and_refuses_a_save_that_lost_one(tmp_path: Path) -> None:
    saved = Saved(tmp_path, numbered_ring(10), copied_rows=4)
    append(saved.ring, 8)
    captured = saved.capture()
    append(saved.ring, 3)
    assert not saved.saver.must_be_written_soon(captured[0])
    append(saved.ring, 1)  # two more and row 4 would be recycled
    assert saved.saver.must_be_written_soon(captured[0])
    append(saved.ring, 3)
    with pytest.raises(SaveError, match="replay rows from 4 on were recycled before the disk had taken them"):
        saved.commit(captured, 8)
    assert saved.indices(saved.save()) == list(range(5, 15))
    assert not saved.saver.must_be_written_soon(saved.saver.capture())


def test_without_the_files_it_would_take_over_it_writes_all_rows(saved: Saved) -> None:
    append(saved.ring, 4)
    first = saved.save()
    (first.path / segments(first)[0]).unlink()
    append(saved.ring, 2)
    second = saved.save()
    assert segments(second) == ["replay-0-000000000000000.f32"]
    assert saved.indices(second) == list(range(6))


def test_rows_that_were_recycled_meanwhile_are_missed_only_where_the_files_of_the_base_are_gone(saved: Saved) -> None:
    append(saved.ring, 8)
    first = saved.save()
    append(saved.ring, 2)
    captured = saved.capture()
    append(saved.ring, 3)
    (first.path / segments(first)[0]).unlink()
    with pytest.raises(SaveError, match="replay rows from 0 on were recycled"):
        saved.commit(captured, 10)
    assert saved.indices(saved.save()) == list(range(3, 13))


def test_a_run_that_goes_on_takes_over_the_rows_it_restored(saved: Saved) -> None:
    append(saved.ring, 7)
    first = saved.save()
    ring, rows = numbered_ring(10), read_replay(first, 0, WIDTH)
    assert rows is not None
    ring.restore_slots(*rows)
    again = Saved(first.path.parent, ring)
    again.saver.continue_after(first)
    append(ring, 5)
    second = again.save()
    assert segments(second) == ["replay-0-000000000000000.f32", "replay-0-000000000000007.f32"]
    assert again.indices(second) == list(range(2, 12))


def test_a_run_whose_rows_were_damaged_writes_all_of_them(saved: Saved) -> None:
    append(saved.ring, 7)
    first = saved.save()
    path = first.path / segments(first)[0]
    path.write_bytes(bytes(path.stat().st_size))
    base = saved.store.newest_valid()
    assert base is not None
    assert base.has_lost_rows
    again = Saved(first.path.parent, numbered_ring(10))
    again.saver.continue_after(base)
    append(again.ring, 9)
    second = again.save()
    assert segments(second) == ["replay-0-000000000000000.f32"]
    assert again.indices(second) == list(range(9))
