"""Finds child processes that make no progress, by their words on the control page."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from offpolicy.processes.control_page import ControlPage, RankWord

START_TIMEOUT_S = 120.0  # imports and construction of a child
WORKER_GRACE_S = 8.0  # beyond the step timeout: a collector that finds a worker silent closes the others, then names it
LEARNER_STEP_TIMEOUT_S = 600.0  # one iteration, the first compilation included
PEER_GRACE_S = 5.0  # for the other learner ranks to notice that one has died, before they are killed
PAUSE_S = 2.0  # a longer gap between two checks means that nothing ran at all


class Watchdog:
    """Remembers when each child last made progress. A child is named by its role and index."""

    def __init__(self, control: ControlPage, elapsed_s: Callable[[], float], peer_timeout_s: float) -> None:
        self._control, self._elapsed_s, self._peer_timeout_s = control, elapsed_s, peer_timeout_s
        self._progress: dict[tuple[str, int], tuple[int, float]] = {}  # the child's word, and since when it has it
        self._counts, self._counts_since_s = (-1, -1), 0.0
        self._checked_s = elapsed_s()

    def discount_pause(self) -> float:
        """Returns the seconds since the last call in which nothing ran (Ctrl-Z, a frozen container), usually 0.0.

        They do not count against any child.
        """
        now_s = self._elapsed_s()
        gap_s, self._checked_s = now_s - self._checked_s, now_s
        if gap_s <= PAUSE_S:
            return 0.0
        self._progress = {child: (word, since_s + gap_s) for child, (word, since_s) in self._progress.items()}
        self._counts_since_s += gap_s
        return gap_s

    def hung_for(self, role: str, index: int, step_timeout_s: float) -> float | None:
        """Returns the limit in seconds that a busy child has exceeded without any progress; None if it has not."""
        progress = self._control.progress(role, index)
        limit_s = step_timeout_s + WORKER_GRACE_S
        if role == "learner":
            limit_s = max(step_timeout_s, LEARNER_STEP_TIMEOUT_S, self._peer_timeout_s + PEER_GRACE_S)
        if progress == 0 or role == "evaluator":  # still starting; the evaluator starts again with every evaluation
            limit_s = max(limit_s, START_TIMEOUT_S)
        last, since_s = self._progress.get((role, index), (-1, 0.0))
        now_s = self._elapsed_s()
        if progress != last or self._control.is_waiting(role, index):
            self._progress[role, index] = (progress, now_s)
            return None
        return limit_s if now_s - since_s > limit_s else None

    def is_deadlocked(self, children: Iterable[tuple[str, int]], timeout_s: float) -> bool:
        """True if all children have waited for each other for longer than `timeout_s`."""
        counts = (self._control.env_steps, self._control.leader.get(RankWord.UPDATES))
        now_s = self._elapsed_s()
        if counts != self._counts or not all(self._control.is_waiting(*child) for child in children):
            self._counts, self._counts_since_s = counts, now_s
        return now_s - self._counts_since_s > timeout_s
