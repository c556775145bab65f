"""The checkpoints of one run: atomic saves, validated loads, retention.

A save goes to a temporary directory, is made durable file by file, and only then gets its name; so a name that
discovery can match always stands for a complete checkpoint, whatever was killed or unplugged. Order of the commit:
files, manifest, directory, rename, parent directory, verification, `latest`, retention.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from offpolicy.checkpoint.manifest import (
    ROWS,
    Array,
    Checkpoint,
    FileRecord,
    open_checkpoint,
    save_error,
    seal,
    verify_digests,
    write_file,
    write_json,
    write_tensors,
)
from offpolicy.errors import CheckpointError, SaveError
from offpolicy.files import Disk
from offpolicy.types import Float32

CHECKPOINTS = "checkpoints"  # a run's directory of checkpoints

LATEST = "latest"  # a hint for humans and scripts; the loader never reads it
_STEP = re.compile(r"step-[0-9]{12}")
# A checkpoint that is about to be replaced by another save of the same step. It got this name by a rename of a
# complete checkpoint, so it is one; it is loaded when a crash came between the two renames.
_REPLACED = re.compile(r"\.replaced-step-[0-9]{12}")
_TEMP = re.compile(r"\.tmp-[0-9a-f]{32}")


class Draft:
    """A checkpoint being written. Other processes may put files into `path` until the draft's `with` ends."""

    def __init__(self, path: Path, env_steps: int, disk: Disk) -> None:
        self.path = path
        self.env_steps = env_steps
        self._disk = disk
        self.linked: dict[str, FileRecord] = {}  # files of another checkpoint that this one holds too
        self.saved: Checkpoint | None = None  # what the draft has become

    def add_tensors(self, name: str, tensors: Mapping[str, Array]) -> None:
        """Saves named arrays. Raises `SaveError`."""
        write_tensors(self.path, name, tensors, self._disk)

    def add_json(self, name: str, value: Any) -> None:  # Any: a JSON value
        """Saves a JSON value without NaN or Inf; tuples come back as lists. Raises as `write_json`."""
        write_json(self.path, name, value, self._disk)

    def add_rows(self, name: str, blocks: Iterable[Float32]) -> None:
        """Saves blocks of rows [rows, width], one after the other, little-endian and with no header.

        Each is taken when those before it are written, so a ring needs no copy. Raises `SaveError`.
        """
        written = (np.ascontiguousarray(block, dtype="<f4").data for block in blocks)
        write_file(self.path / f"{name}{ROWS}", written, self._disk)

    def add_link(self, file_name: str, other: Checkpoint, name_there: str) -> None:
        """Makes a file of another checkpoint a file of this one too, without writing it. Raises `SaveError`."""
        directory = other.path
        if not os.path.lexists(directory):  # it got its name back since it was found, by `_clean_up`
            directory = directory.with_name(directory.name.removeprefix(".replaced-"))
        try:
            self._disk.link(directory / name_there, self.path / file_name)
        except OSError as error:
            raise save_error(other.path / name_there, error) from error
        self.linked[file_name] = other.files[name_there]


