"""Ends a run in which a child makes no progress, or all wait for each other."""

from __future__ import annotations

import select
import signal

from offpolicy.descendants import is_stopped
from offpolicy.errors import HangError
from offpolicy.processes.child_processes import ChildProcesses
from offpolicy.processes.control_page import ControlPage
from offpolicy.processes.failures import FailureRecord
from offpolicy.processes.shutdown import Shutdown, culprit
from offpolicy.processes.watchdog import Watchdog

STACKS_S = 0.2  # for a signalled child to write its stacks


class HangCheck:
    """Looks, several times a second, for a child that hangs; the first one found is the failure of the run."""

    def __init__(
        self,
        children: ChildProcesses,
        control: ControlPage,
        failures: FailureRecord,
        watchdog: Watchdog,
        shutdown: Shutdown,
    ) -> None:
        self._children, self._control, self._failures = children, control, failures
        self._watchdog, self._shutdown = watchdog, shutdown

    def check(self, step_timeout_s: float) -> None:
        """Kills a child that was busy without progress, or ends all if they waited for each other, for too long."""
        for child in self._children:
            limit = self._watchdog.hung_for(child.role, child.index, step_timeout_s)
            if limit is not None and self._failures.first is None and child.killed_s is None:
                child.process.send_signal(signal.SIGUSR2)  # its stacks go to train.log
                select.select([], [], [], STACKS_S)
                if not child.error:  # else it hangs on its way out, and has said why it goes
                    cause = f"{limit}; the stacks of its threads are in train.log"
                    self._failures.set(child, HangError.exit_code, cause)
                self._children.kill_hung(child)
        children = [(child.role, child.index) for child in self._children]
        is_deadlocked = bool(children) and self._watchdog.is_deadlocked(children, step_timeout_s)
        if is_deadlocked and not self._shutdown.has_begun and self._failures.first is None:
            self._end_deadlock(step_timeout_s)

    def _end_deadlock(self, step_timeout_s: float) -> None:
        """Ends a run whose processes all wait: the collector that keeps the others waiting, else all of them."""
        child = culprit(self._children, self._control)
        is_frozen, may_go = is_stopped(child.process.pid), self._control.may_go(child.role, child.index)
        if is_frozen:
            waited = "the others waited for it, which a signal had stopped,"
        elif may_go:
            waited = "the others waited for it, which waited although it could go on,"
        else:
            waited = "learner and collector waited for each other"
        self._failures.set(child, HangError.exit_code, f"{waited} for {step_timeout_s:g} s")
        if (is_frozen or may_go) and not child.is_learner:
            self._children.kill_hung(child)  # the learner can still save
        else:
            self._shutdown.kill()
