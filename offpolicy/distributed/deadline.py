"""The end of a call that waits for other processes."""

from __future__ import annotations

import select

from offpolicy.machine import LONGEST_WAIT_S
from offpolicy.processes.watchdog import PAUSE_S
from offpolicy.timing.clock import Clock, Stopwatch

POLL_S = 1.0  # one wait for messages, at most, so that a pause of this process is seen


class Deadline:
    """The end of one call, however many waits it has."""

    def __init__(self, timeout_s: float, clock: Clock | None = None) -> None:
        self._timeout_s, self._watch = timeout_s, Stopwatch(clock)

    def left_s(self) -> float:
        """Returns the seconds left, or as many as a wait can have. Raises TimeoutError if there are none."""
        left_s = self._timeout_s - self._watch.elapsed_s()
        if left_s <= 0.0:
            raise TimeoutError("timed out")
        return min(left_s, LONGEST_WAIT_S)

    def wait(self, poll: select.poll) -> list[tuple[int, int]]:
        """Returns the events of `poll` as soon as there are any. Raises TimeoutError if none comes in time.

        A pause of this process (Ctrl-Z, a frozen container) does not count: the peers may have been paused with it.
        """
        while True:
            began_s = self._watch.elapsed_s()
            asked_s = min(max(self._timeout_s - began_s, 0.0), POLL_S)
            events = poll.poll(1000.0 * asked_s)
            paused_s = self._watch.elapsed_s() - began_s - asked_s
            if paused_s > PAUSE_S:
                self._timeout_s += paused_s
            if events:
                return events
            self.left_s()

    def hasten(self, left_s: float) -> None:
        """Leaves no more than `left_s` from now."""
        self._timeout_s = min(self._timeout_s, self._watch.elapsed_s() + left_s)
