"""What a saved checkpoint holds, when it exists, what replaces and removes it, and what a refusing disk does to it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from offpolicy.checkpoint import Checkpoint, CheckpointStore
from offpolicy.checkpoint import store as store_module
from offpolicy.checkpoint.manifest import verify_digests
from offpolicy.errors import CheckpointError, SaveError
from tests.disks import WatchedDisk


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def save(store: CheckpointStore, env_steps: int, tag: int = 0) -> None:
    with store.begin(env_steps) as draft:
        draft.add_tensors("model", {"weight": np.full((3, 2), tag, np.float32)})
        draft.add_json("state", {"tag": tag})
        draft.add_rows("replay", [np.full((5, 4), tag, np.float32)])


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


class FailingDisk(WatchedDisk):
    """Raises the error at the operation of this number."""

    def __init__(self, fail_at: int, error: int) -> None:
        self.num_ops = 0
        self._fail_at, self._error = fail_at, error

    def watch(self, kind: str, path: Path, new: Path | None = None, content: bytes = b"") -> None:
        self.num_ops += 1
        if self.num_ops == self._fail_at:
            if kind == "write":
                path.write_bytes(b"torn")
            raise OSError(self._error, os.strerror(self._error), str(path))


class NotedDisk(WatchedDisk):
    """Notes its operations."""

    def __init__(self) -> None:
        self.ops: list[str] = []

    def watch(self, kind: str, path: Path, new: Path | None = None, content: bytes = b"") -> None:
        self.ops.append(f"{kind} {path.name}")


def num_ops_of_a_save(root: Path) -> int:
    """The operations of the third save, the first one that also expires a checkpoint."""
    prepare(root)
    disk = FailingDisk(0, 0)
    save(CheckpointStore(root, 2, disk), 300)
    return disk.num_ops


def error_of_a_save(store: CheckpointStore, env_steps: int) -> SaveError | None:
    try:
        save(store, env_steps)
    except SaveError as error:
        return error
    return None


def prepare(root: Path) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    for env_steps in (100, 200):
        save(CheckpointStore(root, 2), env_steps, tag=env_steps)


def test_a_checkpoint_that_its_run_removes_while_it_is_read_is_not_called_damaged(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any of them may go: in the time that it takes to read one, the run that goes on saves others."""
    running = CheckpointStore(root, keep=2)
    for env_steps in (10, 20):
        save(running, env_steps)

    def read_late(checkpoint: Checkpoint, **options: bool) -> None:
        if checkpoint.env_steps == 20:
            for env_steps in (30, 40):
                save(running, env_steps)
        verify_digests(checkpoint, **options)

    monkeypatch.setattr(store_module, "verify_digests", read_late)
    store = CheckpointStore(root)
    newest = store.newest_valid()
    assert newest is not None
    assert (newest.env_steps, newest.has_lost_rows, store.rejected) == (40, False, [])


