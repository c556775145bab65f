"""Processes that the children of a run have started and left behind: the supervisor adopts them, and ends them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
ROUNDS = 50  # of killing, at most: each one may free processes that the killed ones had started
STOPPED = "Tt"  # states of a process that a signal, or a debugger, has stopped


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


def is_stopped(pid: int) -> bool:
    """True for a process that a signal, or a debugger, has stopped."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in STOPPED


def children_of(parent: int) -> set[int]:
    """Returns the pids of a process's children, dead ones that nobody has reaped included."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {pid for pid in pids if (fields := _stat(pid)) and fields[1] == str(parent)}


def kill_adopted(known: Collection[int]) -> int:
    """Kills and reaps this process's children other than `known`, and what those leave behind; returns their number."""
    count = 0
    for _ in range(ROUNDS):
        adopted = children_of(os.getpid()).difference(known)
        if not adopted:
            break
        for pid in adopted:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in adopted:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
                count += 1
    return count


def reap_adopted(known: Collection[int]) -> None:
    """Reaps the adopted processes that have ended; the children in `known` are left to those who wait for them."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in known:
            os.waitpid(ended.si_pid, os.WNOHANG)


def _stat(pid: int) -> list[str]:
    """Returns state, parent and what follows of /proc/<pid>/stat; nothing for a process that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
