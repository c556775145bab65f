"""The rows of a replay as a checkpoint lists them: complete, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.checkpoint import Checkpoint, CheckpointStore, read_replay
from offpolicy.checkpoint.replay_rows import has_replay, segment_name
from offpolicy.errors import CheckpointError

RANGES = ((0, 3), (3, 5), (5, 9))


def checkpoint(root: Path, ranges: tuple[tuple[int, int], ...], **state: Any) -> Checkpoint:
    """Rows of one column that carry their index."""
    with CheckpointStore(root).begin(1) as draft:
        numbers = {"replay_first": [1], "replay_end": [9], "replay_written": [9]}
        draft.add_json("state", {**numbers, "has_replay": True, **state})
        for first, end in ranges:
            draft.add_rows(segment_name(0, first), [np.arange(first, end, dtype=np.float32).reshape(-1, 1)])
    return CheckpointStore(root).at(1)


def test_segments_are_joined_and_recycled_rows_left_out(tmp_path: Path) -> None:
    found = read_replay(checkpoint(tmp_path, RANGES), 0, 1)
    assert found is not None
    assert (found.first, [block.flatten().tolist() for block in found.blocks]) == (1, [[1, 2], [3, 4], [5, 6, 7, 8]])


@pytest.mark.parametrize(
    ("ranges", "problem"),
    [
        (RANGES[1:], "expected replay 0 from row 1 on, got it from 3 on"),
        (RANGES[:2], "expected replay 0 up to row 9, got it up to 5"),
        ((RANGES[0], RANGES[2]), "000005.f32: expected to begin with row 3"),
        ((), "expected replay 0 from row 1 on, got it from 9 on"),
    ],
)
def test_missing_rows_are_named(tmp_path: Path, ranges: tuple[tuple[int, int], ...], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        read_replay(checkpoint(tmp_path, ranges), 0, 1)


def test_a_ring_that_the_run_did_not_have_has_no_rows(tmp_path: Path) -> None:
    assert read_replay(checkpoint(tmp_path, RANGES), 1, 1) is None


def test_rows_that_were_not_saved_are_not_missed(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, (), has_replay=False)
    assert not has_replay(found)
    assert read_replay(found, 0, 1) is None


def test_a_replay_without_a_row_was_saved_all_the_same(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, (), replay_first=[0], replay_end=[0])
    assert has_replay(found)
    assert read_replay(found, 0, 1) is None
