"""The child processes of a run: forked by the fork server, listened to, reaped, and killed with what they started.

It decides nothing: the supervisor says who is started, stopped and killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

from offpolicy import fault
from offpolicy.descendants import HELD_S, KILL_TIMEOUT_S, Descendants, children_of
from offpolicy.errors import StartError
from offpolicy.fork_server import ForkServer, Process, Stdio


@dataclass(frozen=True, slots=True)
class Start:
    """What a child is started with."""

    role: str
    index: int
    target: str  # its main function, `module:function`
    payload: Mapping[str, Any]  # JSON values
    fds: Mapping[str, int]  # descriptors that it inherits, by name

    @property
    def name(self) -> str:
        """Role and index."""
        return f"{self.role} {self.index}"


@dataclass(slots=True)
class Child:
    """A running child process."""

    start: Start
    process: Process
    pidfd: int
    messages: int  # read end of its message pipe
    buffered: bytes = b""
    error: dict[str, Any] = field(default_factory=dict)  # its error message, JSON
    is_killed: bool = False  # by the supervisor, so its end is no failure
    killed_s: float | None = None  # when it was sent SIGKILL first
    is_closed: bool = False  # its descriptors are
    has_finished: bool = False  # its main function has returned; exit code 0 alone may be an environment's `os._exit`

    @property
    def role(self) -> str:
        """learner, collector or evaluator."""
        return self.start.role

    @property
    def index(self) -> int:
        """Its number among those of its role."""
        return self.start.index

    @property
    def name(self) -> str:
        """Role and index."""
        return self.start.name

    @property
    def is_learner(self) -> bool:
        """True for a learner rank, false for a collector or the evaluator."""
        return self.role == "learner"


MessageHandler = Callable[[Child, Mapping[str, Any]], None]


class Event(NamedTuple):
    """A reason why a wait has ended."""

    child: Child | None  # None: the descriptor given to `watch` is readable
    has_ended: bool = False  # False: the child has written messages


class ChildProcesses:
    """The children that run, in the order of their starts. Its `close` kills them and what they have started."""

    def __init__(
        self, server: ForkServer, log_fd: int, elapsed_s: Callable[[], float], on_message: MessageHandler
    ) -> None:
        """`log_fd`: file of the children's stdout and stderr. `on_message` gets what they send but errors and ends."""
        self._server, self._log_fd, self._elapsed_s, self._on_message = server, log_fd, elapsed_s, on_message
        self._running: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._lifeline_read, self._lifeline_write = os.pipe()
        self._descendants = Descendants()
        self._strangers = children_of(os.getpid())  # children that this process had before the run

    def __iter__(self) -> Iterator[Child]:
        """Iterates over a copy: a child may be removed meanwhile."""
        return iter(list(self._running))

    def __contains__(self, child: object) -> bool:
        return child in self._running

    def __len__(self) -> int:
        return len(self._running)

    @property
    def learners(self) -> list[Child]:
        """The learner ranks that run."""
        return [child for child in self._running if child.is_learner]

    def close(self) -> None:
        """Kills the children, then what they have left behind; closes every descriptor whatever fails."""
        with contextlib.ExitStack() as steps:  # the last one first
            steps.callback(self._selector.close)
            for lifeline in (self._lifeline_read, self._lifeline_write):
                steps.callback(os.close, lifeline)
            steps.callback(self._descendants.kill, self._strangers)
            for child in self._running:
                steps.callback(self._close_descriptors, child)
            steps.callback(self.kill_all)

    # -- starting -----------------------------------------------------------------------------------------------------

    def spawn(self, start: Start) -> int:
        """Starts a child; returns its pid. Raises `StartError` if the machine refuses."""
        try:
            with contextlib.ExitStack() as opened:
                spec_read, spec_write = _pipe(opened)
                message_read, message_write = _pipe(opened)
                process = self._fork(start, spec_read.fileno(), message_write.fileno())
                spec_read.close()
                child = Child(start, process, os.pidfd_open(process.pid), os.dup(message_read.fileno()))
                # Killed already: that is noticed by its pidfd.
                with contextlib.suppress(BrokenPipeError):
                    fault.hit("spawn.spec")
                    spec_write.write(_spec(start))
                    spec_write.close()
        except OSError as error:  # a process that was started nevertheless ends with the supervisor
            raise StartError(f"{start.name} cannot be started: {error.strerror}") from error
        self.add(child)
        return process.pid

    def add(self, child: Child) -> None:
        """Takes a process that was started into the children."""
        os.set_blocking(child.messages, False)
        self._running.append(child)
        self._selector.register(child.messages, selectors.EVENT_READ, child)
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)

    def _fork(self, start: Start, spec_fd: int, message_fd: int) -> Process:
        """Starts the process of a child, which reads from `spec_fd` what it is to do."""
        fault.hit("spawn")
        with open(os.devnull, "rb") as stdin:
            return self._server.fork(
                "offpolicy.processes.child:main", [spec_fd, message_fd, self._lifeline_read, *start.fds.values()],
                stdio=Stdio(stdin.fileno(), self._log_fd, self._log_fd),
                marks=self._descendants.marks(os.environ),
            )  # fmt: skip

    # -- listening ----------------------------------------------------------------------------------------------------

    def watch(self, fd: int) -> None:
        """Lets `wait` end when this descriptor is readable, too."""
        self._selector.register(fd, selectors.EVENT_READ, None)

    def wait(self, timeout_s: float) -> list[Event]:
        """Waits until a child has written or ended, for `timeout_s` at most; returns what has happened.

        A child may come twice: whoever finishes it at its first event must pass over the second.
        """
        fault.hit("supervisor.wait")
        keys = [key for key, _ in self._selector.select(timeout_s)]
        return [
            Event(None) if key.data is None else Event(key.data, has_ended=key.fd == key.data.pidfd) for key in keys
        ]

    def read(self, child: Child) -> bool:
        """Hands on the messages that a child has written; False at their end, or when there are none now."""
        fault.hit("message.read")
        try:
            data = os.read(child.messages, 65536)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(child.messages)
            return False
        *lines, child.buffered = (child.buffered + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["kind"] == "error":
                child.error = message
            elif message["kind"] == "finished":
                child.has_finished = True
            else:
                self._on_message(child, message)
        return True

    def report(self, child: Child, **message: Any) -> None:  # Any: JSON values
        """Hands on a message about a child as if it had sent it."""
        self._on_message(child, message)

    # -- ends ---------------------------------------------------------------------------------------------------------

    def finish(self, child: Child) -> int:
        """Reaps a dead child and reads its last messages; returns its exit code. It stays a child until `remove`."""
        fault.hit("supervisor.reap")
        code = child.process.wait()
        # Not until end of file: a process that an environment left behind may hold the pipe open.
        while child.messages in self._selector.get_map() and self.read(child):
            pass
        self._close_descriptors(child)
        return code

    def remove(self, child: Child) -> None:
        """Removes a child that was finished."""
        self._running.remove(child)

    def kill(self, child: Child) -> None:
        """Kills a child as the supervisor's own doing: its end is no failure."""
        child.is_killed = True
        if child.killed_s is None:
            child.killed_s = self._elapsed_s()
        child.process.kill()

    def kill_hung(self, child: Child) -> None:
        """Kills a child that does not go on. Where it has sent an error before, that is how it ends."""
        self.kill(child)
        child.is_killed = not child.error

    def kill_all(self) -> None:
        """Kills all children and waits for their ends, for `KILL_TIMEOUT_S` at most."""
        fault.hit("supervisor.kill")
        self.note_descendants()
        for child in self._running:
            self.kill(child)
        end_s = self._elapsed_s() + KILL_TIMEOUT_S
        for child in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it
                child.process.wait(max(0.0, end_s - self._elapsed_s()))

    def held(self, pause_s: float) -> list[Child]:
        """Returns the children that were killed and run on after `HELD_S`, as one that waits for a dead disk.

        `pause_s`: seconds since the last call in which nothing ran; they do not count.
        """
        now_s, found = self._elapsed_s(), list[Child]()
        for child in self._running:
            if child.killed_s is None:
                continue
            child.killed_s += pause_s
            if now_s - child.killed_s > HELD_S and child.process.poll() is None:
                found.append(child)
        return found

    def give_up(self, child: Child) -> None:
        """Leaves a child alone that runs although it was killed: the kernel holds it."""
        self._running.remove(child)
        self._close_descriptors(child)

    def _close_descriptors(self, child: Child) -> None:
        if child.is_closed:
            return
        child.is_closed = True
        for fd in (child.pidfd, child.messages):
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
            os.close(fd)

    # -- what the children have started -------------------------------------------------------------------------------

    def note_descendants(self) -> None:
        """Notes what the children have started, while they can still be asked: it is found when they are gone."""
        self._descendants.note([child.process.pid for child in self._running])

    def reap_descendants(self) -> None:
        """Reaps what ended after its parent, which this process has adopted."""
        self._descendants.reap(self._known)

    @property
    def _known(self) -> set[int]:
        """Children of this process that are no adopted ones."""
        return self._strangers.union([self._server.pid], (child.process.pid for child in self._running))


def _spec(start: Start) -> bytes:
    """Returns what a child is to do: the names of its descriptors are in the order in which it gets them."""
    return json.dumps(
        {
            "role": start.role, "index": start.index, "target": start.target, "payload": start.payload,
            "fds": list(start.fds), "supervisor_pid": os.getpid(),
        }
    ).encode()  # fmt: skip


def _pipe(opened: contextlib.ExitStack) -> tuple[BinaryIO, BinaryIO]:
    """Returns the ends of a pipe, for reading and for writing; the stack closes what is still open."""
    read, write = os.pipe()
    return opened.enter_context(open(read, "rb")), opened.enter_context(open(write, "wb"))
