"""The checkpoints of one run: atomic saves, validated loads, retention.

A save goes to a temporary directory, is made durable file by file, and only then gets its name; so a name that
discovery can match always stands for a complete checkpoint, whatever was killed or unplugged. Order of the commit:
files, manifest, directory, rename, parent directory, verification, `latest`, retention.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from offpolicy.checkpoint.content import check_content
from offpolicy.checkpoint.draft import Draft
from offpolicy.checkpoint.formats import save_error
from offpolicy.checkpoint.manifest import (
    MAX_ENV_STEPS,
    Checkpoint,
    open_checkpoint,
    open_without_rows,
    seal,
    verify_digests,
)
from offpolicy.errors import CheckpointError, SaveError
from offpolicy.files import Disk

CHECKPOINTS = "checkpoints"  # a run's directory of checkpoints

LATEST = "latest"  # a hint for humans and scripts; the loader never reads it
_STEP = re.compile(r"step-([0-9]{12})")
# A checkpoint that is about to be replaced by another save of the same step. It got this name by a rename of a
# complete checkpoint, so it is one; it is loaded when a crash came between the two renames.
_REPLACED = re.compile(r"\.replaced-step-([0-9]{12})")
_TEMP = re.compile(r"\.tmp-[0-9a-f]{32}")


class CheckpointStore:
    """The checkpoints under `root`. Any process may read; only the holder of the run directory's lock may save."""

    def __init__(
        self,
        root: Path,
        keep: int = 2,
        disk: Disk | None = None,
        check: Callable[[Checkpoint], None] = lambda checkpoint: None,
    ) -> None:
        """`check` raises `CheckpointError` for whole checkpoints that must be passed over like damaged ones."""
        if keep < 2:
            raise ValueError(f"keep={keep}: allowed at least 2, a corrupt checkpoint must leave another one")
        self.rejected: list[str] = []  # reasons why the last `newest_valid` passed over newer checkpoints
        self.warnings: list[str] = []  # failures after a save was already safe; the caller logs and clears them
        self._root = root
        self._keep = keep
        self._disk, self._check = disk or Disk(), check
        self._is_valid_by_path: dict[Path, bool] = {}  # spares reading gigabytes again at every retention
        self._is_saving = False

    @contextmanager
    def begin(self, env_steps: int, *, retires: bool = True) -> Iterator[Draft]:
        """Saves a checkpoint: fill the draft inside the `with`; it is durable when the `with` has ended.

        An earlier checkpoint of the same step is replaced, and stays loadable until the new one is durable. Raises
        `SaveError` when the disk refuses; then, and on any other exception, the draft is removed and every older
        checkpoint is as it was. Without `retires`, so are they after a success, until `retire` is called.
        """
        if not 0 <= env_steps <= MAX_ENV_STEPS:
            raise ValueError(f"env_steps={env_steps}: allowed 0 to {MAX_ENV_STEPS}")
        if self._is_saving:
            raise RuntimeError("a checkpoint is being saved already: one draft at a time")
        self._is_saving = True
        try:
            draft = self._open_draft(env_steps)
            try:
                yield draft
                self._commit(draft)
            except BaseException as failure:
                self._abandon(draft, failure)
                raise
            if retires:
                self.retire(env_steps)
        finally:
            self._is_saving = False

    def newest_valid(self, *, reads_rows: bool = True) -> Checkpoint | None:
        """Returns the newest checkpoint whose every byte is as saved; `rejected` names the newer ones.

        Without `reads_rows` the rows of the replay, most of the bytes, are taken to be as saved. If there is none, the
        newest one of which only rows of the replay are damaged, without them; else None. One that the retention of a
        running run removes meanwhile is no damaged one: there are newer ones then, which are looked for again.
        """
        found, problems, seen = None, [], set[Path]()
        while found is None and (unseen := [one for one in self._discover() if one[0] not in seen]):
            path, env_steps = unseen[0]
            seen.add(path)
            try:
                found = self._validate(path, env_steps, reads_rows=reads_rows)
            except CheckpointError as error:
                if os.path.lexists(path):
                    problems.append(str(error))
        found = found or next(self._without_rows(), None)
        instead = f"using {found.path.name} instead" if found else "no usable checkpoint is left"
        if found is not None and found.has_lost_rows:
            instead = f"using {found.path.name} without the rows of the replay"
        self.rejected = [f"{problem}; {instead}" for problem in problems]
        return found

    def usable(self) -> list[Checkpoint]:
        """Returns every checkpoint whose every byte is as it was saved, newest first; else as `newest_valid`."""
        return self.whole() or list(self._without_rows())

    def whole(self) -> list[Checkpoint]:
        """Returns every checkpoint whose every byte is as it was saved, newest first."""
        found = []
        for path, env_steps in self._discover():
            with suppress(CheckpointError):
                found.append(self._validate(path, env_steps))
        return found

    def at(self, env_steps: int, *, reads_rows: bool = True) -> Checkpoint:
        """Returns the checkpoint of this step, without the rows of the replay where only those are damaged.

        Without `reads_rows` those are taken to be as saved. Raises `CheckpointError` when it is missing or damaged.
        """
        problems: list[str] = []
        for path, found_steps in self._discover():
            if found_steps == env_steps:
                try:
                    return self._validate(path, env_steps, reads_rows=reads_rows)
                except CheckpointError as error:
                    problems.append(str(error))
        for checkpoint in self._without_rows():
            if checkpoint.env_steps == env_steps:
                return checkpoint
        there = ", ".join(map(str, sorted({steps for _, steps in self._discover()})))
        missing = f"{self._root}: got env step {env_steps}, " + (f"allowed {there}" if there else "and no checkpoint")
        raise CheckpointError("\n".join(problems) or missing)

    def older_than(self, env_steps: int) -> list[Path]:
        """Returns the directories of all checkpoints of earlier steps, good or not, newest first."""
        return [path for path, steps in self._discover() if steps < env_steps and _STEP.fullmatch(path.name)]

    def steps_beyond(self, env_steps: int) -> set[int]:
        """Returns the env steps of all checkpoints of later steps, good or not."""
        return {steps for path, steps in self._discover() if steps > env_steps and _STEP.fullmatch(path.name)}

    def remove(self, paths: list[Path]) -> None:
        """Removes checkpoints, each as a whole; files that others share stay with those. Raises `OSError`."""
        self._discard(paths)

    def _without_rows(self) -> Iterator[Checkpoint]:
        """Returns the checkpoints of which at most rows of the replay are damaged, without those, newest first."""
        for path, env_steps in self._discover():
            with suppress(CheckpointError):
                checkpoint = open_without_rows(path, env_steps)
                self._check(checkpoint)
                yield checkpoint

    def remove_drafts(self) -> None:
        """Removes what dead writers have not finished; `warnings` says what the disk refuses."""
        for name in filter(_TEMP.fullmatch, sorted(os.listdir(self._root) if self._root.is_dir() else [])):
            try:
                self._disk.remove(self._root / name)
            except OSError as error:
                self.warnings.append(f"{self._root / name}: left-over not removed: {error}")

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

    def _commit(self, draft: Draft) -> None:
        target = self._root / step_name(draft.env_steps)
        try:
            sealed = seal(draft.path, draft.env_steps, self._disk, draft.linked)
            if os.path.lexists(target):
                self._disk.rename(target, _replaced_path(target))
            self._is_valid_by_path.pop(target, None)
            self._disk.rename(draft.path, target)
            self._disk.fsync_dir(self._root)
            saved = open_checkpoint(target, draft.env_steps)
        except OSError as error:
            raise save_error(target, error) from error
        except CheckpointError as error:
            raise SaveError(f"{error}: the disk does not hold what was written") from error
        if saved.files != sealed.files:
            raise SaveError(f"{target}: the manifest on disk is not the one that was written")
        self._is_valid_by_path[target] = True
        draft.saved = saved

    def _abandon(self, draft: Draft, failure: BaseException) -> None:
        """Removes the draft; a failure to do so must not hide the reason."""
        try:
            if os.path.lexists(draft.path):
                self._disk.remove(draft.path)
        except OSError as error:
            failure.add_note(f"{draft.path} could not be removed either: {error}")

    def retire(self, env_steps: int) -> None:
        """Points `latest` to the checkpoint just saved and deletes what it supersedes. Errors become `warnings`."""
        target = self._root / step_name(env_steps)
        try:
            self._point_latest(target)
        except OSError as error:
            self.warnings.append(f"{self._root / LATEST}: not updated: {error}")
        try:
            replaced = _replaced_path(target)
            self._discard(self._expired(target) + ([replaced] if os.path.lexists(replaced) else []))
        except (OSError, CheckpointError) as error:
            self.warnings.append(f"{self._root}: old checkpoints not removed: {error}")

    def discard(self, env_steps: int) -> None:
        """Deletes the checkpoint of that step, if there is one. Errors become `warnings`."""
        target = self._root / step_name(env_steps)
        try:
            self._discard([target] if os.path.lexists(target) else [])
        except OSError as error:
            self.warnings.append(f"{target}: not removed: {error}")

    def _point_latest(self, target: Path) -> None:
        temp = self._temp_path()
        self._disk.write(temp, [f"{target.name}\n".encode()])
        self._disk.fsync(temp)
        self._disk.rename(temp, self._root / LATEST)

    def _expired(self, just_saved: Path) -> list[Path]:
        """Returns the checkpoints older than the `keep` newest valid ones, of which `just_saved` is the first."""
        num_valid, expired = 1, []
        for path, env_steps in self._discover():
            if path == just_saved or not _STEP.fullmatch(path.name):
                continue
            if num_valid >= self._keep:
                expired.append(path)
            elif self._is_still_valid(path, env_steps):
                num_valid += 1
        return expired

    def _discard(self, paths: list[Path]) -> None:
        """Removes checkpoints. Each loses its name, durably, before its first file: no crash leaves half of one."""
        if not paths:
            return
        temps = [self._temp_path() for _ in paths]
        for path, temp in zip(paths, temps, strict=True):
            self._disk.rename(path, temp)
            self._is_valid_by_path.pop(path, None)
        self._disk.fsync_dir(self._root)
        for temp in temps:
            self._disk.remove(temp)

    def _clean_up(self) -> None:
        """Finishes the replacements that a dead writer left and removes its drafts."""
        names = sorted(os.listdir(self._root))
        for name in filter(_REPLACED.fullmatch, names):
            replaced, target = self._root / name, self._root / name.removeprefix(".replaced-")
            if self._is_still_valid(target, _env_steps(target)):
                self._disk.fsync_dir(self._root)
                self._discard([replaced])
            else:
                self._discard([target] if os.path.lexists(target) else [])
                self._disk.rename(replaced, target)
                self._disk.fsync_dir(self._root)
                self._is_valid_by_path.pop(target, None)
        self.remove_drafts()

    def _discover(self) -> list[tuple[Path, int]]:
        """Returns path and env steps of everything with the name of a complete checkpoint, newest first."""
        try:
            names = os.listdir(self._root)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self._root}: {error.strerror}") from error
        matched = [name for name in names if _STEP.fullmatch(name) or _REPLACED.fullmatch(name)]
        paths = [self._root / name for name in matched]
        newest_first = sorted(paths, key=lambda path: (_env_steps(path), not path.name.startswith(".")), reverse=True)
        return [(path, _env_steps(path)) for path in newest_first]

    def _is_still_valid(self, path: Path, env_steps: int) -> bool:
        """True if its digests were right once and its sizes are right now."""
        try:
            if self._is_valid_by_path.get(path):
                open_checkpoint(path, env_steps)
            elif path not in self._is_valid_by_path:
                self._validate(path, env_steps)
        except CheckpointError:
            self._is_valid_by_path[path] = False
        return self._is_valid_by_path[path]

    def _validate(self, path: Path, env_steps: int, *, reads_rows: bool = True) -> Checkpoint:
        """Checks manifest, sizes and digests. Raises `CheckpointError`."""
        self._is_valid_by_path[path] = False
        checkpoint = open_checkpoint(path, env_steps)
        verify_digests(checkpoint, reads_rows=reads_rows)
        self._check(checkpoint)
        if reads_rows:
            self._is_valid_by_path[path] = True
        else:
            del self._is_valid_by_path[path]  # not known yet
        return checkpoint

    def _temp_path(self) -> Path:
        return self._root / f".tmp-{uuid.uuid4().hex}"


def run_store(run: Path) -> CheckpointStore:
    """Returns the checkpoints of a run for whoever begins from one: those with what no run writes are passed over."""
    return CheckpointStore(run / CHECKPOINTS, check=check_content)


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
