"""The lock of a run directory, and what it says about the run that holds it.

The kernel lock on `.lock` is released by any death of its holder. It belongs to the open file, so a process forked
from the holder would keep it; children are spawned and do not inherit it.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from offpolicy import fault
from offpolicy.errors import ConfigError, RunDirBusyError
from offpolicy.processes.children import start_ticks
from offpolicy.runs import LOCK

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # another one after every start of the machine


class RunLock:
    """An exclusive kernel lock on `<directory>/.lock`, whose content names the last run that has held it.

    Until `sign` it changes nothing: a start that is refused leaves the directory as it was found, and with it what the
    lock says of a holder that was killed.

    Not `filelock`: its older versions empty the file before they have the lock, so that a refused process erases the
    holder's name, and a newer one that may not wait refuses a claim because of another that is being withdrawn.
    """

    def __init__(self, directory: Path) -> None:
        """Locks. Raises `RunDirBusyError` if another process holds the lock, `ConfigError` if it cannot be had."""
        self._path, self._is_signed = directory / LOCK, False
        self._is_new = not self._path.exists()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._descriptor = os.open(self._path, flags, 0o644)
        except OSError as error:
            raise ConfigError(f"run_dir: {directory} is not writable: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A lock on a file that a refused start has removed would exclude no other process.
            is_ours = self._path.exists() and os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except BlockingIOError:
            is_ours = False
        except OSError as error:
            self.release()
            raise ConfigError(
                f"run_dir: {directory} cannot be locked: {error.strerror}; choose a directory on a file system with"
                " flock, or mount this one with it"
            ) from error
        if not is_ours:
            os.close(self._descriptor)
            holder = _read(directory)
            is_known = is_running(directory) is not False
            name = f"pid {holder['pid']} on host {holder['host']}" if is_known else "another process"
            raise RunDirBusyError(f"run_dir: {directory} is in use by {name}")

    def sign(self) -> None:
        """Names this process as the holder. Raises `ConfigError` where the disk refuses."""
        pid = os.getpid()
        try:
            self._write({"pid": pid, "started": start_ticks(pid), **parent_identity()})
        except OSError as error:
            raise ConfigError(f"run_dir: {self._path.parent} is not writable: {error.strerror}") from error
        self._is_signed = True

    def release(self) -> None:
        """Unlocks. A file that was signed stays, without the pid of the holder; a second call does nothing."""
        if self._descriptor < 0:
            return
        with suppress(OSError):  # a full disk: the pid says nothing once its process has ended
            if self._is_signed:
                self._write(parent_identity())
            elif self._is_new:
                self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1

    def _write(self, holder: dict[str, object]) -> None:
        fault.hit("run_dir.lock")
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(holder).encode(), 0)


def is_running(path: Path) -> bool | None:
    """True if the run that has signed the lock of `path` last goes on, None if it is on another host.

    The lock is not touched. A run that has ended has removed its pid from it.
    """
    holder = _read(path)
    if not isinstance(holder.get("pid"), int) or "host" not in holder:
        return False
    if holder["host"] != socket.gethostname():
        return None
    started = start_ticks(holder["pid"])  # another one where a later process has its pid
    return started is not None and started == holder.get("started", started)


def parent_identity() -> dict[str, object]:
    """Returns what the parent of this process has in common with no other, on this host and in later boots of it.

    Its pid and the name of the host are the same at every start of a container.
    """
    parent = os.getppid()
    try:
        boot = BOOT_ID.read_text().strip()
    except OSError:  # a sandbox without it
        boot = ""
    return {"parent": parent, "parent_started": start_ticks(parent), "boot": boot, "host": socket.gethostname()}


def has_same_parent(path: Path) -> bool:
    """True if the last holder of `path` had the parent of this process: a launcher restarts its processes."""
    return _read(path).items() >= parent_identity().items()


def is_signed(path: Path) -> bool:
    """True if a run has held the lock of `path`: any program may leave an empty file of this name."""
    return _read(path).keys() >= {"parent", "host"}


def _read(path: Path) -> dict[str, Any]:  # Any: values of JSON
    """Returns what the lock of `path` says of its last holder; empty where it says nothing."""
    try:
        found: Any = json.loads((path / LOCK).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
