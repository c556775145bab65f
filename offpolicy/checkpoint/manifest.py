"""A checkpoint as its manifest lists it: safetensors, JSON and raw float32 rows, each with its size and digest.

None of the three formats can execute anything. A file that the manifest does not list is never opened: a stray file of
the operator's must not invalidate a checkpoint. Nothing is fsynced before `seal`, which does that for every file, also
for those that a collector has written into the draft.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from offpolicy import fault
from offpolicy.errors import CheckpointError, SaveError
from offpolicy.files import Disk
from offpolicy.types import Float32

Array = NDArray[Any]  # Any: tensors of every dtype
Content = TypeVar("Content")

MANIFEST = "MANIFEST.json"
FORMAT = 1  # version of the manifest and of the set of files
TENSORS, JSON, ROWS = ".safetensors", ".json", ".f32"

# Names that lead nowhere else, of files that can execute nothing.
_ALLOWED = re.compile(r"(?!MANIFEST)[A-Za-z0-9][A-Za-z0-9_.-]*\.(safetensors|json|f32)")
_OF_REPLAY = re.compile(r"(replay-[0-9]+-[0-9]{15}|ahead-[0-9]+)\.f32")  # all files of rows, see `content.py`


class FileRecord(NamedTuple):
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
        return any(name + suffix in self.files for suffix in (TENSORS, JSON, ROWS))

    def tensors(self, name: str) -> dict[str, Array]:
        """Returns what `add_tensors(name, ...)` saved."""
        path = self._file(name + TENSORS)
        try:
            return safetensors.numpy.load_file(path)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise CheckpointError(f"{path}: not a readable safetensors file: {error}") from error

    def json(self, name: str) -> Any:  # Any: a JSON value
        """Returns what `add_json(name, ...)` saved."""
        return _read_json(self._file(name + JSON))

    def read(self, kind: type[Content], name: str) -> Content:
        """Returns a JSON file as the dataclass whose fields it holds."""
        try:
            return kind(**self.json(name))
        except TypeError as error:
            raise CheckpointError(f"{self.path / name}{JSON}: not what this version writes: {error}") from error

    def rows(self, name: str, width: int) -> Float32:
        """Returns what `add_rows(name, ...)` saved: [rows, width], mapped read-only."""
        path = self._file(name + ROWS)
        num_rows = self.files[path.name].size // (4 * width)
        try:
            if num_rows == 0:  # an empty file cannot be mapped
                return np.empty((0, width), dtype="<f4")
            return np.memmap(path, dtype="<f4", mode="r", shape=(num_rows, width))
        except OSError as error:
            raise CheckpointError(f"{path}: {error}") from error

    def _file(self, file_name: str) -> Path:
        if file_name not in self.files:
            raise CheckpointError(f"{self.path}: holds no {file_name}, only {', '.join(sorted(self.files))}")
        return self.path / file_name


def make_part(directory: Path) -> Path:
    """Returns a directory, made empty, for a process's part of a checkpoint. Raises `SaveError`."""
    shutil.rmtree(directory, ignore_errors=True)  # left by a save that failed
    try:
        fault.hit("snapshot.mkdir")
        directory.mkdir()
    except OSError as error:
        raise save_error(directory, error) from error
    return directory


def write_tensors(directory: Path, name: str, tensors: Mapping[str, Array], disk: Disk | None = None) -> None:
    """Writes `<name>.safetensors`. Raises `SaveError`."""
    # safetensors copies from the base pointer and ignores strides: a transposed view would be saved scrambled.
    dense = {key: np.asarray(tensor, order="C") for key, tensor in tensors.items()}
    write_file(directory / f"{name}{TENSORS}", [safetensors.numpy.save(dense)], disk)


def write_json(directory: Path, name: str, value: Any, disk: Disk | None = None) -> None:  # Any: a JSON value
    """Writes `<name>.json`. Raises `SaveError`; as `json.dumps` for NaN, Inf and what JSON does not have."""
    write_file(directory / f"{name}{JSON}", [json.dumps(value, allow_nan=False).encode()], disk)


