"""What a checkpoint that is being written takes, and what it remembers of files that it shares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from offpolicy.checkpoint import Checkpoint, Draft
from offpolicy.checkpoint.manifest import FileRecord
from offpolicy.errors import SaveError
from offpolicy.files import Disk

RECORD = FileRecord(3, "0" * 64)


@pytest.fixture
def draft(tmp_path: Path) -> Draft:
    (tmp_path / "draft").mkdir()
    return Draft(tmp_path / "draft", 40, Disk())


def checkpoint(path: Path) -> Checkpoint:
    path.mkdir()
    (path / "old.f32").write_text("old")
    return Checkpoint(20, path, {"old.f32": RECORD})


def test_each_kind_of_content_is_a_file_of_its_format(draft: Draft) -> None:
    draft.add_tensors("learner", {"weight": np.zeros(2, np.float32)})
    draft.add_json("state", {"env_steps": 40})
    draft.add_rows("replay-0", [np.zeros((2, 3), np.float32), np.ones((1, 3), np.float32)])
    assert sorted(path.name for path in draft.path.iterdir()) == ["learner.safetensors", "replay-0.f32", "state.json"]
    assert (draft.path / "replay-0.f32").stat().st_size == 3 * 3 * 4
    assert draft.linked == {}


def test_a_linked_file_is_the_same_file_and_keeps_its_record_under_its_new_name(draft: Draft, tmp_path: Path) -> None:
    other = checkpoint(tmp_path / "step-000000000020")
    draft.add_link("new.f32", other, "old.f32")
    assert (draft.path / "new.f32").samefile(other.path / "old.f32")
    assert draft.linked == {"new.f32": RECORD}


def test_a_checkpoint_that_got_its_name_back_meanwhile_is_found(draft: Draft, tmp_path: Path) -> None:
    other = checkpoint(tmp_path / ".replaced-step-000000000020")
    other.path.rename(tmp_path / "step-000000000020")
    draft.add_link("new.f32", other, "old.f32")
    assert (draft.path / "new.f32").read_text() == "old"


def test_a_file_that_cannot_be_linked_is_a_failed_save_that_names_it(draft: Draft, tmp_path: Path) -> None:
    other = checkpoint(tmp_path / "step-000000000020")
    (other.path / "old.f32").unlink()
    with pytest.raises(SaveError, match=r"step-000000000020/old\.f32"):
        draft.add_link("new.f32", other, "old.f32")
    assert draft.linked == {}
