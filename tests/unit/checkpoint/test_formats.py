"""What tensors, JSON values and rows look like after a save and a load, and what cannot be saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from offpolicy.checkpoint import CheckpointStore, write_json
from offpolicy.checkpoint.formats import read_json
from offpolicy.errors import CheckpointError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def save(store: CheckpointStore, env_steps: int) -> None:
    with store.begin(env_steps) as draft:
        draft.add_tensors("model", {"weight": np.zeros((3, 2), np.float32)})
        draft.add_json("state", {"tag": 0})
        draft.add_rows("replay", [np.zeros((5, 4), np.float32)])


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@pytest.mark.parametrize("dtype", ["bool", "int64", "float32", ">f4"])
def test_tensors_come_back_bit_for_bit(root: Path, dtype: str) -> None:
    store = CheckpointStore(root)
    saved = {
        "matrix": np.arange(6).reshape(2, 3).astype(dtype),
        "scalar": np.ones((), dtype),
        "none": np.zeros((0, 4), dtype),
    }
    with store.begin(1) as draft:
        draft.add_tensors("model", saved)
    loaded = store.at(1).tensors("model")
    assert loaded.keys() == saved.keys()
    for key, tensor in saved.items():
        np.testing.assert_array_equal(loaded[key], tensor, strict=dtype != ">f4")


def test_a_transposed_view_is_not_saved_scrambled(root: Path) -> None:
    store = CheckpointStore(root)
    with store.begin(1) as draft:
        draft.add_tensors("model", {"weight": np.arange(6.0).reshape(2, 3).T})
    assert store.at(1).tensors("model")["weight"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_row_blocks_come_back_joined_and_read_only(root: Path) -> None:
    store = CheckpointStore(root)
    ring = np.arange(100 * 6, dtype=np.float32).reshape(100, 6)
    with store.begin(1) as draft:
        draft.add_rows("replay", [ring[60:, :3], ring[:60, :3]])
    loaded = store.at(1).rows("replay", 3)
    np.testing.assert_array_equal(loaded, np.concatenate([ring[60:, :3], ring[:60, :3]]))
    with pytest.raises(ValueError, match="read-only"):
        loaded[0, 0] = 1.0


def test_rows_of_another_width_are_refused(root: Path) -> None:
    store = CheckpointStore(root)
    save(store, 1)
    with pytest.raises(CheckpointError, match=r"replay\.f32: 80 bytes are no whole number of rows of 3 float32"):
        store.at(1).rows("replay", 3)


def test_files_of_another_writer_are_part_of_the_checkpoint(root: Path) -> None:
    store = CheckpointStore(root)
    with store.begin(1) as draft:
        write_json(draft.path, "collector-0", {"episode": 7})
    checkpoint = store.at(1)
    assert checkpoint.has("collector-0")
    assert not checkpoint.has("collector-1")
    assert checkpoint.json("collector-0") == {"episode": 7}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, np.float32(1.0)])
def test_what_json_cannot_hold_is_refused_and_nothing_is_left(root: Path, value: object) -> None:
    store = CheckpointStore(root)
    save(store, 1)
    with pytest.raises(ValueError, match=r"best\.json"), store.begin(2) as draft:
        draft.add_json("best", {"value": value})
    assert names(root) == ["latest", "step-000000000001"]


@pytest.mark.parametrize("number", ["1e999", "NaN"])
def test_a_number_that_is_not_finite_is_refused_when_read(tmp_path: Path, number: str) -> None:
    (tmp_path / "a.json").write_text(f'{{"value": [{number}]}}')
    with pytest.raises(CheckpointError, match=f"got {number}, allowed finite numbers"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("name", ["../model", "", ".hidden"])
def test_names_that_lead_elsewhere_are_refused(root: Path, name: str) -> None:
    with pytest.raises(ValueError, match="allowed letters"), CheckpointStore(root).begin(1) as draft:
        draft.add_json(name, 1)


@pytest.mark.parametrize("name", ["model.pt", ".metadata", "MANIFEST.json"])
def test_a_foreign_file_in_the_draft_fails_the_save(root: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: a checkpoint holds only"), CheckpointStore(root).begin(1) as draft:
        (draft.path / name).write_bytes(b"x")
    assert names(root) == []
