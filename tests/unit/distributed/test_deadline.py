"""The end of a call with many waits."""

from __future__ import annotations

import select
from typing import cast

import pytest

from offpolicy.distributed.deadline import Deadline

Events = list[tuple[int, int]]
MESSAGE: Events = [(9, select.POLLIN)]


class ScriptedPoll:
    """A poll, and the clock: each call takes so many seconds more than it was asked for, and has these events."""

    def __init__(self, *calls: tuple[float, Events]) -> None:
        self._calls, self._now_ns = list(calls), 0
        self.num_calls = 0

    def now_ns(self) -> int:
        return self._now_ns

    def poll(self, timeout_ms: float) -> Events:
        longer_s, events = self._calls[min(self.num_calls, len(self._calls) - 1)]
        self.num_calls += 1
        self._now_ns += round(1e6 * timeout_ms + 1e9 * longer_s) if not events or longer_s else 0
        return events


def wait(deadline: Deadline, poll: ScriptedPoll) -> Events:
    return deadline.wait(cast(select.poll, poll))


def test_a_wait_without_events_ends_at_the_deadline() -> None:
    poll = ScriptedPoll((0.0, []))
    with pytest.raises(TimeoutError, match="timed out"):
        wait(Deadline(3.5, poll), poll)
    assert poll.now_ns() == 3_500_000_000


@pytest.mark.parametrize("at_once", [[], [(7, select.POLLIN)]])
def test_a_pause_of_this_process_does_not_count(at_once: Events) -> None:
    poll = ScriptedPoll((100.0, at_once), (0.0, MESSAGE))
    deadline = Deadline(3.0, poll)
    assert wait(deadline, poll) == (at_once or MESSAGE)
    assert deadline.left_s() == 2.0  # less the second that was asked for
