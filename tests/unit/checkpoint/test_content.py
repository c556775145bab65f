"""What a checkpoint holds comes back as it was saved: tensors, JSON, rows of the replay, the state of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.checkpoint import Checkpoint, CheckpointStore, SharedState, read_replay
from offpolicy.checkpoint.content import fingerprint, segment_name
from offpolicy.config.schema import RunConfig
from offpolicy.errors import CheckpointError
from offpolicy.types import SpaceSpec
from tests.fakes import shared_state

SPEC = SpaceSpec(3, 1, (-1.0,), (1.0,))


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def test_tensors_come_back_bit_for_bit(store: CheckpointStore) -> None:
    saved: dict[str, Any] = {"transposed": np.arange(6.0).reshape(2, 3).T, "other order": np.arange(3, dtype=">f4")}
    for dtype in ("bool", "int64", "float32"):
        saved[dtype] = np.arange(6).reshape(2, 3).astype(dtype)
        saved[f"scalar {dtype}"], saved[f"empty {dtype}"] = np.ones((), dtype), np.zeros((0, 4), dtype)
    with store.begin(1) as draft:
        draft.add_tensors("model", saved)
    loaded = store.at(1).tensors("model")
    assert loaded.keys() == saved.keys()
    for key, tensor in saved.items():
        np.testing.assert_array_equal(loaded[key], tensor, strict=key != "other order")


def test_row_blocks_come_back_joined_and_read_only(store: CheckpointStore) -> None:
    ring = np.arange(100 * 6, dtype=np.float32).reshape(100, 6)
    with store.begin(1) as draft:
        draft.add_rows("replay", [ring[60:, :3], ring[:60, :3]])
    loaded = store.at(1).rows("replay", 3)
    np.testing.assert_array_equal(loaded, np.concatenate([ring[60:, :3], ring[:60, :3]]))
    with pytest.raises(ValueError, match="read-only"):
        loaded[0, 0] = 1.0


@pytest.mark.parametrize("value", [float("nan"), {1, 2}])
def test_what_json_cannot_hold_is_refused_and_nothing_is_left(store: CheckpointStore, value: object) -> None:
    with pytest.raises((ValueError, TypeError)), store.begin(2) as draft:
        draft.add_json("best", {"value": value})
    assert store.steps() == set()


def test_the_state_of_another_version_is_refused_by_file_and_name(store: CheckpointStore) -> None:
    with store.begin(1) as draft:
        draft.add_json("state", shared_state(1) | {"later": 1})
    with pytest.raises(CheckpointError, match=r"000001/state\.json: not what this version writes: .*'later'"):
        store.at(1).read(SharedState, "state")


def checkpoint(store: CheckpointStore, ranges: tuple[tuple[int, int], ...]) -> Checkpoint:
    """Rows of one column that carry their index."""
    with store.begin(1) as draft:
        draft.add_json("state", shared_state(1, replay_first=[1], replay_end=[9], replay_written=[9]))
        for first, end in ranges:
            draft.add_rows(segment_name(0, first), [np.arange(first, end, dtype=np.float32).reshape(-1, 1)])
    return store.at(1)


def test_segments_are_joined_and_recycled_rows_left_out(store: CheckpointStore) -> None:
    saved = checkpoint(store, ((0, 3), (3, 5), (5, 9)))
    found = read_replay(saved, 0, 1)
    assert found is not None
    assert (found.first, [block.flatten().tolist() for block in found.blocks]) == (1, [[1, 2], [3, 4], [5, 6, 7, 8]])
    assert read_replay(saved, 1, 1) is None  # a ring that the run did not have


def fingerprint_of(**sections: Any) -> dict[str, Any]:
    return fingerprint(RunConfig.from_mapping(sections), SPEC)


def test_a_fingerprint_changes_with_networks_and_rows_and_with_nothing_else() -> None:
    for algo in ({"name": "td3"}, {"hidden_dims": [64]}, {"n_step": 3}, {"gamma": 0.9}):
        assert fingerprint_of(algo=algo) != fingerprint_of(), algo
    for algo in ({"actor_lr": 1e-3}, {"tau": 0.1}, {"batch_size": 64}):
        assert fingerprint_of(algo=algo) == fingerprint_of(), algo
