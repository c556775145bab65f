"""The directory of a run: one owner at a time (`run_lock.py`), resumed or refused, never overwritten."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path

from offpolicy import fault
from offpolicy.checkpoint import CHECKPOINTS, Checkpoint, Disk, run_store
from offpolicy.checkpoint.best import BEST
from offpolicy.config.overrides import as_override
from offpolicy.config.sections import EnvConfig
from offpolicy.errors import CheckpointError, ConfigError
from offpolicy.files import remove_temporaries
from offpolicy.launch.run_lock import RunLock, is_signed
from offpolicy.runs import LOCK
from offpolicy.training.worker import SNAPSHOT_DIR

ATTEMPT = "attempt-"
HOST_DIR = re.compile(r"host-[0-9]+")  # of every host but the first, below the run's directory
_PART = re.compile(rf"{HOST_DIR.pattern}|{ATTEMPT}[0-9]+")
# What a run writes into its directory; anything else there is never moved.
_RECORD = re.compile(
    r"config\.yaml|spaces\.json|summary\.json|train\.log|trace\.json|trace|videos|checkpoints|wandb|wandb_id"
    r"|(metrics|episodes|eval|evaluations)(\.superseded)?\.jsonl|events\.out\.tfevents\..*"
    r"|\.snapshot-.*|\..+\.[0-9]+\.tmp"
)

WhileReading = Callable[[], AbstractContextManager[None]]


class TakenError(ConfigError):
    """The directory holds a run already, and the run may not go on with it."""


class RunDir:
    """A claimed run directory, which its exit unlocks. Until `begin` it is left as it was found.

    `checkpoint` is the one to resume from, None in a fresh directory. `warnings` name newer checkpoints that are
    unusable, and where the records of an attempt that saved nothing are now.
    """

    def __init__(self, path: Path, lock: RunLock, checkpoint: Checkpoint | None, warnings: Sequence[str]) -> None:
        self.path, self.checkpoint, self.warnings, self._lock = path, checkpoint, tuple(warnings), lock

    @classmethod
    def claim(
        cls,
        path: Path,
        resume: str,
        *,
        at: int | None = None,
        is_restart: bool = False,
        while_reading: WhileReading = nullcontext,
    ) -> RunDir:
        """Locks `path`, creating it if needed, and finds the checkpoint to resume from.

        A missing directory, or one that holds nothing, is fresh. `resume` decides about any other: `auto` and `must`
        need a usable checkpoint in it, `never` refuses it; `must` refuses a fresh one. With `auto` the records of a run
        that ended before its first checkpoint are moved to `attempt-<number>`, and the directory is fresh. Raises
        `RunDirBusyError`, `CheckpointError` or `ConfigError`; a refused claim leaves nothing behind.

        `at` is the step that all hosts of several resume from, of which this one may have no checkpoint; `is_restart`
        moves the records away whatever was saved, because the hosts have nothing in common. `while_reading` is entered
        for the reading of the checkpoints, which takes long and may be interrupted.
        """
        if not is_restart:
            _refuse_by_content(path, resume)
        # Before the lock is taken, by which any directory would look like that of a run.
        is_lost = is_restart or (resume == "auto" and not at and has_saved_nothing(path))
        with ExitStack() as undo:
            undo.callback(_remove, _create(path))
            lock, warnings = RunLock(path), list[str]()
            undo.callback(lock.release)
            _remove_left_over(path)
            if is_lost and (is_restart or not _has_checkpoint(path)) and (aside := _set_aside(path)) is not None:
                text = f"the last attempt ended before its first checkpoint; its records are in {aside}"
                warnings.append(f"{text}, and the run starts from the beginning")
            # Again, now that no other run can write: the directory may have been filled since.
            _refuse_by_content(path, resume)
            with while_reading():
                checkpoint, rejected = _find_checkpoint(path, at)
            undo.pop_all()
        return cls(path, lock, checkpoint, [*rejected, *warnings])

    def begin(self) -> None:
        """Notes in the directory that this process runs it. Raises `ConfigError` where the disk refuses."""
        self._lock.sign()

    def go_back(self) -> None:
        """Finds the checkpoint from which the processes begin again; None before the first.

        Raises `CheckpointError` where there are checkpoints, but none to be used.
        """
        store = run_store(self.path)
        self.checkpoint = store.newest_valid()
        self.warnings = tuple(store.rejected)
        if self.checkpoint is None and self.warnings:
            raise CheckpointError("\n".join(self.warnings))

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def refuse_file(path: Path) -> None:
    """Raises `ConfigError` where a file is in the way of a run directory."""
    file = next((part for part in (path, *path.parents) if part.exists()), None)
    if file is not None and not file.is_dir():
        raise ConfigError(
            f"run_dir: got {str(path)!r}, allowed a directory: {file} is a file; write run_dir={file.parent / 'mine'}"
        )


def other_hosts(run_dir: Path) -> list[Path]:
    """Returns the parts of a run that are those of every host but the first, in the order of their names."""
    return sorted(path for path in run_dir.glob("host-*") if HOST_DIR.fullmatch(path.name))


def default_run_dir(root: Path, algo: str, env: EnvConfig, stamp: str, seed: int) -> Path:
    """Returns `<root>/<algo>/<id or factory>/<stamp>-s<seed>`, with `-2`, `-3`, ... if taken. Creates nothing."""
    safe_name = re.sub(r"^\.+|[^A-Za-z0-9._-]", "_", env.id or env.name.rpartition(":")[2])
    return next_free(root / algo / safe_name / f"{stamp}-s{seed}")


def next_free(first: Path) -> Path:
    """Returns the name itself, or with the first of `-2`, `-3`, ... under which there is nothing yet."""
    path, number = first, 1
    while os.path.lexists(path):
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def _refuse_by_content(path: Path, resume: str) -> None:
    """Refuses what needs no look at the checkpoints. Raises `ConfigError` or `CheckpointError`."""
    is_fresh = _is_fresh(path)
    if resume == "never" and not is_fresh:
        raise TakenError(
            f"run_dir: {path} exists and resume=never; refused, never overwritten:"
            " choose another run_dir, or resume=auto to go on with it"
        )
    if resume == "must" and is_fresh:
        raise CheckpointError(f"run_dir: {path} holds no run to resume, and resume=must; use resume=auto to start one")
    if not is_fresh and not _is_a_runs(path):
        raise CheckpointError(
            f"run_dir: {path} is not the directory of a run, and not empty: choose another one, such as {path / 'mine'}"
        )


def _is_fresh(path: Path) -> bool:
    """True if the directory is missing, empty, or that of a run of which there are no records.

    The parts of other hosts, attempts set aside, and what a user has put beside them are no records of this host.
    """
    try:
        others = [name for name in os.listdir(path) if name != LOCK and not _PART.fullmatch(name)]
        return not others or (_is_a_runs(path) and not _records(path))
    except FileNotFoundError:
        return True
    except OSError as error:
        raise ConfigError(f"run_dir: {path}: {error.strerror}") from error


def _remove_left_over(path: Path) -> None:
    """Removes what a run that was killed had not finished: temporary files, drafts, and parts of a checkpoint.

    Before an attempt is set aside, so that it holds none of them. What the disk refuses stays.
    """
    for directory in (path, path / "videos", path / CHECKPOINTS / BEST):
        remove_temporaries(directory)
    for part in path.glob(f"{SNAPSHOT_DIR}-*"):
        shutil.rmtree(part, ignore_errors=True)
    with suppress(OSError):
        run_store(path).remove_drafts()


def _find_checkpoint(path: Path, at: int | None) -> tuple[Checkpoint | None, Sequence[str]]:
    """Returns the checkpoint to resume from, and the texts about those rejected. Raises `CheckpointError`.

    Without the step `at` of several hosts it is the newest usable one. At that step, a host may have none.
    """
    store = run_store(path)
    if at:
        try:
            return store.at(at), ()
        except CheckpointError as error:
            return None, (str(error),)
    if _is_fresh(path):
        return None, ()
    checkpoint = store.newest_valid()
    if checkpoint is None:
        why = f"run_dir: {path} exists but holds no usable checkpoint: choose another run_dir, or remove this one"
        if has_saved_nothing(path):
            word = shlex.quote(f"run_dir={as_override(str(path))}")
            why = (
                f"run_dir: {path} holds a run that ended before its first checkpoint, or whose checkpoints were"
                f" removed: give the `offpolicy train` command that began it again, with {word}"
            )
        raise CheckpointError("\n".join([*store.rejected, why]))
    return checkpoint, store.rejected


def has_saved_nothing(path: Path) -> bool:
    """True if a run was in the directory and ended before its first checkpoint. A damaged checkpoint is one."""
    return _is_a_runs(path) and bool(_records(path)) and not _has_checkpoint(path)


def _is_a_runs(path: Path) -> bool:
    """True for a directory with something that only a run writes: its checkpoints, its spaces or its signed lock."""
    if _has_checkpoint(path) or {"config.yaml", "spaces.json"} <= set(_records(path)):
        return True
    return is_signed(path)


def _has_checkpoint(path: Path) -> bool:
    return any((path / CHECKPOINTS).glob("*step-*"))


def _records(path: Path) -> list[str]:
    """Returns the names of what a run has written, `config.yaml` last: without it the directory is no run's."""
    try:
        names = [name for name in os.listdir(path) if _RECORD.fullmatch(name)]
    except OSError:
        return []
    return sorted(names, key=lambda name: name == "config.yaml")


