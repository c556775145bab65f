"""The directory of a run: one owner at a time, resumed or refused, never overwritten.

The kernel lock on `.lock` is released by any death of its holder. It belongs to the open file, so a process forked
from the holder would keep it; children are spawned and do not inherit it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
from contextlib import suppress
from pathlib import Path

from offpolicy import fault
from offpolicy.checkpoint import CHECKPOINTS, Checkpoint, CheckpointStore, Disk
from offpolicy.errors import CheckpointError, ConfigError, RunDirBusyError

RESUME_MODES = ("auto", "must", "never")
LOCK = ".lock"
_PART = re.compile(r"host-[0-9]+|attempt-[0-9]+")


class RunDir:
    """A claimed run directory. `checkpoint` is the one to resume from, None in a fresh directory.

    `rejected` holds the texts about newer checkpoints that are unusable.
    """

    def __init__(self, path: Path, lock: _Lock, checkpoint: Checkpoint | None, rejected: tuple[str, ...]) -> None:
        self.path, self.checkpoint, self.rejected, self._lock = path, checkpoint, rejected, lock

    @classmethod
    def claim(cls, path: Path, resume: str, *, at: int | None = None, aside: str | None = None) -> RunDir:
        """Locks `path`, creating it if needed, and finds the checkpoint to resume from.

        A missing directory, or one that holds nothing, is fresh. `resume` decides about any other: `auto` and `must`
        need a usable checkpoint in it, `never` refuses it; `must` refuses a fresh one. Raises `RunDirBusyError`,
        `CheckpointError` or `ConfigError`; a refused claim leaves nothing behind.

        For one host of several: `at` is the step that all resume from, of which this host may have no checkpoint;
        `aside` names the subdirectory into which the records of an attempt that saved nothing are moved.
        """
        if resume not in RESUME_MODES:
            raise ConfigError(f"resume: got {resume!r}, allowed one of {', '.join(RESUME_MODES)}")
        if aside is None:
            _refuse_by_content(path, resume)
        created = _create(path)
        try:
            lock = _Lock(path)
            try:
                if aside is not None:
                    _set_aside(path, aside)
                # Again, now that no other run can write: the directory may have been filled since.
                _refuse_by_content(path, resume)
                checkpoint, rejected = _find_checkpoint(path, at)
            except BaseException:
                lock.withdraw()
                raise
        except BaseException:
            _remove(created)
            raise
        return cls(path, lock, checkpoint, rejected)

    def release(self) -> None:
        """Unlocks the directory; a second call does nothing."""
        self._lock.release()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def has_same_parent(path: Path) -> bool:
    """True if the last holder of `path` had the parent of this process: a launcher restarts its processes."""
    try:
        holder = json.loads((path / LOCK).read_text())
        return bool((holder["parent"], holder["host"]) == (os.getppid(), socket.gethostname()))
    except (OSError, ValueError, TypeError, KeyError):
        return False


def refuse_file(path: Path) -> None:
    """Raises `ConfigError` where a file is in the way of a run directory."""
    file = next((part for part in (path, *path.parents) if part.exists()), None)
    if file is not None and not file.is_dir():
        raise ConfigError(
            f"run_dir: got {str(path)!r}, allowed a directory: {file} is a file; write run_dir={file.parent / 'mine'}"
        )


def is_running(path: Path) -> bool:
    """True if the process that signed the lock of `path` is alive on this host; the lock itself is not touched."""
    try:
        holder = json.loads((path / LOCK).read_text())
        return bool(holder["host"] == socket.gethostname() and os.path.exists(f"/proc/{holder['pid']}"))
    except (OSError, ValueError, TypeError, KeyError):
        return False


def default_run_dir(root: Path, algo: str, env_id: str, stamp: str, seed: int) -> Path:
    """Returns `<root>/<algo>/<env id>/<stamp>-s<seed>`, with `-2`, `-3`, ... appended if taken. Creates nothing."""
    safe_env_id = re.sub(r"^\.+|[^A-Za-z0-9._-]", "_", env_id)
    first = root / algo / safe_env_id / f"{stamp}-s{seed}"
    path, number = first, 1
    while os.path.lexists(path):
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def _refuse_by_content(path: Path, resume: str) -> None:
    """Refuses what needs no look at the checkpoints. Raises `ConfigError` or `CheckpointError`."""
    is_fresh = _is_fresh(path)
    if resume == "never" and not is_fresh:
        raise ConfigError(
            f"run_dir: {path} exists and resume=never; refused, never overwritten:"
            " choose another run_dir, or resume=auto to go on with it"
        )
    if resume == "must" and is_fresh:
        raise CheckpointError(f"run_dir: {path} holds no run to resume, and resume=must; use resume=auto to start one")


def _is_fresh(path: Path) -> bool:
    """True if the directory is missing, empty, or holds only the lock of a run that died before it wrote anything.

    The parts of other hosts, and attempts set aside, are not this host's records.
    """
    try:
        return all(name == LOCK or _PART.fullmatch(name) for name in os.listdir(path))
    except FileNotFoundError:
        return True
    except OSError as error:
        raise ConfigError(f"run_dir: {path}: {error.strerror}") from error


def _find_checkpoint(path: Path, at: int | None) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """Returns the checkpoint to resume from, and the texts about those rejected. Raises `CheckpointError`.

    Without the step `at` of several hosts it is the newest usable one. At that step, a host may have none.
    """
    store = CheckpointStore(path / CHECKPOINTS)
    if at:
        try:
            return store.at(at), ()
        except CheckpointError as error:
            return None, (str(error),)
    if _is_fresh(path):
        return None, ()
    checkpoint = store.newest_valid()
    if checkpoint is None:
        advice = f"run_dir: {path} exists but holds no usable checkpoint: choose another run_dir, or remove this one"
        raise CheckpointError("\n".join([*store.rejected, advice]))
    return checkpoint, tuple(store.rejected)


def _set_aside(path: Path, name: str) -> None:
    """Moves the records of an attempt into a subdirectory: they are kept, and the run starts from the beginning."""
    records = [entry for entry in os.listdir(path) if entry != LOCK and not _PART.fullmatch(entry)]
    if records:
        (path / name).mkdir(exist_ok=True)
    for entry in records:
        fault.hit("run_dir.aside")
        (path / entry).rename(path / name / entry)


def _create(path: Path) -> list[Path]:
    """Makes the directory and its missing parents, durably; returns those made. Raises `ConfigError`."""
    created: list[Path] = []
    try:
        missing = [ancestor for ancestor in (path, *path.parents) if not ancestor.exists()]
        for ancestor in reversed(missing):
            try:
                fault.hit("run_dir.create")
                ancestor.mkdir()
            except FileExistsError:  # another run made it at the same instant: it is not ours to take back
                continue
            created.append(ancestor)
            with suppress(PermissionError):  # a parent that may be written but not read cannot be fsynced either
                Disk().fsync_dir(ancestor.parent)
    except OSError as error:
        _remove(created)
        raise ConfigError(f"run_dir: {path} cannot be created: {error.strerror}") from error
    return created


def _remove(created: list[Path]) -> None:
    """Removes what `_create` made, except directories that are no longer empty."""
    for path in reversed(created):
        try:
            path.rmdir()
        except OSError:
            return


class _Lock:
    """An exclusive kernel lock on `<directory>/.lock`, whose content names the holder.

    Not `filelock`: its older versions empty the file before they have the lock, so that a refused process erases the
    holder's name, and a newer one that may not wait refuses a claim because of another that is being withdrawn.
    """

    def __init__(self, directory: Path) -> None:
        """Locks. Raises `RunDirBusyError` if another process holds the lock, `ConfigError` if it cannot be written."""
        self._path = directory / LOCK
        self._descriptor, self._is_new = -1, False
        try:
            while not self._take():
                pass
        except OSError as error:
            raise ConfigError(f"run_dir: {directory} is not writable: {error.strerror}") from error

    def release(self) -> None:
        """Unlocks; the file stays. A second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def withdraw(self) -> None:
        """Unlocks and leaves the directory as it was found."""
        if self._is_new:
            self._path.unlink()
        self.release()

    def _take(self) -> bool:
        """Opens, locks and signs the file; False if a withdrawn claim has removed it meanwhile."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._descriptor, self._is_new = os.open(self._path, flags | os.O_EXCL, 0o644), True
        except FileExistsError:
            self._descriptor, self._is_new = os.open(self._path, flags, 0o644), False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(os.pread(self._descriptor, 512, 0))
            self.release()
            raise RunDirBusyError(f"run_dir: {self._path.parent} is in use by {holder}") from error
        try:
            # A lock on a removed file would exclude no other process.
            if not (self._path.exists() and os.path.samestat(os.fstat(self._descriptor), self._path.stat())):
                self.release()
                return False
            holder = json.dumps({"pid": os.getpid(), "parent": os.getppid(), "host": socket.gethostname()})
            fault.hit("run_dir.lock")
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, holder.encode(), 0)
        except OSError:
            self.withdraw()
            raise
        return True


def _holder(content: bytes) -> str:
    """Returns the holder of the lock in words; its file may be read before the holder has signed it."""
    try:
        holder = json.loads(content)
        return f"pid {holder['pid']} on host {holder['host']}"
    except (ValueError, TypeError, KeyError, RecursionError):
        return "another process"
