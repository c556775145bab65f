"""The end of a run: children are asked to finish, and killed where they do not within the deadline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from offpolicy.descendants import is_stopped
from offpolicy.errors import HangError
from offpolicy.processes.child_processes import Child, ChildProcesses
from offpolicy.processes.control_page import ControlPage, HostWord, Stop
from offpolicy.processes.failures import FailureRecord
from offpolicy.processes.shared_memory import WakeEvent
from offpolicy.processes.watchdog import FROZEN_S, Watchdog


class Shutdown:
    """Asks for the end, keeps its deadline, and kills."""

    def __init__(  # noqa: PLR0913  # who is asked, by what, and how long there is
        self,
        children: ChildProcesses,
        control: ControlPage,
        wake_events: Sequence[WakeEvent],
        failures: FailureRecord,
        watchdog: Watchdog,
        elapsed_s: Callable[[], float],
        timeout_s: float,
    ) -> None:
        """`timeout_s`: for the iteration, the final checkpoint and the children's exit."""
        self._children, self._control, self._wake_events = children, control, wake_events
        self._failures, self._watchdog, self._elapsed_s, self._timeout_s = failures, watchdog, elapsed_s, timeout_s
        self._deadline_s: float | None = None
        self._is_hastened = False  # a learner is lost, so nothing will be saved

    @property
    def has_begun(self) -> bool:
        """True once an end was asked for."""
        return self._deadline_s is not None

    @property
    def level(self) -> int:
        """What the children were asked for last, a `Stop`."""
        return self._control.host.get(HostWord.STOP)

    def begin(self, level: Stop) -> None:
        """Asks all children to finish, or to exit; the first call sets the deadline."""
        if self.level < level:
            self._control.host.set(HostWord.STOP, level)
        if self._deadline_s is None:
            self._children.note_descendants()
            self._deadline_s = self._elapsed_s() + self._timeout_s
        for wake_event in self._wake_events:
            wake_event.set()

    def hasten(self, timeout_s: float) -> None:
        """Brings the deadline forward to `timeout_s` from now, if it is later."""
        self._deadline_s = min(self._deadline_s or math.inf, self._elapsed_s() + timeout_s)
        self._is_hastened = True

    def check(self, pause_s: float) -> None:
        """Kills what stands still or outlives the deadline, and half-way to it collectors that do not answer.

        `pause_s`: seconds since the last call in which nothing ran; they do not count.
        """
        if self._deadline_s is None:
            return
        self._deadline_s += pause_s
        self._kill_frozen()
        left_s = self._deadline_s - self._elapsed_s()
        can_save = self.level == Stop.FINISH and not self._is_hastened
        if left_s < self._timeout_s / 2 and can_save:
            for child in self._children:
                if not child.is_learner and not self._control.is_waiting(child.role, child.index):
                    self._kill_late(child, "was busy half-way to the deadline of the stop")
        if left_s < 0 and self._children:
            if self._failures.first is None and self.level == Stop.FINISH:
                cause = f"did not finish within {self._timeout_s:g} s of the stop request"
                self._failures.set(culprit(self._children, self._control), HangError.exit_code, cause)
            self.kill()

    def kill(self) -> None:
        """Kills all children, and gives up those that the kernel holds."""
        self._children.kill_all()
        for child in self._children:
            if child.process.poll() is None:
                self.give_up(child)

    def give_up(self, child: Child) -> None:
        """Leaves a killed child alone that the kernel holds; it is the failure if there is none yet."""
        cause = "did not end although it was killed: the kernel holds it"
        if self._failures.first is None:
            self._failures.set(child, HangError.exit_code, cause)
        else:
            self._children.report(child, kind="warning", text=f"{child.name} (pid {child.process.pid}) {cause}")
        self._children.give_up(child)

    def _kill_frozen(self) -> None:
        """Kills collectors and evaluators that stand still during a stop: the learner waits for them in vain."""
        for child in self._children:
            is_frozen = self._watchdog.is_frozen(child.role, child.index, child.process.pid)
            if is_frozen and not child.is_learner:
                self._kill_late(child, f"did not react for {FROZEN_S:g} s")

    def _kill_late(self, child: Child, why: str) -> None:
        """Kills a collector, or the evaluator, once, and says what is lost with it."""
        if child.killed_s is not None:
            return
        lost = "; what is saved now lacks its episodes" if child.role == "collector" else ""
        text = f"{child.name} (pid {child.process.pid}) {why} and was killed{lost}"
        self._children.report(child, kind="warning", text=text)
        self._children.kill_hung(child)


def culprit(children: Iterable[Child], control: ControlPage) -> Child:
    """Returns the child that keeps the others waiting: one that was stopped from outside, else one that could go on."""

    def guilt(child: Child) -> tuple[bool, bool, bool]:
        is_waiting = control.is_waiting(child.role, child.index) and not control.may_go(child.role, child.index)
        return not is_stopped(child.process.pid), is_waiting, not child.is_learner

    return min(children, key=guilt)
