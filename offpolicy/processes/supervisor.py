"""The supervisor: starts the children, hears their messages and their deaths, turns signals into an orderly stop.

It imports no torch and never blocks for long, so it always answers. States: running, stopping (learner saves and
leaves, until a deadline), killing. Every path ends in the same clean-up, and the first failure is the one reported.
"""

from __future__ import annotations

import json
import math
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from offpolicy.children import describe_exit
from offpolicy.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, HangError
from offpolicy.processes.control_page import (
    CollectorWord,
    ControlPage,
    ControlWords,
    EvaluatorWord,
    HostWord,
    RankWord,
    Stop,
)
from offpolicy.processes.shared_memory import WakeEvent
from offpolicy.processes.signals import SIGNALS, signals_held

START_TIMEOUT_S = 120.0  # imports and construction of a child
WORKER_GRACE_S = 8.0
LEARNER_STEP_TIMEOUT_S = 600.0  # one iteration, the first compilation included
PAUSE_S = 2.0  # a longer gap between two looks means that nothing ran at all
KILL_TIMEOUT_S = 5.0
PEER_GRACE_S = 5.0  # for the other learner ranks to notice that one has died, before they are killed
TICK_S = 0.1
ProcessWord = type[RankWord] | type[CollectorWord] | type[EvaluatorWord]
WORDS_OF_ROLE: Mapping[str, ProcessWord] = {
    "learner": RankWord,
    "collector": CollectorWord,
    "evaluator": EvaluatorWord,
}  # by role


@dataclass(frozen=True, slots=True)
class Failure:
    """Who failed and why; the last block on stderr."""

    role: str
    index: int
    pid: int
    env_steps: int  # transitions collected when it was noticed
    exit_code: int
    cause: str
    traceback: str = ""
    is_consequence: bool = False  # of another failure: replaced by it when it is known


@dataclass(slots=True)
class Child:
    """A running child process."""

    role: str
    index: int
    process: subprocess.Popen[bytes]
    messages: int  # read end of its message pipe
    pidfd: int
    buffered: bytes = b""
    error: dict[str, Any] = field(default_factory=dict)  # its last words, JSON
    is_killed: bool = False  # by us: its end is not a failure of its own

    @property
    def name(self) -> str:
        """Role and index."""
        return f"{self.role} {self.index}"

    @property
    def is_learner(self) -> bool:
        """Whether it is a learner rank, not a collector or the evaluator."""
        return self.role == "learner"

    @property
    def is_collector(self) -> bool:
        """Whether it steps environments to learn from."""
        return self.role == "collector"


@dataclass(frozen=True, slots=True)
class SupervisorConfig:
    """What a supervisor is given by its surroundings."""

    run_id: str  # in the environment of every process of the run, grandchildren included
    log_fd: int  # where the children's stdout and stderr go
    stop_timeout_s: float  # for the iteration, the final checkpoint and the children's exit
    elapsed_s: Callable[[], float]  # a clock that never steps back
    num_hosts: int = 1  # whose collectors do as many env steps as ours
    peer_timeout_s: float = 0.0  # how long a learner rank may wait for the others, busy with a collective


MessageHandler = Callable[[Child, Mapping[str, Any]], None]


