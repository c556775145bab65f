"""Damaged checkpoints: an older one is used, the culprit is named, nothing is ever executed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.checkpoint import CheckpointStore
from offpolicy.checkpoint.manifest import fingerprint
from offpolicy.config.schema import RunConfig
from offpolicy.errors import CheckpointError
from offpolicy.types import SpaceSpec

FILES = ("MANIFEST.json", "model.safetensors", "state.json", "replay.f32")
OLD, NEW = "step-000000000100", "step-000000000200"
SPEC = SpaceSpec(3, 1, (-1.0,), (1.0,))
HORA = {"algo": {"name": "hora"}, "runner": {"name": "appo"}}


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


def test_a_checkpoint_under_the_name_of_another_falls_back(root: Path) -> None:
    shutil.rmtree(root / NEW)
    shutil.copytree(root / OLD, root / NEW)
    assert_falls_back(root, "MANIFEST.json: expected env_steps 200, got 100")


def test_a_flipped_bit_is_reported_with_both_digests(root: Path) -> None:
    expected = hashlib.sha256((root / NEW / "replay.f32").read_bytes()).hexdigest()
    with (root / NEW / "replay.f32").open("r+b") as file:
        file.write(b"\x01")
    got = hashlib.sha256((root / NEW / "replay.f32").read_bytes()).hexdigest()
    assert_falls_back(root, f"replay.f32: expected sha256 {expected}, got {got}")


def test_when_nothing_is_left_it_says_so(root: Path) -> None:
    for name in (OLD, NEW):
        (root / name / "state.json").unlink()
    store = CheckpointStore(root)
    assert store.newest_valid() is None
    assert [text.rsplit("; ", 1)[1] for text in store.rejected] == ["no usable checkpoint is left"] * 2
    with pytest.raises(CheckpointError, match=r"step-000000000100/state\.json: expected a file"):
        store.at(100)


# --- wrong content under a manifest whose sizes and digests are right


def forge(root: Path, contents: dict[str, bytes], **manifest: object) -> Path:
    """A checkpoint 200 of other content than a save writes, with the right sizes and digests."""
    path = root / NEW
    shutil.rmtree(path)
    path.mkdir()
    listed = {}
    for name, content in contents.items():
        listed[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        if "/" not in name:
            (path / name).write_bytes(content)
    entries = {"format": 1, "env_steps": 200, "files": listed, **manifest}
    (path / "MANIFEST.json").write_text(json.dumps(entries))
    return path


def pickle_bomb(canary: Path) -> bytes:
    """A protocol-0 pickle that makes a file when it is loaded."""
    return f"cos\nsystem\n(S'touch {canary}'\ntR.".encode()


@pytest.mark.parametrize("name", ["model.pt", "model.pkl", ".metadata"])
def test_a_pickle_file_is_refused_unopened(root: Path, tmp_path: Path, name: str) -> None:
    forge(root, {name: pickle_bomb(tmp_path / "canary")})
    assert_falls_back(root, f"got '{name}'")
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


@pytest.mark.parametrize("name", ["../evil.json", "/etc/evil.json", "", "x\x00.json"])
def test_names_that_leave_the_directory_are_refused(root: Path, name: str) -> None:
    (root / "evil.json").write_text("{}")
    forge(root, {}, files={name: {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}})
    assert_falls_back(root, "expected plain")


def test_a_link_out_of_the_directory_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"{}")
    path = forge(root, {"state.json": b"{}"})
    (path / "state.json").unlink()
    (path / "state.json").symlink_to(tmp_path / "secret")
    assert_falls_back(root, "state.json: expected a regular file")


@pytest.mark.parametrize("version", [2, None])
def test_an_unknown_format_is_refused(root: Path, version: object) -> None:
    forge(root, {"state.json": b"{}"}, format=version)
    assert_falls_back(root, f"MANIFEST.json: expected format 1, got {version!r}, of another version")


@pytest.mark.parametrize(
    "entry",
    [None, {}, {"size": -1, "sha256": "0" * 64}, {"size": 2, "sha256": "0"}],
)
def test_a_malformed_entry_is_refused(root: Path, entry: object) -> None:
    forge(root, {}, files={"state.json": entry})
    assert_falls_back(root, "expected size and sha256 of state.json")


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_manifest_that_is_none_is_refused(root: Path, content: bytes) -> None:
    (root / NEW / "MANIFEST.json").write_bytes(content)
    assert_falls_back(root, "MANIFEST.json")


def test_a_tensor_that_points_past_the_file_is_refused(root: Path) -> None:
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1 << 30], "data_offsets": [0, 4 << 30]}}).encode()
    forge(root, {"model.safetensors": len(header).to_bytes(8, "little") + header + bytes(8)})
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a readable safetensors file"):
        CheckpointStore(root).at(200).tensors("model")


def fingerprint_of(**sections: Any) -> dict[str, Any]:
    return fingerprint(RunConfig.from_mapping(sections), SPEC)


def test_a_fingerprint_is_json_data() -> None:
    """A run with MultiDiscrete actions could never be resumed: a tuple is no list."""
    found = fingerprint(RunConfig.from_mapping(HORA), dataclasses.replace(SPEC, nvec=(3, 2, 4)))
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("algo", [{"name": "td3"}, {"hidden_dims": [64]}, {"n_step": 3}, {"gamma": 0.9}])
def test_what_changes_networks_or_rows_changes_the_fingerprint(algo: dict[str, Any]) -> None:
    assert fingerprint_of(algo=algo) != fingerprint_of()


@pytest.mark.parametrize("algo", [{"actor_lr": 1e-3}, {"tau": 0.1}, {"batch_size": 64}])
def test_what_changes_only_the_training_keeps_the_fingerprint(algo: dict[str, Any]) -> None:
    assert fingerprint_of(algo=algo) == fingerprint_of()
