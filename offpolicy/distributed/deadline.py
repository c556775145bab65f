"""The end of a call that waits for other processes, and calls that would wait for ever."""

from __future__ import annotations

import errno
import select
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from offpolicy.children import CALL_THREAD
from offpolicy.machine import LONGEST_WAIT_S
from offpolicy.processes.watchdog import PAUSE_S
from offpolicy.timing.clock import Clock, Stopwatch

T = TypeVar("T")
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


def call_within(timeout_s: float, call: Callable[[], T]) -> T:
    """Calls a function in a thread; returns its result, or raises its error.

    Raises TimeoutError if it has not ended after `timeout_s`. Its thread then stays: torch's calls of a store whose
    process is frozen never end, whatever deadline they were given. Such a process must end by `children.leave_now`.
    """
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=work, name=CALL_THREAD, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.ENOMEM, f"no thread for a call: {error}") from error
    try:
        return future.result(timeout_s)
    except TimeoutError as error:
        raise TimeoutError(str(error) or "no answer") from error
