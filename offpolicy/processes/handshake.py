"""The handshake of collection: the leading learner grants env steps, the collectors take them, each wakes the other.

All sides publish cumulative counts, so a lost or repeated wake-up changes nothing; every wait reads the stop word at
least every `POLL_S`. Every collector of a run, on whatever host, does the same number of env steps: with C of them, E
transitions exist once each has done ceil(E / C).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from enum import Enum, auto

from offpolicy import fault
from offpolicy.processes.control_page import CollectorWord, ControlPage, HostWord, RankWord, Stop
from offpolicy.processes.shared_memory import WakeEvent

POLL_S = 0.5


class Turn(Enum):
    """The next thing that a collector does."""

    STEP = auto()
    SNAPSHOT = auto()
    STOP = auto()


def steps_per_collector(env_steps: int, num_collectors: int) -> int:
    """Returns the env steps that each collector must have done for `env_steps` transitions to exist."""
    return -(-env_steps // num_collectors)


class CollectorGate:
    """A collector's side. `to_wake` are the events of all that may be waiting for its rows."""

    def __init__(self, control: ControlPage, index: int, wake_event: WakeEvent, to_wake: Sequence[WakeEvent]) -> None:
        self._control, self._index, self._wake_event, self._to_wake = control, index, wake_event, tuple(to_wake)
        self._own = control.collectors[index]
        self._announced = -1  # rows or rollouts handed over when the others were last woken

    def announce(self, env_steps: int, handed_over: int) -> None:
        """Announces `env_steps`; wakes the others if `handed_over`, the count of what the learner got, has changed."""
        self._own[CollectorWord.ENV_STEPS] = env_steps
        self._own[CollectorWord.PROGRESS] += 1
        if self._announced != handed_over:
            self._announced = handed_over
            _wake(self._to_wake)

    def wait_turn(self, may_go: Callable[[int], bool]) -> Turn:
        """Blocks until there is something to do. `may_go` says whether a granted count allows the next step."""
        while (turn := self.turn(may_go)) is None:
            self._own[CollectorWord.IS_WAITING] = 1
            self._wake_event.wait(POLL_S)
            self._own[CollectorWord.IS_WAITING] = 0
            self._own[CollectorWord.PROGRESS] += 1
        return turn

    def turn(self, may_go: Callable[[int], bool]) -> Turn | None:
        """Returns what to do next, None if there is nothing yet. A snapshot is taken between steps, never in one."""
        control = self._control
        if control.host[HostWord.STOP] == Stop.EXIT:
            return Turn.STOP
        if control.owes_snapshot(self._index):
            return Turn.SNAPSHOT
        return Turn.STEP if control.is_released(self._index) and may_go(control.leader[RankWord.GRANTED]) else None

    def answer_snapshot(self, take: Callable[[], OSError | None]) -> None:
        """Takes the requested snapshot; announces that it is on disk, or what the disk refused, as `take` returns it.

        The disk may take its time.
        """
        self._own[CollectorWord.IS_SAVING] = 1
        self._own[CollectorWord.PROGRESS] += 1
        error = take()
        self._own[CollectorWord.IS_SAVING] = 0
        self._own[CollectorWord.PROGRESS] += 1
        self._own[CollectorWord.SNAPSHOT_ERRNO] = (error.errno or errno.EIO) if error else 0
        self._own[CollectorWord.SNAPSHOT_DONE] = self._control.leader[RankWord.SNAPSHOT_REQUEST]
        _wake(self._to_wake)


class LearnerGate:
    """A learner rank's side; only the leader grants and asks for snapshots."""

    def __init__(
        self,
        control: ControlPage,
        rank: int,
        wake_event: WakeEvent,
        collector_events: Sequence[WakeEvent],
        *,
        num_collectors: int | None = None,
    ) -> None:
        """`rank` is the index on this host; `num_collectors` counts those of all hosts (default: one host)."""
        self._control, self._wake_event, self._collector_events = control, wake_event, tuple(collector_events)
        self._own, self._is_leader = control.ranks[rank], rank == 0
        self._num_collectors = num_collectors or len(control.collectors)

    @property
    def env_steps(self) -> int:
        """Transitions collected so far on this host."""
        return self._control.env_steps

    @property
    def have_all_begun(self) -> bool:
        """True once every collector of this host has announced the env steps that it begins from."""
        return self._have_all(CollectorWord.HAS_BEGUN, 1)

    def wait_for(self, env_steps: int) -> None:
        """Blocks until every collector has done its part of that many, or until the run is stopping."""
        needed = steps_per_collector(env_steps, self._num_collectors)
        self.wait_until(lambda: self._have_all(CollectorWord.ENV_STEPS, needed))

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Blocks until it is, checking whenever a collector has done something, or until the run is stopping."""
        self._block_until(lambda: is_true() or self._control.is_stopping)

    def grant(self, env_steps: int) -> None:
        """Lets every collector step up to its part of that many transitions; only the leader's call has an effect."""
        self.grant_each(steps_per_collector(env_steps, self._num_collectors))

    def grant_each(self, count: int) -> None:
        """Lets every collector go up to that many env steps, or rollouts; only the leader's call has an effect."""
        if self._is_leader:
            self._own[RankWord.GRANTED] = count
            self.wake_collectors()

    def wake_collectors(self) -> None:
        """Wakes the collectors."""
        _wake(self._collector_events)

    def request_snapshot(self) -> bool:
        """Asks the collectors for a snapshot and waits for it; False if one of them has exited.

        The others stand still until `release_snapshot` all the same: no row is written while the rings are saved.
        """
        fault.hit("snapshot.request")
        self._own[RankWord.SNAPSHOT_REQUEST] += 1
        number = self._own[RankWord.SNAPSHOT_REQUEST]
        self.wake_collectors()
        self._block_until(lambda: self._have_all(CollectorWord.SNAPSHOT_DONE, number, but_gone=True))
        return self._have_all(CollectorWord.SNAPSHOT_DONE, number)

    def release_snapshot(self) -> None:
        """Lets the collectors resume."""
        fault.hit("snapshot.release")
        self._own[RankWord.SNAPSHOT_RELEASE] = self._own[RankWord.SNAPSHOT_REQUEST]
        self.wake_collectors()

    def _have_all(self, word: CollectorWord, value: int, *, but_gone: bool = False) -> bool:
        collectors = self._control.collectors
        return all(words[word] >= value or (but_gone and words[CollectorWord.IS_GONE]) for words in collectors)

    def _block_until(self, is_true: Callable[[], bool]) -> None:
        if is_true():
            return
        self._own[RankWord.IS_WAITING] = 1
        while not is_true():
            self._wake_event.wait(POLL_S)
        self._own[RankWord.IS_WAITING] = 0


def _wake(events: Sequence[WakeEvent]) -> None:
    for event in events:
        event.set()
