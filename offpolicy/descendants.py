"""Processes that the children of a run have started and left behind: they are adopted, and end with the run.

They are told from other children of this process, which are nobody's business here, by an environment variable that
they have inherited. One that got another environment is known if its parent was alive when `note` was called last.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

VARIABLE = "OFFPOLICY_DESCENDANT_OF"  # marks of those that a process descends from, joined by ":"
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
WNOTHREAD = 0x20000000  # of the kernel: only children of the calling thread; the adopted ones are the main thread's
ROUNDS = 50  # of killing, at most: each one may free processes that the killed ones had started
_STOPPED = (b"T", b"t")  # states of a process that a signal, or a debugger, has stopped
_ENDED = (b"Z", b"X")  # states of a process that has ended and that nobody has reaped
_STARTED = 19  # index of the instant of a process's start, of those in `_stat`


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Makes this process the parent of what its descendants leave behind, instead of the machine's first process."""
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, before.value)


class Descendants:
    """The processes that descend from children which got `environment`. Of the main thread."""

    def __init__(self) -> None:
        self._mark = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._noted: set[tuple[int, bytes]] = set()  # pid and instant of start: pids come again

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment of a child, whose descendants count as ours."""
        return {**base, VARIABLE: ":".join(filter(None, (base.get(VARIABLE), self._mark)))}

    def note(self, parents: Collection[int]) -> None:
        """Remembers all that descends from `parents` now, whatever environment it has."""
        below, pending = children_by_parent(), list(parents)
        while pending:
            for pid in below[pending.pop()]:
                pending.append(pid)
                self._noted.add((pid, _started(pid)))

    def left(self, known: Collection[int]) -> set[int]:
        """Returns the adopted processes: our descendants that are children of this process, other than `known`."""
        return {pid for pid in children_of(os.getpid()).difference(known) if self._is_ours(pid)}

    def kill(self, known: Collection[int]) -> int:
        """Kills and reaps the adopted processes, and what those leave behind; returns their number."""
        count = 0
        for _ in range(ROUNDS):
            adopted = self.left(known)
            if not adopted:
                break
            self.note(adopted)  # what they leave behind
            for pid in adopted:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in adopted:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
                    count += 1
        for pid in children_of(os.getpid()).difference(known):
            _reap(pid)
        return count

    def reap(self, known: Collection[int]) -> None:
        """Reaps the adopted processes that have ended; a dead child in `known`, whose owner reaps it, comes first.

        What has ended has no environment any more, so the children that other threads have started are left to those.
        """
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT | WNOTHREAD
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, flags)) and ended.si_pid not in known:
                _reap(ended.si_pid)

    def _is_ours(self, pid: int) -> bool:
        if (pid, _started(pid)) in self._noted:
            return True
        with contextlib.suppress(OSError):
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            marks = [entry.partition(b"=")[2] for entry in entries if entry.startswith(f"{VARIABLE}=".encode())]
            return any(self._mark.encode() in mark.split(b":") for mark in marks)
        return False


def is_stopped(pid: int) -> bool:
    """True for a process that a signal, or a debugger, has stopped."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in _STOPPED


def children_of(parent: int) -> set[int]:
    """Returns the pids of a process's children, dead ones that nobody has reaped included."""
    return children_by_parent()[parent]


def children_by_parent() -> defaultdict[int, set[int]]:
    """Returns the children of every process, dead ones that nobody has reaped included."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        if fields := _stat(pid):
            found[int(fields[1])].add(pid)
    return found


def _reap(pid: int) -> None:
    """Reaps a process that has ended, unless another thread of this process has started it."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | WNOTHREAD)


def start_ticks(pid: int) -> int | None:
    """Returns when a process started, in clock ticks since the boot; None for one that has ended."""
    fields = _stat(pid)
    return int(fields[_STARTED]) if fields and fields[0] not in _ENDED else None


def _started(pid: int) -> bytes:
    """Returns the instant of a process's start, also of one that nobody has reaped; empty for one that is gone."""
    fields = _stat(pid)
    return fields[_STARTED] if fields else b""


def _stat(pid: int) -> list[bytes]:
    """Returns state, parent and what follows of /proc/<pid>/stat; nothing for a process that is gone.

    As bytes: its name, which stands before them in brackets, may be any.
    """
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return []
