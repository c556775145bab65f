"""Damaged checkpoints: an older one is used, the culprit is named, nothing is ever executed."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from offpolicy.checkpoint import CheckpointStore
from offpolicy.errors import CheckpointError

FILES = ("MANIFEST.json", "model.safetensors", "state.json", "replay.f32")
OLD, NEW = "step-000000000100", "step-000000000200"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two checkpoints; every content differs between them."""
    root = tmp_path / "checkpoints"
    store = CheckpointStore(root)
    for env_steps in (100, 200):
        with store.begin(env_steps) as draft:
            draft.add_tensors("model", {"weight": np.arange(500, dtype=np.float32) + env_steps})
            draft.add_json("state", {"env_steps": env_steps, "rng": list(range(env_steps))})
            draft.add_rows("replay", [np.full((100, 4), env_steps, np.float32)])
    return root


def assert_falls_back(root: Path, *expected: str) -> None:
    store = CheckpointStore(root)
    newest = store.newest_valid()
    assert newest is not None
    assert newest.json("state")["env_steps"] == 100
    assert len(store.rejected) == 1
    for text in (NEW, f"using {OLD} instead", *expected):
        assert text in store.rejected[0]


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def flip(content: bytes, rng: random.Random) -> bytes:
    position = rng.randrange(len(content))
    return content[:position] + bytes([content[position] ^ 1 << rng.randrange(8)]) + content[position + 1 :]


def extend(content: bytes, rng: random.Random) -> bytes:
    return content + rng.randbytes(rng.randint(1, 9))


@pytest.mark.promise("no-broken-checkpoint")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [cut, flip, extend])
def test_damage_at_any_offset_falls_back_and_names_the_file(
    root: Path, name: str, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    path = root / NEW / name
    intact = path.read_bytes()
    for seed in range(20):
        path.write_bytes(damage(intact, random.Random(seed)))
        # A damaged manifest may show as a mismatch of the file it speaks of.
        assert_falls_back(root, *([] if name == "MANIFEST.json" else [f"{NEW}/{name}: expected", "got"]))


@pytest.mark.promise("no-broken-checkpoint")
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_empty_or_of_another_checkpoint_falls_back(root: Path, name: str) -> None:
    shutil.copy(root / OLD / name, root / NEW / name)
    assert_falls_back(root, f"{NEW}/{name}: expected")
    (root / NEW / name).write_bytes(b"")
    assert_falls_back(root, f"{NEW}/{name}")
    (root / NEW / name).unlink()
    assert_falls_back(root, f"{NEW}/{name}", "No such file")


# --- wrong content under a manifest whose sizes and digests are right


def forge(root: Path, contents: dict[str, bytes], **manifest: object) -> Path:
    """A checkpoint 200 of other content than a save writes, with the right sizes and digests."""
    path = root / NEW
    shutil.rmtree(path)
    path.mkdir()
    listed = {}
    for name, content in contents.items():
        listed[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (path / name).write_bytes(content)
    entries = {"format": 1, "env_steps": 200, "files": listed, **manifest}
    (path / "MANIFEST.json").write_text(json.dumps(entries))
    return path


def pickle_bomb(canary: Path) -> bytes:
    """A protocol-0 pickle that makes a file when it is loaded."""
    return f"cos\nsystem\n(S'touch {canary}'\ntR.".encode()


def test_a_pickle_file_is_refused_unopened_and_never_saved(root: Path, tmp_path: Path) -> None:
    for name in ("model.pt", "model.pkl", ".metadata"):
        forge(root, {name: pickle_bomb(tmp_path / "canary")})
        assert_falls_back(root, f"got '{name}'")
        with (
            pytest.raises(ValueError, match=f"{name}: a checkpoint holds only"),
            CheckpointStore(root).begin(300) as draft,
        ):
            (draft.path / name).write_bytes(b"x")
    assert not (tmp_path / "canary").exists()


def test_a_pickle_dressed_as_safetensors_or_json_is_refused(root: Path, tmp_path: Path) -> None:
    bomb = pickle_bomb(tmp_path / "canary")
    forge(root, {"model.safetensors": bomb, "state.json": bomb})
    checkpoint = CheckpointStore(root).at(200)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        checkpoint.tensors("model")
    with pytest.raises(CheckpointError, match=r"state\.json: not readable JSON"):
        checkpoint.json("state")
    assert not (tmp_path / "canary").exists()


def test_names_and_links_that_leave_the_directory_are_refused(root: Path, tmp_path: Path) -> None:
    (root / "evil.json").write_text("{}")
    for name in ("../evil.json", "/etc/evil.json", "", "x\x00.json"):
        forge(root, {}, files={name: {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}})
        assert_falls_back(root, "expected plain")
    path = forge(root, {"state.json": b"{}"})
    (path / "state.json").unlink()
    (path / "state.json").symlink_to(root / "evil.json")
    assert_falls_back(root, "state.json: expected 2 bytes")


def test_a_manifest_that_is_none_or_of_another_version_is_refused(root: Path) -> None:
    for version in (2, None):
        forge(root, {"state.json": b"{}"}, format=version)
        assert_falls_back(root, f"MANIFEST.json: expected format 1, got {version!r}, of another version")
    for entry in (None, {}, {"size": 2}):
        forge(root, {}, files={"state.json": entry})
        assert_falls_back(root, "MANIFEST.json: it lists no files with size and sha256")
    for content in (b"[]", b"{", b"\xff"):
        (root / NEW / "MANIFEST.json").write_bytes(content)
        assert_falls_back(root, "MANIFEST.json")
