"""The manifest of a checkpoint, which lists the size and digest of every file, and its fingerprint.

Files that the manifest does not list are ignored: they are never opened, and a stray file of the operator's must
not invalidate a checkpoint. Files of a suffix other than `SUFFIXES` are refused, at the save and at the load.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offpolicy.checkpoint.formats import (
    JSON,
    JSON_BYTES,
    ROWS,
    SUFFIXES,
    TENSORS,
    Array,
    is_plain_name,
    read_json,
    read_rows,
    read_tensors,
)
from offpolicy.config.parsing import plain
from offpolicy.config.schema import RunConfig, plugins_of
from offpolicy.errors import CheckpointError
from offpolicy.files import Disk
from offpolicy.types import Float32, SpaceSpec

MANIFEST = "MANIFEST.json"
FORMAT = 1  # version of the manifest and of the set of files
PLUGINS_KEY = "plug-ins"  # of the fingerprint, with their versions: another version is said, not refused
MAX_ENV_STEPS = 10**12 - 1  # the directory name has twelve digits

SEGMENT = re.compile(r"replay-([0-9]+)-([0-9]{15})\.f32")  # consecutive rows of a ring, see `replay_rows.py`
_OF_REPLAY = re.compile(r"(replay-[0-9]+-[0-9]{15}|ahead-[0-9]+)\.f32")  # all files of rows
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """The size in bytes and the digest of one file."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A validated checkpoint. Its readers raise `CheckpointError`."""

    env_steps: int
    path: Path
    files: Mapping[str, FileRecord]
    has_lost_rows: bool = False  # True if rows of the replay are damaged, and none of them is used

    def has(self, name: str) -> bool:
        """True if a file of this name was saved, in any of the three formats."""
        return any(name + suffix in self.files for suffix in SUFFIXES)

    def tensors(self, name: str) -> dict[str, Array]:
        """Returns what `add_tensors(name, ...)` saved."""
        return read_tensors(self._file(name + TENSORS))

    def json(self, name: str, most_bytes: int | None = JSON_BYTES) -> Any:  # Any: a JSON value
        """Returns what `add_json(name, ...)` saved, of at most `most_bytes`; None: of any size."""
        return read_json(self._file(name + JSON), most_bytes)

    def rows(self, name: str, width: int) -> Float32:
        """Returns what `add_rows(name, ...)` saved: [rows, width], mapped read-only."""
        return read_rows(self._file(name + ROWS), width)

    def _file(self, file_name: str) -> Path:
        if file_name not in self.files:
            raise CheckpointError(f"{self.path}: holds no {file_name}, only {', '.join(sorted(self.files))}")
        return self.path / file_name


def seal(directory: Path, env_steps: int, disk: Disk, linked: Mapping[str, FileRecord]) -> Checkpoint:
    """Makes every file of a draft durable and writes its manifest.

    The files `linked` from another checkpoint are durable, and are recorded as they are in its manifest. Raises
    `OSError`, and `ValueError` for a file that no checkpoint may hold.
    """
    files: dict[str, FileRecord] = {}
    for path in sorted(directory.iterdir()):
        if not _is_allowed(path.name) or not stat.S_ISREG(path.lstat().st_mode):
            raise ValueError(f"{path}: a checkpoint holds only {', '.join(SUFFIXES)} files, and no pickle")
        if path.name in linked:
            files[path.name] = linked[path.name]
            continue
        disk.fsync(path)
        files[path.name] = _record(path)
    listed = {name: {"size": file.size, "sha256": file.sha256} for name, file in files.items()}
    content = json.dumps({"format": FORMAT, "env_steps": env_steps, "files": listed}, indent=1).encode()
    disk.write(directory / MANIFEST, [content])
    disk.fsync(directory / MANIFEST)
    disk.fsync_dir(directory)
    return Checkpoint(env_steps, directory, files)


def open_checkpoint(path: Path, env_steps: int) -> Checkpoint:
    """Returns the checkpoint at `path` after its manifest and the sizes of its files were checked, but no digest.

    Raises `CheckpointError` naming the first bad file, what was expected and what was got.
    """
    checkpoint = _listed_checkpoint(path, env_steps)
    _check_sizes(checkpoint)
    return checkpoint


def open_without_rows(path: Path, env_steps: int) -> Checkpoint:
    """Returns the checkpoint at `path` without the rows of the replay, after every byte of the rest was checked.

    Checkpoints share the files of rows: a damage in one of them must not cost the networks too. Raises
    `CheckpointError`, also where there are no such files.
    """
    listed = _listed_checkpoint(path, env_steps)
    files = {name: record for name, record in listed.files.items() if not _OF_REPLAY.fullmatch(name)}
    if len(files) == len(listed.files):
        raise CheckpointError(f"{path}: holds no rows that it could do without")
    checkpoint = replace(listed, files=files, has_lost_rows=True)
    _check_sizes(checkpoint)
    verify_digests(checkpoint)
    return checkpoint


