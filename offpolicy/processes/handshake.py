"""The handshake of collection: the leading learner grants env steps, the collectors take them, each wakes the other.

All sides publish cumulative counts, so a lost or repeated wake-up changes nothing; every wait reads the stop word at
least every `POLL_S`. Every collector of a run, on whatever host, does the same number of env steps: with C of them, E
transitions exist once each has done ceil(E / C). A collector's side is in `collect/collector.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from offpolicy import fault
from offpolicy.processes.control_page import CollectorWord, ControlPage, RankWord
from offpolicy.processes.shared_memory import WakeEvent

POLL_S = 0.5


def steps_per_collector(env_steps: int, num_collectors: int) -> int:
    """Returns the env steps that each collector must have done for `env_steps` transitions to exist."""
    return -(-env_steps // num_collectors)


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
        wake(self._collector_events)

    def request_snapshot(self) -> bool:
        """Asks the collectors for a snapshot and waits for it; False if one of them has exited.

        The others write no row until `release_snapshot` all the same.
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


def wake(events: Sequence[WakeEvent]) -> None:
    """Wakes the processes of these events."""
    for event in events:
        event.set()
