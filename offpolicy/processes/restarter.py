"""Starts dead collectors and learners again, where the run survives their deaths (ADR 26 and 28)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from offpolicy.children import describe_exit
from offpolicy.errors import EXIT_CRASH_LOOP, OffPolicyError, StartError
from offpolicy.processes.child_processes import Child, ChildProcesses, Start
from offpolicy.processes.control_page import CollectorWord, ControlPage, HostWord, Stop
from offpolicy.processes.failures import Failure, FailureRecord
from offpolicy.processes.restarts import (
    LEARNERS,
    Death,
    LearnerRestarts,
    Restarts,
    clear_collector_words,
    clear_rank_words,
)
from offpolicy.processes.shared_memory import WakeEvent


class Restarter:
    """Decides about each dead collector or learner if the run goes on, and starts what takes its place."""

    def __init__(  # noqa: PLR0913  # what a restart touches
        self,
        children: ChildProcesses,
        control: ControlPage,
        wake_events: Sequence[WakeEvent],
        failures: FailureRecord,
        collectors: Restarts,
        learners: LearnerRestarts | None,
        forget: Callable[[str, int], None],
    ) -> None:
        """`learners`: None where the run ends with its first learner.

        `forget` is called with role and index of a child that another one replaces: the new one has all the time.
        """
        self._children, self._control, self._wake_events = children, control, wake_events
        self._failures, self._collectors, self._learners, self._forget = failures, collectors, learners, forget
        self._dead_learners: list[tuple[Child, int]] = []  # with their exit codes, the one that died first in front
        self.death: Failure | None = None  # of a learner, after which all processes are to begin again

    @property
    def is_waiting_for_learners(self) -> bool:
        """True from the death of a learner that the run survives until all learners have ended."""
        return bool(self._dead_learners)

    def restart_collector(self, child: Child, code: int) -> bool:
        """Starts a collector again if the run survives its death; else returns False, and fails in a crash loop."""
        words = self._control.collectors[child.index]
        has_begun = bool(words.get(CollectorWord.HAS_BEGUN))
        if self._is_over(child) or not self._collectors.is_survivable(code, child.error, has_begun=has_begun):
            return False
        error = self._failures.error_of(child, code)
        death = self._collectors.add(child.index, code, error, self._failures.env_steps)
        if not self._may_return(child, self._collectors, child.index, death):
            return False
        clear_collector_words(words)
        return self._start_again(child, child.start)

    def restart_learners(self, child: Child, code: int) -> bool:
        """Lets all learners begin again after this end of one of them: their process group is lost with one rank.

        The others are killed first. Returns False where the run does not survive it.
        """
        if not self._dead_learners and not self._end_learners(child, code):
            return False
        self._dead_learners.append((child, code))
        if self._children.learners:
            return True
        ended, self._dead_learners = self._dead_learners, []
        if self._failures.first is not None or self._stop_level != Stop.RUN:  # meanwhile
            self._failures.note_exit(*ended[0])
            return False
        return self._start_learners(ended)

    def _end_learners(self, child: Child, code: int) -> bool:
        """Kills what begins again after this end of a learner if the run survives it; else as `restart_collector`."""
        restarts = self._learners
        if self._is_over(child) or restarts is None or not restarts.deaths.is_learner_survivable(code, child.error):
            return False
        who = child.name if len(self._control.ranks) > 1 else "it"
        error = self._failures.error_of(child, code)
        death = restarts.deaths.add(LEARNERS, code, error, self._failures.env_steps, who)
        if not self._may_return(child, restarts.deaths, LEARNERS, death):
            return False
        for other in self._children:
            if other.is_learner or not restarts.keeps_others:
                self._children.kill(other)
        return True

    def _start_learners(self, ended: list[tuple[Child, int]]) -> bool:
        """Starts all learners again beside the other processes; False if there is nothing that they could continue."""
        restarts, (first, code), dead = self._learners, ended[0], [child for child, _ in ended]
        assert restarts is not None  # or no death would have been survived
        if not restarts.keeps_others:
            self.death = self._failures.of(first, 1, describe_exit(code))
            return True
        try:
            payload, rejected = restarts.renew()
        except OffPolicyError as error:
            self._failures.set(first, error.exit_code, str(error))
            return False
        for text in rejected:
            self._children.report(first, kind="warning", text=text)
        clear_rank_words(self._control.ranks)
        for wake_event in self._wake_events:
            wake_event.set()
        by_rank = sorted(dead, key=lambda child: child.index)
        return all(self._start_again(child, replace(child.start, payload=payload)) for child in by_rank)

    def _may_return(self, child: Child, deaths: Restarts, index: int, death: Death) -> bool:
        """Reports a death that the run survives; False, and a failure, if it makes a crash loop of those before."""
        loop = deaths.crash_loop(index)
        if loop is not None:
            self._failures.set(child, EXIT_CRASH_LOOP, loop, child.error.get("traceback", ""))
            return False
        who = f"{child.name} (pid {child.process.pid}) died at env step {death.env_steps:,}"
        self._children.report(child, kind="restart", text=f"{who}: {death.cause}; {deaths.number(index)}")
        return True

    def _start_again(self, dead: Child, start: Start) -> bool:
        """Starts a child in place of a dead one, whose programs end first; False, and a failure, if that is refused."""
        self._children.kill_left_by(dead.name)
        self._forget(dead.role, dead.index)
        try:
            pid = self._children.spawn(start)
        except StartError as error:
            self._failures.set(dead, error.exit_code, str(error))
            return False
        self._children.report(dead, kind="restarted", pid=pid)
        return True

    def _is_over(self, child: Child) -> bool:
        """True if nothing is started again any more, or the supervisor itself has killed `child`."""
        return child.is_killed or self._failures.first is not None or self._stop_level != Stop.RUN

    @property
    def _stop_level(self) -> int:
        return self._control.host.get(HostWord.STOP)