def test_an_exception_in_the_draft_removes_it_and_escapes(root: Path) -> None:
    store = CheckpointStore(root)
    save(store, 1)

    def interrupted_save() -> None:
        with store.begin(2) as draft:
            draft.add_json("state", 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_save()
    assert names(root) == ["latest", "step-000000000001"]


def test_a_second_save_of_a_step_replaces_the_first(root: Path) -> None:
    store = CheckpointStore(root)
    save(store, 5, tag=1)
    save(store, 5, tag=2)
    assert store.at(5).json("state") == {"tag": 2}
    assert names(root) == ["latest", "step-000000000005"]


def test_a_damaged_replacement_gives_way_to_the_first_save(root: Path) -> None:
    save(CheckpointStore(root), 5, tag=1)
    (root / "step-000000000005").rename(root / ".replaced-step-000000000005")
    save_beside(root, 5, tag=2)
    (root / "step-000000000005" / "state.json").write_text("{}")
    store = CheckpointStore(root)
    newest = store.newest_valid()
    assert newest is not None
    assert newest.json("state") == {"tag": 1}
    save(store, 6)
    assert store.at(5).json("state") == {"tag": 1}


def test_a_replaced_checkpoint_goes_only_when_the_name_of_the_new_one_is_durable(root: Path) -> None:
    save(CheckpointStore(root), 5, tag=1)
    (root / "step-000000000005").rename(root / ".replaced-step-000000000005")
    save_beside(root, 5, tag=2)
    save(CheckpointStore(root, disk=(disk := NotedDisk())), 6)
    assert "fsync_dir checkpoints" in disk.ops[: disk.ops.index("rename .replaced-step-000000000005")]


def save_beside(root: Path, env_steps: int, tag: int) -> None:
    """Save into another root and move the result here: no clean-up of this root."""
    other = root.with_name("other")
    save(CheckpointStore(other), env_steps, tag)
    name = f"step-{env_steps:012d}"
    (other / name).rename(root / name)


def test_a_missing_step_is_refused(root: Path) -> None:
    save(CheckpointStore(root), 5)
    with pytest.raises(CheckpointError, match="got env step 6, allowed 5$"):
        CheckpointStore(root).at(6)


def test_the_newest_ones_are_kept(root: Path) -> None:
    store = CheckpointStore(root, keep=3)
    for env_steps in (10, 20, 30, 40, 50):
        save(store, env_steps)
    assert names(root) == ["latest", "step-000000000030", "step-000000000040", "step-000000000050"]


def test_damaged_checkpoints_do_not_count_as_kept(root: Path) -> None:
    store = CheckpointStore(root, keep=2)
    save(store, 10)
    save(store, 20)
    (root / "step-000000000020" / "model.safetensors").write_bytes(b"short")
    save(store, 30)
    assert names(root) == ["latest", "step-000000000010", "step-000000000020", "step-000000000030"]
    save(store, 40)
    assert names(root) == ["latest", "step-000000000030", "step-000000000040"]


def test_foreign_names_are_neither_loaded_nor_removed(root: Path) -> None:
    foreign = ["step-1", "step-0000000000001", "step-000000000001.bak", "xstep-000000000001", ".tmp-mine", "best"]
    for name in foreign:
        (root / name).mkdir(parents=True)
    store = CheckpointStore(root, keep=2)
    for env_steps in (1, 2, 3):
        save(store, env_steps)
    assert names(root) == sorted([*foreign, "latest", "step-000000000002", "step-000000000003"])
    assert store.rejected == []


def test_the_next_save_removes_what_a_dead_writer_left(root: Path) -> None:
    (root / (".tmp-" + "0" * 32)).mkdir(parents=True)
    (root / (".tmp-" + "0" * 32) / "model.safetensors").write_bytes(b"torn")
    (root / (".tmp-" + "1" * 32)).write_text("step-000000000009\n")
    assert CheckpointStore(root).newest_valid() is None
    assert len(names(root)) == 2  # reading never removes anything: the reader may not own the run
    save(CheckpointStore(root), 10)
    assert names(root) == ["latest", "step-000000000010"]


@pytest.mark.promise("no-broken-checkpoint", "full-disk")
def test_a_failure_at_any_operation_leaves_the_older_checkpoints_and_no_rest(tmp_path: Path) -> None:
    failures, warnings = 0, 0
    for fail_at in range(1, num_ops_of_a_save(tmp_path / "count" / "checkpoints") + 1):
        root = tmp_path / str(fail_at) / "checkpoints"
        prepare(root)
        store = CheckpointStore(root, 2, FailingDisk(fail_at, errno.ENOSPC))
        error = error_of_a_save(store, 300)
        if error is not None:
            failures += 1
            assert str(tmp_path) in str(error)
            assert "No space left on device" in str(error)
            assert store.at(200).json("state") == {"tag": 200}
            assert store.at(100).json("state") == {"tag": 100}
            assert not [name for name in names(root) if name.startswith(".")]
        else:
            warnings += 1
            assert "No space left on device" in "".join(store.warnings)
            assert store.at(300)
        save(store, 400)  # the next interval tries again
        assert store.newest_valid() == store.at(400)
        assert store.rejected == []
    assert failures > 10
    assert warnings == 6  # latest: write, fsync, rename; retention: rename, fsync, remove


def test_a_file_taken_over_is_neither_written_nor_read_and_is_verified_at_the_load(root: Path) -> None:
    store = CheckpointStore(root)
    save(store, 100, tag=7)
    base = store.at(100)
    with store.begin(200) as draft:
        draft.add_link("rows.f32", base, "replay.f32")
    assert draft.saved is not None
    assert draft.saved.files["rows.f32"] == base.files["replay.f32"]
    assert (root / "step-000000000200" / "rows.f32").samefile(root / "step-000000000100" / "replay.f32")
    flip(root / "step-000000000200" / "rows.f32")
    assert CheckpointStore(root).newest_valid() is None
    with pytest.raises(CheckpointError, match=r"rows\.f32: expected sha256"):
        CheckpointStore(root).at(200)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def test_damaged_rows_of_all_checkpoints_do_not_cost_the_networks(root: Path) -> None:
    store, segment = CheckpointStore(root), "replay-0-000000000000000"
    for env_steps in (100, 200):
        base = store.newest_valid()
        with store.begin(env_steps) as draft:
            draft.add_json("state", {"has_replay": True})
            if base is None:
                draft.add_rows(segment, [np.zeros((3, 2), np.float32)])
            else:
                draft.add_link(f"{segment}.f32", base, f"{segment}.f32")
    flip(root / "step-000000000100" / f"{segment}.f32")
    store = CheckpointStore(root)
    found = store.newest_valid()
    assert found is not None
    assert (found.env_steps, found.has_lost_rows, list(found.files)) == (200, True, ["state.json"])
    assert store.rejected[0].endswith("using step-000000000200 without the rows of the replay")
    assert store.at(200) == found
    assert [checkpoint.env_steps for checkpoint in store.usable()] == [200, 100]
    flip(root / "step-000000000200" / "state.json")
    assert CheckpointStore(root).at(100).has_lost_rows
    with pytest.raises(CheckpointError):
        CheckpointStore(root).at(200)


@pytest.mark.parametrize("damaged", ["replay-0-000000000000000", "ahead-0"])
def test_damage_in_any_file_of_rows_costs_the_rows_only(root: Path, damaged: str) -> None:
    """`ahead`: what the last rows refer to."""
    with CheckpointStore(root).begin(100) as draft:
        draft.add_json("state", {"has_replay": True})
        draft.add_rows("replay-0-000000000000000", [np.zeros((3, 2), np.float32)])
        draft.add_rows("ahead-0", [np.zeros((1, 2), np.float32)])
    flip(root / "step-000000000100" / f"{damaged}.f32")
    with_rows, without = CheckpointStore(root).newest_valid(), CheckpointStore(root).newest_valid(reads_rows=False)
    assert with_rows is not None
    assert without is not None
    assert (with_rows.has_lost_rows, list(with_rows.files)) == (True, ["state.json"])
    assert not without.has_lost_rows
    assert CheckpointStore(root).at(100).has_lost_rows
    assert not CheckpointStore(root).at(100, reads_rows=False).has_lost_rows


def test_a_checkpoint_that_got_its_name_back_since_can_be_taken_over(root: Path) -> None:
    store = CheckpointStore(root)
    save(store, 100)
    (root / "step-000000000100").rename(root / ".replaced-step-000000000100")
    base = store.at(100)
    base.path.rename(root / "step-000000000100")
    with store.begin(200) as draft:
        draft.add_link("rows.f32", base, "replay.f32")
    assert store.at(200).rows("rows", 4).shape == (5, 4)
