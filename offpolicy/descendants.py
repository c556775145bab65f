"""Processes that the children of a run have started and left behind: they are adopted, and end with the run.

They are told from other children of this process, which are nobody's business here, by an environment variable that
they have inherited. One that got another environment is known if its parent was alive when `note` was called last.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

VARIABLE = "OFFPOLICY_DESCENDANT_OF"  # marks of those that a process descends from, joined by ":"
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
MARKS_BYTES = 100  # of the mark of a run
WNOTHREAD = 0x20000000  # of the kernel: only children of the calling thread; the adopted ones are the main thread's
ROUNDS = 50  # of killing, at most: each one may free processes that the killed ones had started
KILL_TIMEOUT_S = 5.0  # from a kill to the end of the process, unless the kernel holds it (a disk that does not answer)
HELD_S = 30.0  # the same outside of a stop: a process with gigabytes, or on a GPU, takes seconds to end
POLL_S = 0.005
EXEC_TIMEOUT_S = 0.1  # in which a process that has just begun another program shows the environment of that
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
    """The processes that descend from children which got `environment`.

    Use it on the main thread only: the adopted processes are its children, and other threads reap their own.
    """

    def __init__(self) -> None:
        self._mark = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._noted: set[tuple[int, bytes]] = set()  # pid and instant of start: pids come again

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment of a child, whose descendants count as ours."""
        return {**base, VARIABLE: self.marks(base)}

    def marks(self, base: Mapping[str, str]) -> str:
        """Returns the value of `VARIABLE` in that environment."""
        return ":".join(filter(None, (base.get(VARIABLE), self._mark)))

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
        """Kills and reaps the adopted processes, see `left`, and what those leave behind; returns their number.

        One that the kernel holds is given up after `KILL_TIMEOUT_S`.
        """
        count, left_alone = 0, set(known)
        for _ in range(ROUNDS):
            adopted = self.left(left_alone)
            if not adopted:
                break
            self.note(adopted)  # what they leave behind
            for pid in adopted:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            held = _wait_for(adopted)
            count += len(adopted) - len(held)
            left_alone |= held
        self.reap(known)
        return count

    def reap(self, known: Collection[int]) -> None:
        """Reaps the adopted processes that have ended; those in `known` are reaped by their owners.

        What has ended has no environment any more, so the children that other threads have started are left to those.
        """
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT | WNOTHREAD
        with contextlib.suppress(ChildProcessError):
            if os.waitid(os.P_ALL, 0, flags) is None:
                return  # the usual case costs one call
        for pid in _children_of_thread().difference(known):
            _reap(pid)

    def _is_ours(self, pid: int) -> bool:
        if (pid, _started(pid)) in self._noted:
            return True
        entries = environment_of(pid).split(b"\0")
        found = [entry.partition(b"=")[2] for entry in entries if entry.startswith(f"{VARIABLE}=".encode())]
        return any(self._mark.encode() in marks.split(b":") for marks in found)


def with_room_for_marks(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a process whose forks are given marks of their own by `mark_this_process`."""
    return {**environment, VARIABLE: "-" * (len(environment.get(VARIABLE, "")) + MARKS_BYTES)}


def mark_this_process(marks: str) -> None:
    """Marks a fork, and what it will start, in the place of the process that it is a fork of.

    The kernel shows the environment that a program began with, so the marks are written into that memory.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    room = len(os.environ[VARIABLE])
    ctypes.memmove(libc.getenv(VARIABLE.encode()), marks.encode()[:room].ljust(room, b"\0"), room)
    os.environ[VARIABLE] = marks


def environment_of(pid: int) -> bytes:
    """Returns the environment that a process began with, entries end in a zero byte; empty for one that has ended.

    It is empty too for the moment in which a process begins another program; such a one is read again.
    """
    for _ in range(round(EXEC_TIMEOUT_S / POLL_S)):
        with contextlib.suppress(OSError):
            if found := Path(f"/proc/{pid}/environ").read_bytes():
                return found
        if start_ticks(pid) is None:
            break
        select.select([], [], [], POLL_S)
    return b""


def _wait_for(pids: Collection[int]) -> set[int]:
    """Reaps killed children; returns those that have not ended within `KILL_TIMEOUT_S`."""
    left = set(pids)
    for _ in range(round(KILL_TIMEOUT_S / POLL_S)):
        for pid in tuple(left):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    continue
            left.remove(pid)
        if not left:
            break
        select.select([], [], [], POLL_S)
    return left


def is_stopped(pid: int) -> bool:
    """True for a process that a signal, or a debugger, has stopped."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in _STOPPED


def children_of(parent: int) -> set[int]:
    """Returns the pids of a process's children, dead ones that nobody has reaped included."""
    return children_by_parent()[parent]


def _children_of_thread() -> set[int]:
    """Returns the children of this thread, dead ones that nobody has reaped included."""
    try:
        text = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()
    except OSError:  # a kernel without this file
        return children_of(os.getpid())
    return set(map(int, text.split()))


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
