"""The lock of a run directory, and what it says about the run that holds it.

The kernel lock on `.lock` is released by any death of its holder. It belongs to the open file, so a process forked
from the holder would keep it; children are spawned and do not inherit it.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from offpolicy import fault
from offpolicy.errors import ConfigError, RunDirBusyError
from offpolicy.processes.children import start_ticks
from offpolicy.runs import LOCK

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # another one after every start of the machine


class RunLock:
    """An exclusive kernel lock on `<directory>/.lock`, whose content names the holder.

    Not `filelock`: its older versions empty the file before they have the lock, so that a refused process erases the
    holder's name, and a newer one that may not wait refuses a claim because of another that is being withdrawn.
    """

    def __init__(self, directory: Path) -> None:
        """Locks. Raises `RunDirBusyError` if another process holds the lock, `ConfigError` if it cannot be had."""
        self._path = directory / LOCK
        self._descriptor, self._is_new = -1, False
        self._found, self._found_ns = b"", (0, 0)  # content and times of the file before it was signed
        try:
            while not self._take():
                pass
        except OSError as error:
            raise ConfigError(f"run_dir: {directory} is not writable: {error.strerror}") from error

    def release(self) -> None:
        """Unlocks; the file stays, without the pid of the holder. Does nothing once it is unlocked."""
        if self._descriptor >= 0:
            with suppress(OSError):  # a full disk: the pid says nothing once its process has ended
                self._sign(parent_identity())
        self._close()

    def withdraw(self) -> None:
        """Unlocks and leaves the directory as it was found, and with it what the lock says of its last holder.

        Without the pid of a holder that was killed, an earlier end of the run would pass for its last one.
        """
        if self._is_new:
            self._path.unlink()
        elif self._descriptor >= 0:
            with suppress(OSError):  # a full disk
                self._write(self._found)
                os.utime(self._descriptor, ns=self._found_ns)
        self._close()

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
            self._close()
            raise RunDirBusyError(f"run_dir: {self._path.parent} is in use by {holder}") from error
        except OSError as error:
            self._close()  # first: without the lock, what the file says is another's
            self.withdraw()
            raise ConfigError(
                f"run_dir: {self._path.parent} cannot be locked: {error.strerror}; choose a directory on a file system"
                " with flock, or mount this one with it"
            ) from error
        try:
            # A lock on a removed file would exclude no other process.
            if not (self._path.exists() and os.path.samestat(os.fstat(self._descriptor), self._path.stat())):
                self._close()
                return False
            found = os.fstat(self._descriptor)
            self._found_ns = (found.st_atime_ns, found.st_mtime_ns)
            self._found = os.pread(self._descriptor, found.st_size, 0)
            pid = os.getpid()
            self._sign({"pid": pid, "started": start_ticks(pid), **parent_identity()})
        except OSError:
            self.withdraw()
            raise
        return True

    def _sign(self, holder: Mapping[str, object]) -> None:
        self._write(json.dumps(dict(holder)).encode())

    def _write(self, content: bytes) -> None:
        fault.hit("run_dir.lock")
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_running(path: Path) -> bool | None:
    """True if the holder of the lock of `path` is alive, None if it is on another host; the lock is not touched.

    A holder that has released the lock has removed its pid from it.
    """
    holder = _read(path)
    if not isinstance(holder.get("pid"), int) or "host" not in holder:
        return False
    if holder["host"] != socket.gethostname():
        return None
    started = start_ticks(holder["pid"])  # tells a holder from a later process with its pid
    return started is not None and started == holder.get("started", started)


def parent_identity() -> dict[str, object]:
    """Returns what tells the parent of this process from every other process, on this host and in later boots of it.

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
    """True if a run has held the lock of `path`: an empty file of this name is anybody's."""
    return _read(path).keys() >= {"parent", "host"}


def _read(path: Path) -> dict[str, Any]:  # Any: values of JSON
    """Returns what the lock of `path` says of its last holder; empty where it says nothing."""
    try:
        found: Any = json.loads((path / LOCK).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _holder(content: bytes) -> str:
    """Returns the holder of the lock in words; its file may be read before the holder has signed it."""
    try:
        holder = json.loads(content)
        return f"pid {holder['pid']} on host {holder['host']}"
    except (ValueError, TypeError, KeyError, RecursionError):
        return "another process"
