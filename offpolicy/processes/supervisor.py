"""The supervisor: starts the children, reads their messages, reaps them, turns signals into an orderly stop.

It imports no torch and never blocks for long, so it always answers. States: running, stopping (the learner saves and
exits, until a deadline), killing. Every path ends in the same clean-up, and the first failure is the one reported.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from offpolicy import fault
from offpolicy.children import describe_exit, signals_blocked, with_bounded_spin
from offpolicy.descendants import KILL_TIMEOUT_S, Descendants, adopting, children_of, is_stopped
from offpolicy.errors import EXIT_CRASH_LOOP, HangError, OffPolicyError, StartError
from offpolicy.processes.control_page import CollectorWord, ControlPage, HostWord, Stop
from offpolicy.processes.oom import OomWatch
from offpolicy.processes.restarts import (
    LEARNERS,
    NO_RESTARTS,
    LearnerRestarts,
    RestartPolicy,
    Restarts,
    clear_collector_words,
    clear_rank_words,
)
from offpolicy.processes.run_signals import RunSignals
from offpolicy.processes.shared_memory import WakeEvent
from offpolicy.processes.watchdog import FROZEN_S, PEER_GRACE_S, Watchdog

STACKS_S = 0.2  # for a signalled child to write its stacks
TICK_S = 0.1  # at most, between two checks of the children


@dataclass(frozen=True, slots=True)
class Failure:
    """The process that failed and the cause; the last block on stderr."""

    role: str
    index: int
    pid: int
    env_steps: int  # transitions collected when it was noticed
    exit_code: int
    cause: str
    traceback: str = ""
    is_consequence: bool = False  # of another failure: replaced by it when it is known


@dataclass(frozen=True, slots=True)
class Start:
    """What a child is started with, also when it is started again."""

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
    process: subprocess.Popen[bytes]
    pidfd: int
    messages: int  # read end of its message pipe
    buffered: bytes = b""
    error: dict[str, Any] = field(default_factory=dict)  # its error message, JSON
    is_killed: bool = False  # by the supervisor, so its end is no failure

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


@dataclass(frozen=True, slots=True)
class SupervisorConfig:
    """Identity, clock and time limits of a supervisor."""

    run_id: str  # in the environment of every process of the run, grandchildren included
    log_fd: int  # the file of the children's stdout and stderr
    stop_timeout_s: float  # for the iteration, the final checkpoint and the children's exit
    elapsed_s: Callable[[], float]  # a clock that never steps back
    num_hosts: int = 1  # hosts of the run; the collectors of each do as many env steps as ours
    peer_timeout_s: float = 0.0  # limit of a learner rank's wait for the others in a collective
    start_timeout_s: float = 120.0  # limit of a child's imports and construction, on an idle machine
    restarts: RestartPolicy = NO_RESTARTS  # of collectors
    learner_restarts: LearnerRestarts | None = None  # None: the run ends with its first learner


MessageHandler = Callable[[Child, Mapping[str, Any]], None]


class Supervisor:
    """Owner of the children. Use as a context manager: its exit kills and reaps those that are left."""

    def __init__(self, control: ControlPage, wake_events: tuple[WakeEvent, ...], config: SupervisorConfig) -> None:
        self._control, self._wake_events, self._config = control, wake_events, config
        self._selector = selectors.DefaultSelector()
        self._children: list[Child] = []
        self._lifeline_read, self._lifeline_write = os.pipe()
        self._deadline_s: float | None = None
        self._restarts = Restarts(config.restarts, config.elapsed_s)
        self._dead_learners: list[tuple[Child, int]] = []  # with their exit codes, the one that died first in front
        self._signals = RunSignals(
            config.elapsed_s,
            on_stop=self._on_stop_signal,
            on_kill=self._kill_all,
            on_save=self._on_save_signal,
        )
        self._entered = contextlib.ExitStack()
        self._descendants = Descendants()
        self._strangers: set[int] = set()  # children that this process had before the run
        self.failure: Failure | None = None
        self.death: Failure | None = None  # of a learner, after which all processes are to begin again
        self.signal_code = 0  # of the first signal, unless a failure came before it

    def __enter__(self) -> Supervisor:
        self._watchdog = Watchdog(
            self._control, self._config.elapsed_s, self._config.peer_timeout_s, self._config.start_timeout_s
        )
        self._strangers = children_of(os.getpid())
        self._oom = OomWatch(self._config.elapsed_s)
        with contextlib.ExitStack() as steps:  # of `__exit__`, which takes each, the last one first
            steps.enter_context(adopting())
            steps.enter_context(self._signals)
            steps.callback(self._selector.close)
            for lifeline in (self._lifeline_read, self._lifeline_write):
                steps.callback(os.close, lifeline)
            steps.callback(self._descendants.kill, self._strangers)  # what the environments have left behind
            steps.callback(self._kill_all)
            self._selector.register(self._signals.fd, selectors.EVENT_READ, None)
            self._entered = steps.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    # -- children -----------------------------------------------------------------------------------------------------

    def spawn(self, start: Start) -> int:
        """Starts a child in a fresh interpreter; returns its pid. Raises `StartError` if the machine refuses."""
        try:
            with contextlib.ExitStack() as opened:
                spec_read, spec_write = _pipe(opened)
                message_read, message_write = _pipe(opened)
                process = self._popen(start, spec_read.fileno(), message_write.fileno())
                spec_read.close()
                child = Child(start, process, os.pidfd_open(process.pid), os.dup(message_read.fileno()))
                # Killed already: that is noticed by its pidfd.
                with contextlib.suppress(BrokenPipeError):
                    fault.hit("spawn.spec")
                    spec_write.write(self._spec(start, message_write.fileno()))
                    spec_write.close()
        except OSError as error:  # a process that was started nevertheless ends with the supervisor
            raise StartError(f"{start.name} cannot be started: {error.strerror}") from error
        os.set_blocking(child.messages, False)
        self._children.append(child)
        self._selector.register(child.messages, selectors.EVENT_READ, child)
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)
        return process.pid

    def _popen(self, start: Start, spec_fd: int, message_fd: int) -> subprocess.Popen[bytes]:
        """Starts the interpreter of a child, which reads from `spec_fd` what it is to do."""
        environment = self._descendants.environment(with_bounded_spin(os.environ), of=start.name)
        environment["OFFPOLICY_RUN_ID"] = self._config.run_id
        with signals_blocked():
            fault.hit("spawn")
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "offpolicy.processes.child", str(spec_fd)],
                pass_fds=(spec_fd, message_fd, self._lifeline_read, *start.fds.values()), env=environment,
                stdin=subprocess.DEVNULL, stdout=self._config.log_fd, stderr=self._config.log_fd,
            )  # fmt: skip

    def _spec(self, start: Start, message_fd: int) -> bytes:
        return json.dumps(
            {
                "role": start.role, "index": start.index, "target": start.target, "payload": start.payload,
                "fds": dict(start.fds), "message_fd": message_fd, "lifeline_fd": self._lifeline_read,
                "supervisor_pid": os.getpid(),
            }
        ).encode()  # fmt: skip

    def run(
        self,
        on_message: MessageHandler,
        on_tick: Callable[[], None],
        step_timeout_s: float,
        on_signal: Callable[[], None] = lambda: None,
    ) -> None:
        """Supervises until every child has exited. `on_tick` is called about ten times a second.

        `on_signal` is called at once when the first signal has come: a signal wakes the loop.
        """
        while self._children:
            fault.hit("supervisor.wait")
            events = self._selector.select(TICK_S)
            self._signals.show(on_signal)
            for key, _ in events:
                if key.data is None:
                    self._signals.drain()
                elif key.data not in self._children:
                    continue  # reaped by an event before this one: its descriptors are closed
                elif key.fd == key.data.messages:
                    self._read_messages(key.data, on_message)
                else:
                    self._reap(key.data, on_message)
            on_tick()
            self._oom.look()
            self._descendants.reap(self._known)
            pause_s = self._watchdog.discount_pause()
            if self._deadline_s is not None:
                self._deadline_s += pause_s
            self._check_progress(step_timeout_s)
            self._check_stop(on_message)

    def stop(self, level: Stop) -> None:
        """Asks all children to finish, and sets the deadline after which they are killed."""
        if self._stop_level < level:
            self._control.host.set(HostWord.STOP, level)
        if self._deadline_s is None:
            self._descendants.note([child.process.pid for child in self._children])
            self._deadline_s = self._config.elapsed_s() + self._config.stop_timeout_s
        for wake_event in self._wake_events:
            wake_event.set()

    @property
    def must_start_over(self) -> bool:
        """True if all processes were ended because a learner died, and are to begin again from the checkpoint."""
        return self.death is not None and self.failure is None and not self.signal_code

    @property
    def _stop_level(self) -> int:
        return self._control.host.get(HostWord.STOP)

    def _read_messages(self, child: Child, on_message: MessageHandler) -> bool:
        """Handles the messages that a child has written; False at their end, or when there are none now."""
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
            else:
                on_message(child, message)
        return True

    def _reap(self, child: Child, on_message: MessageHandler) -> None:
        """Reaps a dead child, reads its last messages and stops the run as its end demands."""
        fault.hit("supervisor.reap")
        code = child.process.wait()
        self._selector.unregister(child.pidfd)
        # Not until end of file: a process that an environment left behind may hold the pipe open.
        while child.messages in self._selector.get_map() and self._read_messages(child, on_message):
            pass
        if child.messages in self._selector.get_map():
            self._selector.unregister(child.messages)
        os.close(child.pidfd)
        os.close(child.messages)
        if child.error.get("is_consequence"):
            self._reap_cause(child, on_message)
        self._children.remove(child)
        if child.role == "collector":
            if self._restart_collector(child, code, on_message):
                return
            self._control.collectors[child.index].set(CollectorWord.IS_GONE, 1)
        if child.is_learner and self._restart_learners(child, code, on_message):
            return
        if child.is_killed and self._dead_learners:
            return  # all begin again once the last learner has ended
        is_expected = code == 0 and (child.is_learner or self._stop_level == Stop.EXIT)
        is_expected |= code < 0 and child.role == "collector" and self._stop_level == Stop.EXIT  # all is saved
        if not is_expected and not child.is_killed:
            self._note_exit(child, code)
        learners = [other for other in self._children if other.is_learner]
        self.stop(Stop.FINISH if learners else Stop.EXIT)
        if child.is_learner and not is_expected and learners:
            # The others cannot train without it. They notice by themselves, and get little time to.
            self._deadline_s = min(self._deadline_s or math.inf, self._config.elapsed_s() + PEER_GRACE_S)

    def _reap_cause(self, child: Child, on_message: MessageHandler) -> None:
        """Reaps a dead learner rank before `child`, which exited because it had lost that one."""
        for other in self._children:
            if other is not child and other.is_learner and other.process.poll() is not None:
                self._reap(other, on_message)
                return

    def _restart_collector(self, child: Child, code: int, on_message: MessageHandler) -> bool:
        """Starts a collector again if the run survives its death; else returns False, and fails in a crash loop."""
        words = self._control.collectors[child.index]
        has_begun = bool(words.get(CollectorWord.HAS_BEGUN))
        if self._is_over(child) or not self._restarts.is_survivable(code, child.error, has_begun=has_begun):
            return False
        error = self._with_cause(child.error, code)
        death = self._restarts.add(child.index, code, error, self._env_steps)
        loop = self._restarts.crash_loop(child.index)
        if loop is not None:
            self._fail(child, EXIT_CRASH_LOOP, loop, traceback=child.error.get("traceback", ""))
            return False
        self._tell_death(child, f"{death.cause}; {self._restarts.number(child.index)}", on_message)
        clear_collector_words(words)
        return self._start_again(child, child.start, on_message)

    def _restart_learners(self, child: Child, code: int, on_message: MessageHandler) -> bool:
        """Lets all learners begin again after this end of one of them: their process group is lost with one rank.

        The others are killed first. Returns False where the run does not survive it.
        """
        if not self._dead_learners and not self._end_learners(child, code, on_message):
            return False
        self._dead_learners.append((child, code))
        if any(other.is_learner for other in self._children):
            return True
        ended, self._dead_learners = self._dead_learners, []
        if self.failure is not None or self._stop_level != Stop.RUN:  # meanwhile
            self._note_exit(*ended[0])
            return False
        return self._start_learners(ended, on_message)

    def _end_learners(self, child: Child, code: int, on_message: MessageHandler) -> bool:
        """Kills what begins again after this end of a learner if the run survives it; else as `_restart_collector`."""
        restarts = self._config.learner_restarts
        if self._is_over(child) or restarts is None or not restarts.deaths.is_learner_survivable(code, child.error):
            return False
        who = child.name if len(self._control.ranks) > 1 else "it"
        death = restarts.deaths.add(LEARNERS, code, self._with_cause({}, code), self._env_steps, who)
        loop = restarts.deaths.crash_loop(LEARNERS)
        if loop is not None:
            self._fail(child, EXIT_CRASH_LOOP, loop)
            return False
        self._tell_death(child, f"{death.cause}; {restarts.deaths.number(LEARNERS)}", on_message)
        for other in self._children:
            if other.is_learner or not restarts.keeps_others:
                other.is_killed = True
                other.process.kill()
        return True

    def _start_learners(self, ended: list[tuple[Child, int]], on_message: MessageHandler) -> bool:
        """Starts all learners again beside the other processes; False if there is nothing that they could continue."""
        restarts, (first, code), dead = self._config.learner_restarts, ended[0], [child for child, _ in ended]
        assert restarts is not None  # or no death would have been survived
        if not restarts.keeps_others:
            self.death = self._failure_of(first, 1, describe_exit(code))
            return True
        try:
            payload, rejected = restarts.renew()
        except OffPolicyError as error:
            self._fail(first, error.exit_code, str(error))
            return False
        for text in rejected:
            on_message(first, {"kind": "warning", "text": text})
        clear_rank_words(self._control.ranks)
        for wake_event in self._wake_events:
            wake_event.set()
        by_rank = sorted(dead, key=lambda child: child.index)
        return all(self._start_again(child, replace(child.start, payload=payload), on_message) for child in by_rank)

    def _is_over(self, child: Child) -> bool:
        """True if nothing is started again any more, or the supervisor itself has killed `child`."""
        return child.is_killed or self.failure is not None or self._stop_level != Stop.RUN

    def _with_cause(self, error: Mapping[str, Any], code: int) -> Mapping[str, Any]:
        """Returns the error message of a dead child, or in its place why the kernel has killed it."""
        killed = self._oom.cause() if code == -signal.SIGKILL else None
        return {"text": killed} if killed else error

    def _tell_death(self, child: Child, text: str, on_message: MessageHandler) -> None:
        text = f"{child.name} (pid {child.process.pid}) died at env step {self._env_steps:,}: {text}"
        on_message(child, {"kind": "restart", "text": text})

    def _start_again(self, dead: Child, start: Start, on_message: MessageHandler) -> bool:
        """Starts a child in place of a dead one, whose programs end first; False, and a failure, if that is refused."""
        self._descendants.kill(self._known, of=dead.name)  # they may hold a port, or a lock
        self._watchdog.forget(dead.role, dead.index)
        try:
            pid = self.spawn(start)
        except StartError as error:
            self._fail(dead, error.exit_code, str(error))
            return False
        on_message(dead, {"kind": "restarted", "pid": pid})
        return True

    @property
    def _known(self) -> set[int]:
        """Children of this process that are no adopted ones."""
        return self._strangers.union(child.process.pid for child in self._children)

    @property
    def _env_steps(self) -> int:
        return self._config.num_hosts * self._control.env_steps

    # -- failures -----------------------------------------------------------------------------------------------------

    def _note_exit(self, child: Child, code: int) -> None:
        """Records an unexpected exit: the first one counts, unless it was only a consequence of this one."""
        error = child.error
        if self.failure is not None and not (self.failure.is_consequence and not error.get("is_consequence")):
            return
        killed = self._oom.cause() if code == -signal.SIGKILL else None
        end = (killed or describe_exit(code)).removeprefix("was ") + (" without being asked to" if code >= 0 else "")
        cause = error.get("text") or f"{end}; what it printed is in train.log"
        self._fail(
            child,
            int(error.get("code", 1)),
            f"{error['error']}: {cause}" if "error" in error else cause,
            traceback=error.get("traceback", ""),
            is_consequence=bool(error.get("is_consequence")),
        )

    def _fail(self, child: Child, exit_code: int, cause: str, **details: Any) -> None:
        self.failure = self._failure_of(child, exit_code, cause, **details)

    def _failure_of(self, child: Child, exit_code: int, cause: str, **details: Any) -> Failure:  # Any: see `Failure`
        return Failure(child.role, child.index, child.process.pid, self._env_steps, exit_code, cause, **details)

    def _check_progress(self, step_timeout_s: float) -> None:
        """Ends the run when a child has been busy without progress, or all have waited for each other, for too long."""
        for child in self._children:
            limit = self._watchdog.hung_for(child.role, child.index, step_timeout_s)
            if limit is not None and self.failure is None:
                child.process.send_signal(signal.SIGUSR2)  # its stacks go to train.log
                select.select([], [], [], STACKS_S)
                self._fail(child, HangError.exit_code, f"{limit}; the stacks of its threads are in train.log")
                child.process.kill()
        children = [(child.role, child.index) for child in self._children]
        is_deadlocked = self._watchdog.is_deadlocked(children, step_timeout_s)
        if is_deadlocked and self._deadline_s is None and self.failure is None:
            self._end_deadlock(step_timeout_s)

    def _end_deadlock(self, step_timeout_s: float) -> None:
        """Ends a run whose processes all wait: a collector that was stopped from outside, else all of them."""
        child = self._culprit()
        is_frozen = is_stopped(child.process.pid)
        waited = (
            "the others waited for it, which a signal had stopped,"
            if is_frozen
            else "learner and collector waited for each other"
        )
        self._fail(child, HangError.exit_code, f"{waited} for {step_timeout_s:g} s")
        if is_frozen and not child.is_learner:
            child.process.kill()  # the learner can still save
        else:
            self._kill_all()
            self._give_up_held()

    def _culprit(self) -> Child:
        """Returns the child that keeps the others waiting: one that was stopped from outside, else a busy one."""
        by_guilt = sorted(
            self._children,
            key=lambda child: (
                not is_stopped(child.process.pid),
                self._control.is_waiting(child.role, child.index),
                not child.is_learner,
            ),
        )
        return by_guilt[0]

    def _kill_frozen(self, on_message: MessageHandler) -> None:
        """Kills collectors and evaluators that stand still during a stop: the learner waits for them in vain."""
        for child in self._children:
            is_frozen = self._watchdog.is_frozen(child.role, child.index, child.process.pid)
            if is_frozen and not child.is_learner and not child.is_killed:
                text = f"{child.name} (pid {child.process.pid}) did not react for {FROZEN_S:g} s and was killed"
                lost = "; its episodes begin anew after a resume" if child.role == "collector" else ""
                on_message(child, {"kind": "warning", "text": f"{text}{lost}"})
                child.is_killed = True
                child.process.kill()

    def _check_stop(self, on_message: MessageHandler) -> None:
        """Kills what outlives the deadline of a stop, and half-way to it collectors that do not answer."""
        if self._deadline_s is None:
            return
        self._kill_frozen(on_message)
        left_s = self._deadline_s - self._config.elapsed_s()
        if left_s < self._config.stop_timeout_s / 2 and self._stop_level == Stop.FINISH:  # the learner can still save
            for child in self._children:
                if not child.is_learner and not self._control.is_waiting(child.role, child.index):
                    child.is_killed = True
                    child.process.kill()
        if left_s < 0 and self._children:
            if self.failure is None and self._stop_level == Stop.FINISH:
                cause = f"did not finish within {self._config.stop_timeout_s:g} s of the stop request"
                self._fail(self._culprit(), HangError.exit_code, cause)
            self._kill_all()
            self._give_up_held()

    # -- signals ------------------------------------------------------------------------------------------------------

    def _on_save_signal(self) -> None:
        for word in (HostWord.SAVE_REQUEST, HostWord.SAVE_SIGNALS):
            self._control.host.bump(word)

    def _on_stop_signal(self) -> None:
        """Asks all processes to finish and save."""
        if self.failure is None:
            self.signal_code = self._signals.exit_code
        self.stop(Stop.FINISH)

    def _kill_all(self) -> None:
        fault.hit("supervisor.kill")
        self._descendants.note([child.process.pid for child in self._children])
        for child in self._children:
            child.is_killed = True
            child.process.kill()
        end_s = self._config.elapsed_s() + KILL_TIMEOUT_S
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it
                child.process.wait(max(0.0, end_s - self._config.elapsed_s()))

    def _give_up_held(self) -> None:
        """Leaves alone what has not ended although it was killed, as a process that waits for a dead disk."""
        for child in [child for child in self._children if child.process.poll() is None]:
            if self.failure is None:
                cause = f"did not end within {KILL_TIMEOUT_S:g} s of being killed: the kernel holds it"
                self._fail(child, HangError.exit_code, cause)
            self._children.remove(child)
            for fd in (child.pidfd, child.messages):
                if fd in self._selector.get_map():
                    self._selector.unregister(fd)
                os.close(fd)


def _pipe(opened: contextlib.ExitStack) -> tuple[BinaryIO, BinaryIO]:
    """Returns the ends of a pipe, for reading and for writing; the stack closes what is still open."""
    read, write = os.pipe()
    return opened.enter_context(open(read, "rb")), opened.enter_context(open(write, "wb"))
