"""Finds child processes that make no progress, by their words on the control page."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from offpolicy.descendants import is_stopped
from offpolicy.machine import load_per_core
from offpolicy.processes.control_page import ControlPage, RankWord

WORKER_GRACE_S = 8.0  # beyond the step timeout: a collector that finds a worker silent closes the others, then names it
LEARNER_STEP_TIMEOUT_S = 600.0  # one iteration, the first compilation included
SNAPSHOT_TIMEOUT_S = 600.0  # of a collector that writes its part of a checkpoint: the disk may be slow
PEER_GRACE_S = 5.0  # for the other learner ranks to notice that one has died, before they are killed
FROZEN_S = 10.0  # in which a process that waits takes what it waits for; it looks twice a second
MOST_LOAD = 8.0  # threads per core beyond which a start has no more time: a load may count what never runs
PAUSE_S = 2.0  # a longer gap between two checks means that nothing ran at all


class Watchdog:
    """Remembers when each child last made progress. A child is named by its role and index."""

    def __init__(
        self,
        control: ControlPage,
        elapsed_s: Callable[[], float],
        peer_timeout_s: float,
        start_timeout_s: float,
        replay_s: float = 0.0,
    ) -> None:
        """`replay_s`: time that reading the replay of a checkpoint may take on top of a start."""
        self._control, self._elapsed_s = control, elapsed_s
        self._peer_timeout_s, self._start_timeout_s, self._replay_s = peer_timeout_s, start_timeout_s, replay_s
        self._progress: dict[tuple[str, int], tuple[int, float]] = {}  # the child's word, and since when it has it
        self._counts, self._counts_since_s = (-1, -1), 0.0
        self._checked_s = elapsed_s()
        self._still: dict[tuple[str, int], float] = {}  # since when a child does not react

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
        self._still = {child: since_s + gap_s for child, since_s in self._still.items()}
        return gap_s

    def hung_for(self, role: str, index: int, step_timeout_s: float) -> str | None:
        """Returns the limit, in words, that a busy child has exceeded without any progress; None if it has not."""
        progress = self._control.progress(role, index)
        limit_s, allowed_by = step_timeout_s + WORKER_GRACE_S, "env.step_timeout_s"
        if role == "learner":
            limit_s = max(step_timeout_s, LEARNER_STEP_TIMEOUT_S, self._peer_timeout_s + PEER_GRACE_S)
        # Still starting; the evaluator starts again with every evaluation.
        if progress == 0 or role == "evaluator":
            replay_s = self._replay_s if role != "evaluator" else 0.0
            if self._start_limit_s() + replay_s > limit_s:
                limit_s = self._start_limit_s() + replay_s
                allowed_by = "runner.start_timeout_s" + (" and the time to read the replay" if replay_s else "")
        if self._control.is_saving(role, index):
            limit_s, allowed_by = max(limit_s, SNAPSHOT_TIMEOUT_S), "its part of a checkpoint may take"
        last, since_s = self._progress.get((role, index), (-1, 0.0))
        now_s = self._elapsed_s()
        if progress != last or self._control.is_waiting(role, index):
            self._progress[role, index] = (progress, now_s)
            return None
        return f"no progress for {limit_s:.0f} s, longer than {allowed_by}" if now_s - since_s > limit_s else None

    def _start_limit_s(self) -> float:
        """Returns the limit of a start: longer by as much as more threads than cores want to run, up to `MOST_LOAD`."""
        return self._start_timeout_s * min(max(1.0, load_per_core()), MOST_LOAD)

    def is_frozen(self, role: str, index: int, pid: int) -> bool:
        """True if a child has not reacted for `FROZEN_S`: it was stopped from outside, or sleeps on after a wake-up."""
        now_s = self._elapsed_s()
        if not (is_stopped(pid) or self._control.is_waiting(role, index) and self._control.is_asked(role, index)):
            self._still[role, index] = now_s
        return now_s - self._still.setdefault((role, index), now_s) > FROZEN_S

    def is_deadlocked(self, children: Iterable[tuple[str, int]], timeout_s: float) -> bool:
        """True if all children have waited for each other for longer than `timeout_s`."""
        counts = (self._control.env_steps, self._control.leader.get(RankWord.UPDATES))
        now_s = self._elapsed_s()
        if counts != self._counts or not all(self._control.is_waiting(*child) for child in children):
            self._counts, self._counts_since_s = counts, now_s
        return now_s - self._counts_since_s > timeout_s