class CheckpointStore:
    """The checkpoints under `root`. Any process may read; only the holder of the run directory's lock may save."""

    def __init__(self, root: Path, keep: int = 2, disk: Disk | None = None) -> None:
        self.rejected: list[str] = []  # reasons why the last `newest_valid` passed over newer checkpoints
        self.warnings: list[str] = []  # failures after a save was already safe; the caller logs and clears them
        self._root = root
        self._keep = keep
        self._disk = disk or Disk()
        self._verified: set[Path] = set()  # spares reading gigabytes again at every retention

    # -- saving -------------------------------------------------------------------------------------------------------

    @contextmanager
    def begin(self, env_steps: int, *, retires: bool = True) -> Iterator[Draft]:
        """Saves a checkpoint: fill the draft inside the `with`; it is durable when the `with` has ended.

        An earlier checkpoint of the same step is replaced, and stays loadable until the new one is durable. Raises
        `SaveError` when the disk refuses; then, and on any other exception, the draft is removed and every older
        checkpoint is as it was. Without `retires`, so are they after a success, until `retire` is called.
        """
        draft = self._open_draft(env_steps)
        try:
            yield draft
            draft.saved = self._commit(draft)
        except BaseException as failure:
            try:
                if os.path.lexists(draft.path):
                    self._disk.remove(draft.path)
            except OSError as error:  # it must not hide the reason
                failure.add_note(f"{draft.path} could not be removed either: {error}")
            raise
        if retires:
            self.retire(env_steps)

    def _open_draft(self, env_steps: int) -> Draft:
        try:
            if not self._root.is_dir():
                with suppress(FileExistsError):  # the process that evaluates makes it too, for the best policy
                    self._disk.mkdir(self._root)
            self._disk.fsync_dir(self._root.parent)
            self._clean_up()
            path = self._temp_path()
            self._disk.mkdir(path)
        except OSError as error:
            raise save_error(self._root, error) from error
        return Draft(path, env_steps, self._disk)

    def _clean_up(self) -> None:
        """Finishes the replacements that a dead writer left and removes its drafts."""
        for name in filter(_REPLACED.fullmatch, sorted(os.listdir(self._root))):
            replaced, target = self._root / name, self._root / name.removeprefix(".replaced-")
            if self._is_still_valid(target):
                self._disk.fsync_dir(self._root)
                self.remove([replaced])
            else:
                self.remove([target])
                self._disk.rename(replaced, target)
                self._disk.fsync_dir(self._root)
        self.remove_drafts()

    def _commit(self, draft: Draft) -> Checkpoint:
        target = self._root / step_name(draft.env_steps)
        try:
            sealed = seal(draft.path, draft.env_steps, self._disk, draft.linked)
            if os.path.lexists(target):
                self._disk.rename(target, _replaced_path(target))
            self._disk.rename(draft.path, target)
            self._disk.fsync_dir(self._root)
            saved = open_checkpoint(target, draft.env_steps)
        except OSError as error:
            raise save_error(target, error) from error
        except CheckpointError as error:
            raise SaveError(f"{error}: the disk does not hold what was written") from error
        if saved.files != sealed.files:
            raise SaveError(f"{target}: the manifest on disk is not the one that was written")
        self._verified.add(target)
        return saved

    def retire(self, env_steps: int) -> None:
        """Points `latest` to the checkpoint just saved and deletes what it supersedes. Errors become `warnings`."""
        target, temp = self._root / step_name(env_steps), self._temp_path()
        try:
            self._disk.write(temp, [f"{target.name}\n".encode()])
            self._disk.fsync(temp)
            self._disk.rename(temp, self._root / LATEST)
        except OSError as error:
            self.warnings.append(f"{self._root / LATEST}: not updated: {error}")
        try:
            num_valid, expired = 1, [_replaced_path(target)]
            for path in self._discover():
                if path == target or not _STEP.fullmatch(path.name):
                    continue
                if num_valid >= self._keep:
                    expired.append(path)
                elif self._is_still_valid(path):
                    num_valid += 1
            self.remove(expired)
        except (OSError, CheckpointError) as error:
            self.warnings.append(f"{self._root}: old checkpoints not removed: {error}")

    def discard(self, env_steps: int) -> None:
        """Deletes the checkpoint of that step, if there is one. Errors become `warnings`."""
        target = self._root / step_name(env_steps)
        try:
            self.remove([target])
        except OSError as error:
            self.warnings.append(f"{target}: not removed: {error}")

    def remove(self, paths: Iterable[Path]) -> None:
        """Removes those of the checkpoints that are there; files that others share stay with those. Raises `OSError`.

        Each loses its name, durably, before its first file: no crash leaves half of one.
        """
        temps = []
        for path in filter(os.path.lexists, paths):
            temps.append(self._temp_path())
            self._disk.rename(path, temps[-1])
        if temps:
            self._disk.fsync_dir(self._root)
        for temp in temps:
            self._disk.remove(temp)

    def remove_drafts(self) -> None:
        """Removes what dead writers have not finished; `warnings` says what the disk refuses."""
        for name in filter(_TEMP.fullmatch, sorted(os.listdir(self._root) if self._root.is_dir() else [])):
            try:
                self._disk.remove(self._root / name)
            except OSError as error:
                self.warnings.append(f"{self._root / name}: left-over not removed: {error}")

    def _temp_path(self) -> Path:
        return self._root / f".tmp-{uuid.uuid4().hex}"

    # -- reading ------------------------------------------------------------------------------------------------------

    def newest_valid(self, *, reads_rows: bool = True) -> Checkpoint | None:
        """Returns the newest checkpoint whose every byte is as saved; `rejected` names the newer ones.

        Without `reads_rows` the rows of the replay, most of the bytes, are taken to be as saved. If there is none, the
        newest one of which only rows of the replay are damaged, without them; else None.
        """
        problems: list[str] = []
        found = self._first(problems, reads_rows=reads_rows)
        instead = f"using {found.path.name} instead" if found else "no usable checkpoint is left"
        if found is not None and found.has_lost_rows:
            instead = f"using {found.path.name} without the rows of the replay"
        self.rejected = [f"{problem}; {instead}" for problem in problems]
        return found

    def usable(self) -> list[Checkpoint]:
        """Returns every checkpoint whose every byte is as it was saved, newest first; else as `newest_valid`."""
        return self.whole() or list(self._search([], has_rows=False))

    def whole(self) -> list[Checkpoint]:
        """Returns every checkpoint whose every byte is as it was saved, newest first."""
        return list(self._search([]))

    def at(self, env_steps: int, *, reads_rows: bool = True) -> Checkpoint:
        """Returns the checkpoint of this step, without the rows of the replay where only those are damaged.

        Without `reads_rows` those are taken to be as saved. Raises `CheckpointError` when it is missing or damaged.
        """
        problems: list[str] = []
        if found := self._first(problems, step=env_steps, reads_rows=reads_rows):
            return found
        there = ", ".join(map(str, sorted(self.steps())))
        missing = f"{self._root}: got env step {env_steps}, " + (f"allowed {there}" if there else "and no checkpoint")
        raise CheckpointError("\n".join(problems) or missing)

    def steps(self) -> set[int]:
        """Returns the env steps of all checkpoints, good or not."""
        return {_env_steps(path) for path in self._discover()}

    def _first(self, problems: list[str], *, step: int | None = None, reads_rows: bool) -> Checkpoint | None:
        """Returns the first that `_search` finds, else the first without rows."""
        whole = self._search(problems, step=step, reads_rows=reads_rows)
        return next(whole, None) or next(self._search([], step=step, has_rows=False), None)

    def _search(
        self, problems: list[str], *, step: int | None = None, has_rows: bool = True, reads_rows: bool = True
    ) -> Iterator[Checkpoint]:
        """Yields the checkpoints, of one step or of all, whose bytes are as saved, newest first; adds to `problems`.

        Without `has_rows` they are without the rows of the replay. One that the retention of a running run removes
        meanwhile is no damaged one: there are newer ones then, which are looked for again.
        """
        seen = set[Path]()
        while unseen := [path for path in self._discover() if path not in seen and step in (None, _env_steps(path))]:
            path = unseen[0]
            seen.add(path)
            try:
                checkpoint = open_checkpoint(path, _env_steps(path), has_rows=has_rows)
                verify_digests(checkpoint, reads_rows=reads_rows)
            except CheckpointError as error:
                if os.path.lexists(path):
                    problems.append(str(error))
            else:
                yield checkpoint

    def _discover(self) -> list[Path]:
        """Returns everything with the name of a complete checkpoint, newest first."""
        try:
            names = os.listdir(self._root)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self._root}: {error.strerror}") from error
        paths = [self._root / name for name in names if _STEP.fullmatch(name) or _REPLACED.fullmatch(name)]
        return sorted(paths, key=lambda path: (_env_steps(path), not path.name.startswith(".")), reverse=True)

    def _is_still_valid(self, path: Path) -> bool:
        """True if its digests were right once and its sizes are right now."""
        try:
            checkpoint = open_checkpoint(path, _env_steps(path))
            if path not in self._verified:
                verify_digests(checkpoint)
        except CheckpointError:
            return False
        self._verified.add(path)
        return True


def run_store(run: Path) -> CheckpointStore:
    """Returns the checkpoints of a run."""
    return CheckpointStore(run / CHECKPOINTS)


def checkpoint_path(run: Path, env_steps: int) -> Path:
    """Returns the directory of a run's checkpoint at an env step, whether there is one or not."""
    return run / CHECKPOINTS / step_name(env_steps)


def step_name(env_steps: int) -> str:
    """Returns the directory name of a checkpoint."""
    return f"step-{env_steps:012d}"


def _env_steps(path: Path) -> int:
    return int(path.name[-12:])


def _replaced_path(target: Path) -> Path:
    return target.with_name(f".replaced-{target.name}")
