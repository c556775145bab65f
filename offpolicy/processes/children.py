"""The parent's side of processes: the children of a run, and what they leave behind."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from offpolicy import fault
from offpolicy.errors import EnvWorkerKilled

KILL_TIMEOUT_S = 5.0  # from a kill to the end of the process, unless the kernel holds it (a disk that does not answer)
HELD_S = 30.0  # the same outside of a stop: a process with gigabytes, or on a GPU, takes seconds to end
OUTPUT_LINES = 20  # last lines of a failed process's output that its error quotes
POLL_S = 0.005
ROUNDS = 50  # of killing, at most: each one may free processes that the killed ones had started
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_WNOTHREAD = 0x20000000  # of the kernel: only children of the calling thread; the adopted ones are the main thread's
_STARTED = 19  # index of the instant of a process's start, of those in `_stat`


class Child:
    """A fork of the fork server and child of this process: a process of the run, or one that answers a call."""

    def __init__(self, role: str, index: int, pid: int, pidfd: int, messages: int) -> None:
        """`role`: learner, collector, evaluator or call. `messages`: the read end of its pipe of messages."""
        self.role, self.index, self.pid, self.pidfd, self.messages = role, index, pid, pidfd, messages
        self.key, self.name, self.is_learner = (role, index), f"{role} {index}", role == "learner"
        self.returncode: int | None = None  # as that of `subprocess.Popen`: minus the signal that killed it
        self.error: dict[str, Any] = {}  # its error message, JSON
        self.result: Any = None  # of its main function, JSON
        self.has_finished = False  # its main function has returned; exit code 0 may be an environment's `os._exit`
        self.is_killed = False  # by the supervisor, so its end is no failure
        self.killed_s: float | None = None  # when it was sent SIGKILL first
        self.progress, self.progress_s = -1, 0.0  # its word on the control page, and since when it has it
        self.reaction_s: float | None = None  # when it was last known to react
        self._buffered = b""
        os.set_blocking(messages, False)

    def close(self) -> None:
        """Closes the descriptors."""
        os.close(self.pidfd)
        os.close(self.messages)

    def poll(self) -> int | None:
        """Returns the exit code, None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout_s: float) -> int | None:
        """Waits for its end; returns the exit code, None if it runs on."""
        if self.poll() is None:
            wait_readable(timeout_s, self.pidfd)
        return self.poll()

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    @property
    def is_consequence(self) -> bool:
        """True if it has failed because another process has: the learner ranks need each other."""
        return bool(self.error.get("is_consequence"))

    @property
    def is_death(self) -> bool:
        """True if a signal has ended it, or a worker of its environments."""
        if "error" in self.error:
            return bool(self.error["error"] == EnvWorkerKilled.__name__)
        return (self.returncode or 0) < 0

    def read(self) -> list[Mapping[str, Any]] | None:
        """Returns what it has written but errors and ends, which are kept; None at the end, or before there is more."""
        fault.hit("message.read")
        try:
            data = os.read(self.messages, 65_536)
        except BlockingIOError:
            return None
        *lines, self._buffered = (self._buffered + data).split(b"\n")
        others = []
        for message in map(json.loads, lines):
            if message["kind"] == "error":
                self.error = message
            elif message["kind"] == "finished":
                self.has_finished, self.result = True, message["result"]
            else:
                others.append(message)
        return others if data else None


# -- what children leave behind ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Makes this process the parent of what its descendants leave behind, instead of the machine's first process."""
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def own_children() -> set[int]:
    """Returns the children of this thread, dead ones that are not reaped included; the main one's are adopted, too."""
    with contextlib.suppress(OSError):  # a kernel without this file
        return set(map(int, Path("/proc/thread-self/children").read_text().split()))
    return set()


def end_adopted(known: Collection[int]) -> None:
    """Kills and reaps the children of the main thread other than `known`, and what those leave behind."""
    left_alone = set(known)
    for _ in range(ROUNDS):
        if not (adopted := own_children() - left_alone):
            break
        for pid in adopted:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for _ in range(round(KILL_TIMEOUT_S / POLL_S)):
            reap_adopted(known)
            if not adopted & own_children():
                break
            select.select([], [], [], POLL_S)
        left_alone |= adopted & own_children()  # the kernel holds them


def reap_adopted(known: Collection[int]) -> None:
    """Reaps the children of the main thread that have ended, other than `known`, which their owners reap."""
    with contextlib.suppress(ChildProcessError):
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WNOTHREAD) is None:
            return  # the usual case costs one call
        for pid in own_children().difference(known):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | _WNOTHREAD)


# -- other processes --------------------------------------------------------------------------------------------------


def is_stopped(pid: int) -> bool:
    """True for a process that a signal, or a debugger, has stopped."""
    return _stat(pid)[0] in "Tt"


def start_ticks(pid: int) -> int | None:
    """Returns when a process started, in clock ticks since the boot; None for one that has ended."""
    fields = _stat(pid)
    return None if fields[0] in "ZX" else int(fields[_STARTED])


def _stat(pid: int) -> list[str]:
    """Returns state, parent and what follows of /proc/<pid>/stat; the state X of a process that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
    return ["X"]


def wait_readable(timeout_s: float, *fds: int) -> bool:
    """Waits until one of some descriptors can be read, for `timeout_s` at most; True if it can."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def describe_exit(code: int | None) -> str:
    """Returns how a process ended, by its return code: "was killed by SIGKILL" or "exited with code 3"."""
    if code is None or code >= 0:
        return f"exited with code {code}"
    return f"was killed by {signal.Signals(-code).name if -code in {*signal.Signals} else f'signal {-code}'}"


def scratch_file() -> BinaryIO:
    """Returns an empty file without a name, in memory: /tmp may be full, or read-only."""
    return os.fdopen(os.memfd_create("offpolicy-call"), "w+b")


def tail_of(output: BinaryIO) -> str:
    """Returns the last `OUTPUT_LINES` lines of a file that a process has printed to."""
    output.seek(0)
    return "\n".join(output.read().decode(errors="replace").rstrip().splitlines()[-OUTPUT_LINES:])


def module_path() -> list[str]:
    """Returns where Python looks for modules here, for another process: what is no text in `sys.path` it ignores."""
    return [entry for entry in sys.path if isinstance(entry, str)]