def _set_aside(path: Path) -> Path | None:
    """Moves the records of an attempt into a new numbered subdirectory, durably; returns it, None without records.

    Raises `ConfigError` where the disk refuses; the next claim moves the rest.
    """
    records = _records(path)
    if not records:
        return None
    taken = [int(name.removeprefix(ATTEMPT)) for name in os.listdir(path) if re.fullmatch(rf"{ATTEMPT}[0-9]+", name)]
    aside = path / f"{ATTEMPT}{max(taken, default=-1) + 1}"
    try:
        aside.mkdir()
        for name in records:
            fault.hit("run_dir.aside")
            (path / name).rename(aside / name)
        for directory in (aside, path):
            Disk().fsync_dir(directory)
    except OSError as error:
        raise ConfigError(
            f"run_dir: the records of the last attempt in {path} cannot be moved to {aside}: {error.strerror}"
        ) from error
    return aside


def _create(path: Path) -> list[Path]:
    """Makes the directory and its missing parents, durably; returns those made. Raises `ConfigError`."""
    created: list[Path] = []
    try:
        for ancestor in reversed([part for part in (path, *path.parents) if not part.exists()]):
            with suppress(FileExistsError):  # another run made it at the same instant: it is not ours to take back
                fault.hit("run_dir.create")
                ancestor.mkdir()
                created.append(ancestor)
            with suppress(PermissionError):  # a parent that may be written but not read cannot be fsynced either
                Disk().fsync_dir(ancestor.parent)
    except OSError as error:
        _remove(created)
        raise ConfigError(f"run_dir: {path} cannot be created: {error.strerror}") from error
    return created


def _remove(created: Sequence[Path]) -> None:
    """Removes what `_create` made, except directories that are no longer empty."""
    with suppress(OSError):
        for path in reversed(created):
            path.rmdir()
