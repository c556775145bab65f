"""The supervisor: starts the children of a run, reads their messages, reaps them, and ends the run in order.

It imports no torch and never blocks for long, so it always answers. States: running, finishing (the learners save and
exit, until a deadline), exiting, killing. Every path ends in the same clean-up, and the first failure is reported.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from offpolicy import fault
from offpolicy.errors import CrashLoopError, HangError
from offpolicy.machine import load_per_core
from offpolicy.processes.children import (
    HELD_S,
    KILL_TIMEOUT_S,
    Child,
    adopting,
    describe_exit,
    end_adopted,
    is_stopped,
    own_children,
    reap_adopted,
)
from offpolicy.processes.control_page import CollectorWord, ControlPage, HostWord, RankWord, Stop
from offpolicy.processes.deaths import RECENT_S, Restarts, kernel_kills, out_of_memory
from offpolicy.processes.fork_server import ForkServer
from offpolicy.processes.shared_memory import WakeEvent
from offpolicy.processes.signals import RUN_SIGNALS, SAVE_SIGNAL, SignalKeeper, stop_code

TICK_S = 0.1  # at most, between two checks of the children
SECOND_S = 0.5  # a signal so soon after the first is the same one: launchers forward what their child has got too
STACKS_S = 0.2  # for a signalled child to write its stacks
WORKER_GRACE_S = 8.0  # beyond the step timeout: a collector that finds a worker silent closes the others, then names it
LEARNER_STEP_TIMEOUT_S = 600.0  # one iteration, the first compilation included
SNAPSHOT_TIMEOUT_S = 600.0  # of a collector that writes its part of a checkpoint: the disk may be slow
PEER_GRACE_S = 5.0  # for the other learner ranks to notice that one has died, before they are killed
FROZEN_S = 10.0  # in which a process that waits takes what it waits for; it looks twice a second
MOST_LOAD = 8.0  # threads per core beyond which a start has no more time: a load may count what never runs
PAUSE_S = 2.0  # a longer gap between two ticks means that nothing ran at all (Ctrl-Z, a frozen container)


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
class SupervisorConfig:
    """What a supervisor works with, and its limits."""

    server: ForkServer  # of which the children are forks
    signals: SignalKeeper
    log_fd: int  # the file of the children's stdout and stderr
    stop_timeout_s: float  # for the iteration, the final checkpoint and the children's exit
    step_timeout_s: float  # of a step of the environments
    elapsed_s: Callable[[], float]  # a clock that never steps back
    restarts: Restarts  # of the run: they outlive a supervisor
    death_code: int = 1  # exit code of a run that a death by a signal ends
    num_hosts: int = 1  # hosts of the run; the collectors of each do as many env steps as ours
    peer_timeout_s: float = 0.0  # limit of a learner rank's wait for the others in a collective
    start_timeout_s: float = 120.0  # limit of a child's imports and construction, on an idle machine
    replay_s: float = 0.0  # more of it, to read the replay of a checkpoint


class Supervisor:
    """Owner of the children. Use as a context manager: its exit kills and reaps those that are left."""

    def __init__(
        self,
        control: ControlPage,
        wake_events: tuple[WakeEvent, ...],
        config: SupervisorConfig,
        on_message: Callable[[Child, Mapping[str, Any]], None] = lambda child, message: None,
    ) -> None:
        """`on_message` gets what the children send but errors and ends, and what the supervisor says about them."""
        self.children: dict[tuple[str, int], Child] = {}  # those that run, by role and index
        self.failure: Failure | None = None  # of the run so far
        self.signal_code = 0  # exit code of the first signal, unless a failure came before it
        self._control, self._wake_events, self._config, self._on_message = control, wake_events, config, on_message
        self._kills, self._kills_s = (kernel_kills(),) * 2, 0.0  # of the kernel, before; and when they were read last
        self._selector = selectors.DefaultSelector()  # data: the child that has written, None for all else
        self._first_signal_s: float | None = None
        self._has_lost_one = False  # True after a death that the run survives: all processes begin again
        self._deadline_s: float | None = None  # of the stop
        self._half_way_s = 0.0  # to the deadline, as it was at first
        self._is_killing = False  # True once all were killed
        # This clock stands still while nothing runs, so that no pause counts against a child.
        self._ticked_s, self._now_s = config.elapsed_s(), 0.0
        self._counts, self._counts_s = (-1, -1), 0.0  # of env steps and updates, and since when they stand

    def __enter__(self) -> Supervisor:
        with contextlib.ExitStack() as steps:  # of `__exit__`, which takes each, the last one first
            steps.enter_context(adopting())
            self._known = own_children()  # before the run
            steps.callback(self._selector.close)
            self._lifeline = os.pipe()
            for fd in self._lifeline:
                steps.callback(os.close, fd)
            self._selector.register(self._config.signals.fd, selectors.EVENT_READ)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, RUN_SIGNALS)  # blocked for what was started before
            steps.callback(self._end_children)
            self._entered = steps.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    @property
    def must_begin_again(self) -> bool:
        """True if all processes were ended after a death, to begin again from the checkpoint."""
        return self._has_lost_one and self.failure is None and not self.signal_code

    def spawn(self, role: str, index: int, target: str, payload: Mapping[str, Any], fds: Mapping[str, int]) -> int:
        """Starts a child, see `ForkServer.start`; returns its pid. Raises `StartError` if the machine refuses."""
        log_fd, lifeline_fd = self._config.log_fd, self._lifeline[0]
        child = self._config.server.start(role, index, target, payload, fds, log_fd, lifeline_fd)
        self.add(child)
        return child.pid

    def add(self, child: Child) -> None:
        """Adds a process that was started."""
        self.children[child.key] = child
        self._selector.register(child.messages, selectors.EVENT_READ, child)
        self._selector.register(child.pidfd, selectors.EVENT_READ)

    def run(self, on_tick: Callable[[], None], on_signal: Callable[[], None] = lambda: None) -> None:
        """Supervises until every child has exited. `on_tick` is called about ten times a second.

        `on_signal` is called at once when the first stop has come: a signal wakes the loop.
        """
        while self.children:
            for key, _ in self._selector.select(TICK_S):
                if key.data is not None and not self._read(key.data):
                    self._selector.unregister(key.fd)
            self.take_signals(on_signal)
            self.tick()
            on_tick()

    def tick(self) -> None:
        """Reaps the children that have ended, and kills those that hang or outlive the deadline of the stop."""
        before_s, self._ticked_s = self._ticked_s, self._config.elapsed_s()
        gap_s = self._ticked_s - before_s
        self._now_s += gap_s if gap_s <= PAUSE_S else 0.0
        if self._now_s - self._kills_s > RECENT_S:  # the older ones are compared: a kill takes a while
            self._kills, self._kills_s = (self._kills[1], kernel_kills()), self._now_s
        self._reap()
        reap_adopted({*self._known, self._config.server.pid, *(child.pid for child in self.children.values())})
        self._check_hangs()
        self._check_deadline()
        self._give_up_held()

    def stop(self, level: Stop) -> None:
        """Asks all children to finish, or to exit; the first call sets the deadline after which they are killed."""
        self._control.host[HostWord.STOP] = max(level, self._control.host[HostWord.STOP])
        if self._deadline_s is None:
            self._deadline_s = self._now_s + self._config.stop_timeout_s
            self._half_way_s = self._now_s + self._config.stop_timeout_s / 2
        for wake_event in self._wake_events:
            wake_event.set()

    def take_signals(self, on_signal: Callable[[], None] = lambda: None) -> int:
        """Handles the signals that have come; returns the exit code of the first stop, 0 before there is one.

        The first stop lets all processes save. A Ctrl-C that comes later than `SECOND_S` kills them.
        """
        for number in self._config.signals.take():
            now_s = self._config.elapsed_s()
            if number == SAVE_SIGNAL:
                for word in (HostWord.SAVE_REQUEST, HostWord.SAVE_SIGNALS):
                    self._control.host[word] += 1
            elif self._first_signal_s is None:
                self._first_signal_s = now_s
                if self.failure is None:
                    self.signal_code = stop_code(number)
                self.stop(Stop.FINISH)
                on_signal()
            elif number == signal.SIGINT and now_s - self._first_signal_s >= SECOND_S:
                self._kill_all()
        return self.signal_code

    # -- ends of children ---------------------------------------------------------------------------------------------

    @property
    def _learners(self) -> list[Child]:
        return [child for child in self.children.values() if child.is_learner]

    @property
    def _env_steps(self) -> int:
        return self._config.num_hosts * self._control.env_steps

    def _read(self, child: Child) -> bool:
        """Hands on the messages that a child has written; False if there are none."""
        messages = child.read()
        for message in messages or ():
            self._on_message(child, message)
        return messages is not None

    def _warn(self, child: Child, text: str) -> None:
        self._on_message(child, {"kind": "warning", "text": f"{child.name} (pid {child.pid}) {text}"})

    def _reap(self) -> None:
        """Reaps the dead children: all processes begin again after a death that is survived, or the run stops."""
        ended = [child for child in self.children.values() if child.poll() is not None]
        for child in ended:
            # Not until end of file: a process that an environment left behind may hold the pipe open.
            while self._read(child):
                pass
            self._remove(child)
        for child in sorted(ended, key=lambda child: child.is_consequence):
            fault.hit("supervisor.reap")
            if not self._is_survived(child):
                self._stop_after(child)
                continue
            self._has_lost_one = True
            for other in (*ended, *self.children.values()):
                self._kill(other)

    def _remove(self, child: Child) -> None:
        del self.children[child.key]
        for fd in (child.pidfd, child.messages):
            with contextlib.suppress(KeyError):
                self._selector.unregister(fd)
        child.close()
        gone = {"collector": self._control.collectors[child.index : child.index + 1], "link": self._control.collectors}
        for words in gone.get(child.role, ()):
            words[CollectorWord.IS_GONE] = 1
        if child.role == "link":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # what is left of the cluster that it has started

    def _is_survived(self, child: Child) -> bool:
        """Reports a death that the run survives; False, and a failure, if it makes a crash loop of those before."""
        is_over = child.is_killed or child.has_finished or self.failure is not None or self._deadline_s is not None
        if is_over or self._config.restarts.limit == 0 or not child.is_death:
            return False
        death = f"{self._cause_of(child).splitlines()[0]} at env step {self._env_steps:,}"
        try:
            number = self._config.restarts.add(f"{child.name} (pid {child.pid}) {death}")
        except CrashLoopError as error:
            self._fail(child, error.exit_code, str(error))
            return False
        self._warn(child, f"{death}; {number}")
        return True

    def _stop_after(self, child: Child) -> None:
        """Stops the run after the end of a child, which is its failure unless it was asked for.

        A learner that has finished may still crash while its interpreter shuts down, and so may any other process once
        no learner is left.
        """
        code, level = child.returncode or 0, self._control.host[HostWord.STOP]
        is_expected = child.has_finished if child.is_learner else level == Stop.EXIT and code <= 0
        if is_expected and code and not child.is_killed and self.failure is None:
            when = "after it had finished" if child.is_learner else "after the learner had finished"
            self._warn(child, f"{describe_exit(code)} {when}")
        elif not is_expected and not child.is_killed:
            self._note_exit(child)
        self._stop_without(child, is_lost=not is_expected)

    def _stop_without(self, child: Child, *, is_lost: bool) -> None:
        """Stops the run after the end of a child: the learners save, unless one of them is lost; the others exit."""
        self.stop(Stop.FINISH if self._learners else Stop.EXIT)
        if is_lost and child.is_learner and self._learners and self._deadline_s is not None:
            # The others cannot train without it. They notice by themselves, and get little time to.
            self._deadline_s = min(self._deadline_s, self._now_s + PEER_GRACE_S)

    def _fail(self, child: Child, exit_code: int, cause: str) -> None:
        traceback, is_consequence = child.error.get("traceback", ""), child.is_consequence
        self.failure = Failure(*child.key, child.pid, self._env_steps, exit_code, cause, traceback, is_consequence)

    def _note_exit(self, child: Child) -> None:
        """Records an unexpected exit: the first one counts, unless it was only a consequence of this one."""
        if self.failure is not None and not (self.failure.is_consequence and not child.is_consequence):
            return
        error, cause = child.error, self._cause_of(child)
        if error:
            cause = f"{error['error']}: {cause}"
        else:
            asked = "" if child.is_death else " without being asked to"
            cause = f"{cause.removeprefix('was ')}{asked}; what it printed is in train.log"
        self._fail(child, self._config.death_code if child.is_death else int(error.get("code", 1)), cause)

    def _cause_of(self, child: Child) -> str:
        killed = out_of_memory(self._kills[0]) if child.returncode == -signal.SIGKILL else None
        return str(child.error.get("text") or killed or describe_exit(child.returncode))

    # -- kills --------------------------------------------------------------------------------------------------------

    def _kill(self, child: Child, *, is_hung: bool = False) -> None:
        """Kills a child: its end is no failure. A hung one that has sent an error before ends as it has failed."""
        child.is_killed = not (is_hung and child.error)
        if child.killed_s is None:
            child.killed_s = self._now_s
        child.kill()

    def _kill_all(self) -> None:
        """Kills all children: nothing will be saved any more."""
        self._is_killing = True
        for child in self.children.values():
            self._kill(child)

    def _end_children(self) -> None:
        try:
            self._kill_all()
        finally:
            for child in list(self.children.values()):
                child.wait(KILL_TIMEOUT_S)
                self._remove(child)
            end_adopted({*self._known, self._config.server.pid})

    def _give_up_held(self) -> None:
        """Leaves killed children alone that the kernel holds, as one that waits for a dead disk; the run ends."""
        limit_s = KILL_TIMEOUT_S if self._is_killing else HELD_S
        for child in list(self.children.values()):
            if child.killed_s is not None and self._now_s - child.killed_s > limit_s and child.poll() is None:
                cause = "did not end although it was killed: the kernel holds it"
                if self.failure is None:
                    self._fail(child, HangError.exit_code, cause)
                else:
                    self._warn(child, cause)
                self._remove(child)
                self._stop_without(child, is_lost=True)

    # -- hangs --------------------------------------------------------------------------------------------------------

    def _check_hangs(self) -> None:
        """Kills a child that was busy without progress, or ends a run whose processes wait for each other."""
        for child in list(self.children.values()):
            limit = self._hung_for(child)
            if limit is not None and self.failure is None and child.killed_s is None:
                child.send_signal(signal.SIGUSR2)  # its stacks go to train.log
                select.select([], [], [], STACKS_S)
                if not child.error:  # else it hangs on its way out, and has said why it goes
                    self._fail(child, HangError.exit_code, f"{limit}; the stacks of its threads are in train.log")
                self._kill(child, is_hung=True)
        counts = (self._control.env_steps, self._control.leader[RankWord.UPDATES])
        is_waiting = all(self._control.is_waiting(*key) for key in self.children)
        if counts != self._counts or not is_waiting or not self.children:
            self._counts, self._counts_s = counts, self._now_s
        is_running = self._deadline_s is None and self.failure is None
        if is_running and self._now_s - self._counts_s > self._config.step_timeout_s:
            self._end_deadlock()

    def _hung_for(self, child: Child) -> str | None:
        """Returns the limit, in words, that a busy child has exceeded without any progress; None if it has not."""
        config, words = self._config, self._control.words(*child.key)
        progress = words[RankWord.PROGRESS]
        if progress != child.progress or words[RankWord.IS_WAITING]:
            child.progress, child.progress_s = progress, self._now_s
            return None
        limits = [(config.step_timeout_s + WORKER_GRACE_S, "env.step_timeout_s")]
        if child.is_learner and not any(words[CollectorWord.IS_INSIDE] for words in self._control.collectors):
            limits.append((max(LEARNER_STEP_TIMEOUT_S, config.peer_timeout_s + PEER_GRACE_S), "env.step_timeout_s"))
        # Still starting; the evaluator starts again with every evaluation.
        if progress == 0 or child.role == "evaluator":
            replay_s = config.replay_s if child.role != "evaluator" else 0.0
            # Longer by as much as more threads than cores want to run.
            start_s = config.start_timeout_s * min(max(1.0, load_per_core()), MOST_LOAD) + replay_s
            reading = " and the time to read the replay" if replay_s else ""
            limits.append((start_s, f"runner.start_timeout_s{reading}"))
        if child.role == "collector" and words[CollectorWord.IS_SAVING]:
            limits.append((SNAPSHOT_TIMEOUT_S, "its part of a checkpoint may take"))
        limit_s, allowed_by = max(limits)
        is_hung = self._now_s - child.progress_s > limit_s
        return f"no progress for {limit_s:.0f} s, longer than {allowed_by}" if is_hung else None

    def _end_deadlock(self) -> None:
        """Ends a run whose processes all wait: the collector that keeps the others waiting, else all of them."""
        child, waited = self._blocking_child(), "learner and collector waited for each other"
        is_frozen, may_go = is_stopped(child.pid), self._control.may_go(*child.key)
        if is_frozen or may_go:
            why = "a signal had stopped" if is_frozen else "waited although it could go on"
            waited = f"the others waited for it, which {why},"
        self._fail(child, HangError.exit_code, f"{waited} for {self._config.step_timeout_s:g} s")
        if (is_frozen or may_go) and not child.is_learner:
            self._kill(child, is_hung=True)  # the learner can still save
        else:
            self._kill_all()

    def _blocking_child(self) -> Child:
        """Returns the child for which the others wait: one that was stopped from outside, else one that may go on."""

        def order(child: Child) -> tuple[bool, bool, bool]:
            is_waiting = self._control.is_waiting(*child.key) and not self._control.may_go(*child.key)
            return not is_stopped(child.pid), is_waiting, not child.is_learner

        return min(self.children.values(), key=order)

    # -- the end of the run -------------------------------------------------------------------------------------------

    def _check_deadline(self) -> None:
        """During a stop: kills what stands still or outlives the deadline, half-way to it collectors that are busy."""
        if self._deadline_s is None:
            return
        is_finishing = self._control.host[HostWord.STOP] == Stop.FINISH
        is_half_way = is_finishing and self._now_s > self._half_way_s
        for child in self.children.values():
            is_waiting = self._control.is_waiting(*child.key)
            # It was stopped from outside, or sleeps on after a wake-up: the learner waits for it in vain.
            is_idle = is_stopped(child.pid) or (is_waiting and self._control.is_asked(*child.key))
            if not is_idle or child.reaction_s is None:
                child.reaction_s = self._now_s
            if self._now_s - child.reaction_s > FROZEN_S:
                why = f"did not react for {FROZEN_S:g} s"
            elif is_half_way and not is_waiting:
                why = "was busy half-way to the deadline of the stop"
            else:
                continue
            if not child.is_learner and child.killed_s is None:
                lost = "; what is saved now lacks its episodes" if child.role == "collector" else ""
                self._warn(child, f"{why} and was killed{lost}")
                self._kill(child, is_hung=True)
        if self._now_s > self._deadline_s and self.children and not self._is_killing:
            if self.failure is None and is_finishing:
                cause = f"did not finish within {self._config.stop_timeout_s:g} s of the stop request"
                self._fail(self._blocking_child(), HangError.exit_code, cause)
            self._kill_all()