def _listed_checkpoint(path: Path, env_steps: int) -> Checkpoint:
    """Returns the checkpoint as its manifest lists it, with no look at its files. Raises `CheckpointError`."""
    content = read_json(path / MANIFEST)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        got = content.get("format") if isinstance(content, dict) else content
        raise CheckpointError(f"{path / MANIFEST}: expected format {FORMAT}, got {got!r:.40}, of another version")
    got = content.get("env_steps")
    if got != env_steps:
        raise CheckpointError(f"{path / MANIFEST}: expected env_steps {env_steps}, got {got!r:.40}")
    listed = content.get("files")
    if not isinstance(listed, dict):
        raise CheckpointError(f"{path / MANIFEST}: expected a mapping of files, got {listed!r:.40}")
    return Checkpoint(env_steps, path, {name: _listed(path, name, entry) for name, entry in listed.items()})


def _check_sizes(checkpoint: Checkpoint) -> None:
    for name, expected in checkpoint.files.items():
        size = _file_size(checkpoint.path / name)
        if size != expected.size:
            raise CheckpointError(f"{checkpoint.path / name}: expected {expected.size} bytes, got {size}")


def verify_digests(checkpoint: Checkpoint, *, reads_rows: bool = True) -> None:
    """Reads every byte, or all but the rows. Raises `CheckpointError` naming the first bad file and both digests."""
    for name, expected in checkpoint.files.items():
        if not reads_rows and _OF_REPLAY.fullmatch(name):
            continue
        try:
            got = _record(checkpoint.path / name)
        except OSError as error:
            raise CheckpointError(f"{checkpoint.path / name}: {error}") from error
        if got.sha256 != expected.sha256:
            raise CheckpointError(f"{checkpoint.path / name}: expected sha256 {expected.sha256}, got {got.sha256}")


def _listed(path: Path, name: str, entry: Any) -> FileRecord:  # Any: not checked yet
    """Returns one entry of the manifest. Raises `CheckpointError` for a name that leads out of the directory."""
    if not _is_allowed(name):
        raise CheckpointError(f"{path / MANIFEST}: expected plain {', '.join(SUFFIXES)} names, got {name!r:.120}")
    size, sha256 = (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if type(size) is not int or size < 0 or not isinstance(sha256, str) or not _DIGEST.fullmatch(sha256):
        raise CheckpointError(f"{path / MANIFEST}: expected size and sha256 of {name}, got {entry!r:.120}")
    return FileRecord(size, sha256)


def _is_allowed(name: str) -> bool:
    return is_plain_name(name) and Path(name).suffix in SUFFIXES and name != MANIFEST


def _file_size(path: Path) -> int:
    """Returns the size of a regular file; a link could lead anywhere."""
    try:
        status = path.lstat()
    except OSError as error:
        raise CheckpointError(f"{path}: expected a file, got {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path}: expected a regular file, got mode {stat.filemode(status.st_mode)}")
    return status.st_size


def _record(path: Path) -> FileRecord:
    with path.open("rb", buffering=0) as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileRecord(file.tell(), digest.hexdigest())


OWN_OPTIONS = {  # of algorithms, which decide the shape or the meaning of what is learnt
    "hora": ("stage", "latent_dim", "encoder_dims"),
    "flashsac": ("actor_width", "critic_width", "num_blocks", "num_bins", "value_max", "scale_reward"),
}


def fingerprint(cfg: RunConfig, spec: SpaceSpec) -> dict[str, Any]:
    """Returns, as JSON data, what must be equal for a checkpoint to fit a configuration."""
    algo = cfg.algo
    own = {"rollout.length": cfg.rollout.length, "algo.normalize_value": algo.normalize_value}
    rollouts = own if algo.learns_from_rollouts else {}
    own_names = {f"algo.{name}": plain(getattr(algo, name)) for name in OWN_OPTIONS.get(algo.name, ())}
    used = [plugin.label for plugin in plugins_of(cfg)]
    return {
        **({PLUGINS_KEY: used} if used else {}),
        **rollouts,
        **own_names,
        "algo.name": algo.name,
        "algo.hidden_dims": list(algo.hidden_dims),
        "algo.activation": algo.activation,
        "algo.critic_layer_norm": algo.critic_layer_norm,
        "algo.normalize_obs": algo.normalize_obs,
        "algo.n_step": algo.n_step,
        "algo.gamma": algo.gamma,
        "env observation size": spec.obs_dim,
        "env action size": spec.num_actions or list(spec.nvec) or spec.action_dim,
    }