def write_file(path: Path, blocks: Iterable[bytes | memoryview], disk: Disk | None) -> None:
    """Writes a file of blocks, each taken when those before it are written. Raises `SaveError`."""
    try:
        (disk or Disk()).write(path, blocks)
    except OSError as error:
        raise save_error(path, error) from error


def save_error(path: Path, error: OSError) -> SaveError:
    """Returns the error of a refused save: what could not be written, and why."""
    cause = os.strerror(error.errno) if error.errno is not None else str(error)
    return SaveError(f"{path}: {cause}; the older checkpoints are untouched")


def seal(directory: Path, env_steps: int, disk: Disk, linked: Mapping[str, FileRecord]) -> Checkpoint:
    """Makes every file of a draft durable and writes its manifest.

    The files `linked` from another checkpoint are durable, and are recorded as they are in its manifest. Raises
    `OSError`, and `ValueError` for a file that no checkpoint may hold.
    """
    files: dict[str, FileRecord] = {}
    for path in sorted(directory.iterdir()):
        if not _ALLOWED.fullmatch(path.name):
            raise ValueError(f"{path}: a checkpoint holds only {TENSORS}, {JSON} and {ROWS} files, and no pickle")
        if path.name not in linked:
            disk.fsync(path)
        files[path.name] = linked.get(path.name) or _record(path)
    listed = {name: file._asdict() for name, file in files.items()}
    content = json.dumps({"format": FORMAT, "env_steps": env_steps, "files": listed}, indent=1).encode()
    disk.write(directory / MANIFEST, [content])
    disk.fsync(directory / MANIFEST)
    disk.fsync_dir(directory)
    return Checkpoint(env_steps, directory, files)


def open_checkpoint(path: Path, env_steps: int, *, has_rows: bool = True) -> Checkpoint:
    """Returns the checkpoint at `path` after its manifest and the sizes of its files were checked, but no digest.

    Without `has_rows` it is without the rows of the replay, and it must list some: checkpoints share those files, and a
    damage in one of them must not cost the networks too. Raises `CheckpointError` naming the first bad file.
    """
    manifest = path / MANIFEST
    content = _read_json(manifest)
    try:
        files = {name: FileRecord(**entry) for name, entry in content["files"].items()}
        found_format, found_steps = content["format"], content["env_steps"]
    except (LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{manifest}: it lists no files with size and sha256: {error}") from error
    if found_format != FORMAT:
        raise CheckpointError(f"{manifest}: expected format {FORMAT}, got {found_format!r:.40}, of another version")
    if found_steps != env_steps:
        raise CheckpointError(f"{manifest}: expected env_steps {env_steps}, got {found_steps!r:.40}")
    for name in files:
        if not _ALLOWED.fullmatch(name):
            raise CheckpointError(f"{manifest}: expected plain {TENSORS}, {JSON} and {ROWS} names, got {name!r:.120}")
    kept = {name: file for name, file in files.items() if has_rows or not _OF_REPLAY.fullmatch(name)}
    if not has_rows and len(kept) == len(files):
        raise CheckpointError(f"{path}: holds no rows that it could do without")
    for name, file in kept.items():
        try:
            size = (path / name).lstat().st_size
        except OSError as error:
            raise CheckpointError(f"{path / name}: expected a file, got {error.strerror}") from error
        if size != file.size:
            raise CheckpointError(f"{path / name}: expected {file.size} bytes, got {size}")
    return Checkpoint(env_steps, path, kept, has_lost_rows=not has_rows)


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


def _read_json(path: Path) -> Any:  # Any: a JSON value
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable JSON: {error}") from error


def _record(path: Path) -> FileRecord:
    with path.open("rb", buffering=0) as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileRecord(file.tell(), digest.hexdigest())
