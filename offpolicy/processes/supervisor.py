"""The supervisor: starts the children, reads their messages, reaps them, turns signals into an orderly stop.

It imports no torch and never blocks for long, so it always answers. States: running, stopping (the learner saves and
exits, until a deadline), killing. Every path ends in the same clean-up, and the first failure is the one reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from offpolicy.children import describe_exit
from offpolicy.descendants import adopting
from offpolicy.errors import CrashLoopError
from offpolicy.fork_server import ForkServer
from offpolicy.processes.child_processes import Child, ChildProcesses, MessageHandler, Start
from offpolicy.processes.control_page import CollectorWord, ControlPage, HostWord, Stop
from offpolicy.processes.failures import Failure, FailureRecord, is_death
from offpolicy.processes.hang_check import HangCheck
from offpolicy.processes.oom import OomWatch
from offpolicy.processes.restarts import Restarts
from offpolicy.processes.run_signals import RunSignals
from offpolicy.processes.shared_memory import WakeEvent
from offpolicy.processes.shutdown import Shutdown
from offpolicy.processes.watchdog import PEER_GRACE_S, Watchdog

TICK_S = 0.1  # at most, between two checks of the children


@dataclass(frozen=True, slots=True)
class SupervisorConfig:
    """The clock and the limits of a supervisor."""

    server: ForkServer  # of which the children are forks
    log_fd: int  # the file of the children's stdout and stderr
    stop_timeout_s: float  # for the iteration, the final checkpoint and the children's exit
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
        on_message: MessageHandler = lambda child, message: None,
    ) -> None:
        """`on_message` gets what the children send, and what the supervisor says about them."""
        elapsed_s, self._control, self._restarts = config.elapsed_s, control, config.restarts
        self.children = ChildProcesses(config.server, config.log_fd, elapsed_s, on_message)
        self._oom = OomWatch(elapsed_s)
        self._failures = FailureRecord(self._oom, lambda: config.num_hosts * control.env_steps, config.death_code)
        self._watchdog = Watchdog(control, elapsed_s, config.peer_timeout_s, config.start_timeout_s, config.replay_s)
        self._shutdown = Shutdown(
            self.children, control, wake_events, self._failures, self._watchdog, elapsed_s, config.stop_timeout_s
        )
        self._hang_check = HangCheck(self.children, control, self._failures, self._watchdog, self._shutdown)
        self._signals = RunSignals(
            elapsed_s, on_stop=self._on_stop_signal, on_kill=self.children.kill_all, on_save=self._on_save_signal
        )
        self._entered = contextlib.ExitStack()
        self._has_lost_one = False  # True after a death that the run survives: all processes begin again
        self.signal_code = 0  # of the first signal, unless a failure came before it

    def __enter__(self) -> Supervisor:
        with contextlib.ExitStack() as steps:  # of `__exit__`, which takes each, the last one first
            steps.enter_context(adopting())
            steps.enter_context(self._signals)
            steps.callback(self.children.close)
            self.children.watch(self._signals.fd)
            self._entered = steps.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    @property
    def failure(self) -> Failure | None:
        """The failure of the run so far."""
        return self._failures.first

    @property
    def must_begin_again(self) -> bool:
        """True if all processes were ended after a death, to begin again from the checkpoint."""
        return self._has_lost_one and self.failure is None and not self.signal_code

    def spawn(self, start: Start) -> int:
        """Starts a child; returns its pid. Raises `StartError` if the machine refuses."""
        return self.children.spawn(start)

    def run(
        self, on_tick: Callable[[], None], step_timeout_s: float, on_signal: Callable[[], None] = lambda: None
    ) -> None:
        """Supervises until every child has exited. `on_tick` is called about ten times a second.

        `on_signal` is called at once when the first signal has come: a signal wakes the loop.
        """
        while self.children:
            events = self.children.wait(TICK_S)
            self._signals.show(on_signal)
            for child, has_ended in events:
                if child is None:
                    self._signals.drain()
                elif child not in self.children:
                    continue  # reaped by an event before this one: its descriptors are closed
                elif has_ended:
                    self._reap(child)
                else:
                    self.children.read(child)
            on_tick()
            self._oom.look()
            self.children.reap_descendants()
            pause_s = self._watchdog.discount_pause()
            self._hang_check.check(step_timeout_s)
            self._shutdown.check(pause_s)
            self._give_up_held(pause_s)

    def stop(self, level: Stop) -> None:
        """Asks all children to finish, and sets the deadline after which they are killed."""
        self._shutdown.begin(level)

    def _reap(self, child: Child) -> None:
        """Reaps a dead child: all processes begin again after its death, or the run stops."""
        code = self.children.finish(child)
        if child.error.get("is_consequence"):
            self._reap_cause(child)
        self.children.remove(child)
        if child.role == "collector":
            self._control.collectors[child.index].set(CollectorWord.IS_GONE, 1)
        if self._is_survived(child, code):
            self._has_lost_one = True
            for other in self.children:
                self.children.kill(other)
        else:
            self._end_with(child, code)

    def _is_survived(self, child: Child, code: int) -> bool:
        """Reports a death that the run survives; False, and a failure, if it makes a crash loop of those before."""
        is_over = child.is_killed or child.has_finished or self.failure is not None or self._shutdown.has_begun
        if is_over or self._restarts.limit == 0 or not is_death(code, child.error):
            return False
        death = f"{child.name} (pid {child.process.pid}) {self._failures.cause_of(child, code).splitlines()[0]}"
        death = f"{death} at env step {self._failures.env_steps:,}"
        try:
            number = self._restarts.add(death)
        except CrashLoopError as error:
            self._failures.set(child, error.exit_code, str(error), child.error.get("traceback", ""))
            return False
        self.children.report(child, kind="warning", text=f"{death}; {number}")
        return True

    def _give_up_held(self, pause_s: float) -> None:
        """Ends the run without the killed children that the kernel holds: nothing will ever be reaped of them."""
        for child in self.children.held(pause_s):
            self._shutdown.give_up(child)
            if child.role == "collector":
                self._control.collectors[child.index].set(CollectorWord.IS_GONE, 1)
            self._stop_without(child)

    def _reap_cause(self, child: Child) -> None:
        """Reaps a dead learner rank before `child`, which exited because it had lost a rank: maybe that one."""
        for other in self.children.learners:
            if not other.is_closed and other.process.poll() is not None:
                self._reap(other)
                return

    def _end_with(self, child: Child, code: int) -> None:
        """Stops the run after the end of a child, which is its failure unless it was asked for.

        A learner that has finished may still crash while its interpreter shuts down, and so may any other process once
        no learner is left.
        """
        is_exit = self._shutdown.level == Stop.EXIT
        is_expected = child.has_finished if child.is_learner else is_exit and code <= 0
        if is_expected and code and not child.is_killed and self._failures.first is None:
            when = "after it had finished" if child.is_learner else "after the learner had finished"
            text = f"{child.name} (pid {child.process.pid}) {describe_exit(code)} {when}"
            self.children.report(child, kind="warning", text=text)
        if not is_expected and not child.is_killed:
            self._failures.note_exit(child, code)
        if is_expected:
            self.stop(Stop.FINISH if self.children.learners else Stop.EXIT)
        else:
            self._stop_without(child)

    def _stop_without(self, child: Child) -> None:
        """Stops the run after the loss of a child: the learners save, unless one of them is lost."""
        learners = self.children.learners
        self.stop(Stop.FINISH if learners else Stop.EXIT)
        if child.is_learner and learners:
            # The others cannot train without it. They notice by themselves, and get little time to.
            self._shutdown.hasten(PEER_GRACE_S)

    def _on_save_signal(self) -> None:
        for word in (HostWord.SAVE_REQUEST, HostWord.SAVE_SIGNALS):
            self._control.host.bump(word)

    def _on_stop_signal(self) -> None:
        """Asks all processes to finish and save."""
        if self.failure is None:
            self.signal_code = self._signals.exit_code
        self.stop(Stop.FINISH)