class Supervisor:
    """Owner of the children. Use as a context manager: leaving it kills and reaps whatever is left."""

    def __init__(self, control: ControlPage, wake_events: tuple[WakeEvent, ...], host: SupervisorConfig) -> None:
        self._control, self._wake_events, self._host = control, wake_events, host
        self._selector = selectors.DefaultSelector()
        self._children: list[Child] = []
        self._lifeline_read, self._lifeline_write = os.pipe()
        self._deadline_s: float | None = None
        self._heartbeats: dict[str, tuple[int, float]] = {}
        self._num_signals = 0
        self._checked_s = 0.0
        self._stalled_since_s: tuple[tuple[int, int], float] = ((-1, -1), 0.0)
        self.failure: Failure | None = None
        self.signal_code = 0  # of the first signal, unless a failure came before it

    def __enter__(self) -> Supervisor:
        self._wake_read, wake_write = socket.socketpair()
        wake_write.setblocking(False)
        self._wake_write = wake_write
        self._old_wakeup = signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        self._old_handlers = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._checked_s = self._host.elapsed_s()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # those that came while `signals_held` are taken now
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_all()
        os.close(self._lifeline_write)
        os.close(self._lifeline_read)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()

    # -- children -----------------------------------------------------------------------------------------------------

    def spawn(self, role: str, index: int, target: str, payload: Mapping[str, Any], fds: Mapping[str, int]) -> None:
        """Start `target` (`module:function`) in a fresh interpreter with the shared descriptors `fds`."""
        spec_read, spec_write = os.pipe()
        message_read, message_write = os.pipe()
        spec = {
            "role": role, "index": index, "target": target, "payload": payload, "fds": dict(fds),
            "message_fd": message_write, "lifeline_fd": self._lifeline_read, "supervisor_pid": os.getpid(),
        }  # fmt: skip
        passed = (spec_read, message_write, self._lifeline_read, *fds.values())
        command = [sys.executable, "-P", "-m", "offpolicy.processes.child", str(spec_read)]
        environment = {**os.environ, "OFFPOLICY_RUN_ID": self._host.run_id}
        with signals_held():
            process = subprocess.Popen(
                command, pass_fds=passed, env=environment, stdin=subprocess.DEVNULL,
                stdout=self._host.log_fd, stderr=self._host.log_fd,
            )  # fmt: skip
        os.close(spec_read)
        os.close(message_write)
        with os.fdopen(spec_write, "wb") as sink:
            sink.write(json.dumps(spec).encode())
        os.set_blocking(message_read, False)
        child = Child(role, index, process, message_read, os.pidfd_open(process.pid))
        self._children.append(child)
        self._selector.register(child.messages, selectors.EVENT_READ, child)
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)

    def run(self, on_message: MessageHandler, on_tick: Callable[[], None], step_timeout_s: float) -> None:
        """Supervise until every child has gone. `on_tick` is called about ten times a second."""
        while self._children:
            for key, _ in self._selector.select(TICK_S):
                if key.data is None:
                    self._wake_read.recv(64)
                elif key.data not in self._children:
                    continue  # buried by an event before this one: its descriptors are closed
                elif key.fd == key.data.messages:
                    self._read_messages(key.data, on_message)
                else:
                    self._reap(key.data, on_message)
            on_tick()
            self._discount_pause()
            self._check_heartbeats(step_timeout_s)
            self._check_standstill(step_timeout_s)
            self._check_stop()

    def stop(self, level: Stop) -> None:
        """Ask everybody to finish, and set the deadline after which they are killed."""
        if self._stop_level < level:
            self._control.host.set(HostWord.STOP, level)
        if self._deadline_s is None:
            self._deadline_s = self._host.elapsed_s() + self._host.stop_timeout_s
        self._wake_all()

    @property
    def _stop_level(self) -> int:
        return self._control.host.get(HostWord.STOP)

    @property
    def _env_steps(self) -> int:
        return self._host.num_hosts * self._control.env_steps

    def _words(self, child: Child) -> ControlWords:
        """The control words of a child."""
        control = self._control
        sections = {"learner": control.ranks, "collector": control.collectors, "evaluator": (control.evaluator,)}
        return sections[child.role][child.index]

    def _is_waiting(self, child: Child) -> bool:
        return bool(self._words(child).get(WORDS_OF_ROLE[child.role].IS_WAITING))

    def _read_messages(self, child: Child, on_message: MessageHandler) -> bool:
        """Take what a child has written; False at the end of its messages, or when there is nothing now."""
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
            else:
                on_message(child, message)
        return True

    def _reap(self, child: Child, on_message: MessageHandler) -> None:
        """Reap a dead child, hear its last words and draw the consequences."""
        code = child.process.wait()
        self._selector.unregister(child.pidfd)
        # Not until end of file: a process that an environment left behind may hold the pipe open.
        while child.messages in self._selector.get_map() and self._read_messages(child, on_message):
            pass
        if child.messages in self._selector.get_map():
            self._selector.unregister(child.messages)
        os.close(child.pidfd)
        os.close(child.messages)
        self._children.remove(child)
        if child.is_collector:
            self._words(child).set(CollectorWord.IS_GONE, 1)
        is_expected = code == 0 and (child.is_learner or self._stop_level == Stop.EXIT)
        if not is_expected and not child.is_killed:
            self._note_failure(child, code)
        learners = [other for other in self._children if other.is_learner]
        self.stop(Stop.FINISH if learners else Stop.EXIT)
        if child.is_learner and not is_expected and learners:
            # The others cannot train without it. They notice by themselves, and are not waited for long.
            self._deadline_s = min(self._deadline_s or math.inf, self._host.elapsed_s() + PEER_GRACE_S)

    def _note_failure(self, child: Child, code: int) -> None:
        if self.failure is not None and not (self.failure.is_consequence and not child.error.get("is_consequence")):
            return  # the first one counts, unless it was only a consequence of this one
        end = describe_exit(code).removeprefix("was ") + (" without being asked to" if code >= 0 else "")
        cause = child.error.get("text") or f"{end}; what it printed is in train.log"
        name = child.error.get("error")
        self.failure = Failure(
            role=child.role,
            index=child.index,
            pid=child.process.pid,
            env_steps=self._env_steps,
            exit_code=int(child.error.get("code", 1)),
            cause=f"{name}: {cause}" if name else cause,
            traceback=child.error.get("traceback", ""),
            is_consequence=bool(child.error.get("is_consequence")),
        )

    def _wake_all(self) -> None:
        for wake_event in self._wake_events:
            wake_event.set()

    # -- time ---------------------------------------------------------------------------------------------------------

    def _discount_pause(self) -> None:
        """Time in which nothing ran (Ctrl-Z, a frozen container, a paused machine) counts against nobody."""
        now_s = self._host.elapsed_s()
        gap_s = now_s - self._checked_s
        self._checked_s = now_s
        if gap_s > PAUSE_S:
            self._heartbeats = {
                name: (progress, since_s + gap_s) for name, (progress, since_s) in self._heartbeats.items()
            }
            self._stalled_since_s = (self._stalled_since_s[0], self._stalled_since_s[1] + gap_s)
            if self._deadline_s is not None:
                self._deadline_s += gap_s

    def _check_stop(self) -> None:
        """A stop has a deadline. Half-way to it a collector that does not answer is given up: the learner can save."""
        if self._deadline_s is None:
            return
        left_s = self._deadline_s - self._host.elapsed_s()
        if left_s < self._host.stop_timeout_s / 2 and self._stop_level == Stop.FINISH:
            for child in self._children:
                if not child.is_learner and not self._is_waiting(child):
                    child.is_killed = True
                    child.process.kill()
        if left_s < 0:
            self._fail_hung_stop()
            self._kill_all()

    def _check_standstill(self, timeout_s: float) -> None:
        """Learners and collectors waiting for each other would wait for ever."""
        counts = (self._control.env_steps, self._control.leader.get(RankWord.UPDATES))
        are_waiting = all(self._is_waiting(child) for child in self._children)
        now_s = self._host.elapsed_s()
        if counts != self._stalled_since_s[0] or not are_waiting or self._deadline_s is not None:
            self._stalled_since_s = (counts, now_s)
        elif now_s - self._stalled_since_s[1] > timeout_s and self.failure is None:
            self.failure = self._hang(
                self._children[0], f"learner and collector waited for each other for {timeout_s:g} s"
            )
            self._kill_all()

    def _check_heartbeats(self, timeout_s: float) -> None:
        """End the run when a child has been busy without any progress for too long."""
        for child in self._children:
            words = self._words(child)
            progress = words.get(WORDS_OF_ROLE[child.role].PROGRESS)
            waiting = self._is_waiting(child)
            # A collector that finds a worker silent names it, but must close the others first.
            limit_s = timeout_s + WORKER_GRACE_S
            if child.is_learner:
                limit_s = max(timeout_s, LEARNER_STEP_TIMEOUT_S, self._host.peer_timeout_s + PEER_GRACE_S)
            if progress == 0 or child.role == "evaluator":  # still starting; it starts anew with every evaluation
                limit_s = max(limit_s, START_TIMEOUT_S)
            last, since_s = self._heartbeats.get(child.name, (-1, 0.0))
            now_s = self._host.elapsed_s()
            if progress != last or waiting or self.failure is not None:
                self._heartbeats[child.name] = (progress, now_s)
            elif now_s - since_s > limit_s:
                self._fail_hung(child, limit_s)

    def _fail_hung(self, child: Child, limit_s: float) -> None:
        child.process.send_signal(signal.SIGUSR2)  # its stacks go to train.log
        self._watch_briefly()
        cause = (
            f"no progress for {limit_s:g} s, longer than env.step_timeout_s; the stacks of its threads are in train.log"
        )
        self.failure = self._hang(child, cause)
        child.process.kill()

    def _fail_hung_stop(self) -> None:
        if self.failure is None and self._stop_level == Stop.FINISH:
            child = self._children[0]
            cause = f"did not finish within {self._host.stop_timeout_s:g} s of the stop request"
            self.failure = self._hang(child, cause)

    def _hang(self, child: Child, cause: str) -> Failure:
        return Failure(child.role, child.index, child.process.pid, self._env_steps, HangError.exit_code, cause)

    def _watch_briefly(self) -> None:
        """Give a signalled child a moment to write its stacks."""
        select.select([], [], [], 0.2)

    # -- signals ------------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """First: finish and save. Second: everything is gone at once."""
        self._num_signals += 1
        if self._num_signals > 1 and number == signal.SIGINT:
            self._kill_all()
            return
        if self.failure is None:
            self.signal_code = self.signal_code or (EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED)
        self.stop(Stop.FINISH)

    def _kill_all(self) -> None:
        for child in self._children:
            child.is_killed = True
            child.process.kill()
        for child in self._children:
            child.process.wait(KILL_TIMEOUT_S)
