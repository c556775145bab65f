"""The handshake of collection: the learner grants env steps, the collector takes them, each rings the other's bell.

Both sides publish cumulative counts, so a lost or repeated ring changes nothing; every wait wakes up at least every
`POLL_S` to look at the stop word.
"""

from __future__ import annotations

from enum import Enum, auto

from offpolicy.ipc.control import ControlPage, Stop, Word
from offpolicy.ipc.shared import Doorbell

POLL_S = 0.5


class Turn(Enum):
    """What a collector does next."""

    STEP = auto()
    SNAPSHOT = auto()
    STOP = auto()


class CollectorGate:
    """The collector's side."""

    def __init__(self, control: ControlPage, own_bell: Doorbell, learner_bell: Doorbell) -> None:
        self._control, self._own_bell, self._learner_bell = control, own_bell, learner_bell

    def wait_turn(self, env_steps: int) -> Turn:
        """Say that the rows of `env_steps` transitions are committed, then block until there is something to do.

        A snapshot is taken between steps, never during one.
        """
        self._control.set(Word.ENV_STEPS, env_steps)
        self._control.bump(Word.COLLECTOR_PROGRESS)
        self._learner_bell.ring()
        while True:
            turn = self._turn(env_steps)
            if turn is not None:
                return turn
            self._control.set(Word.COLLECTOR_IS_WAITING, 1)
            self._own_bell.wait(POLL_S)
            self._control.set(Word.COLLECTOR_IS_WAITING, 0)
            self._control.bump(Word.COLLECTOR_PROGRESS)

    def _turn(self, env_steps: int) -> Turn | None:
        if self._control.get(Word.STOP) == Stop.LEAVE:
            return Turn.STOP
        done = self._control.get(Word.SNAPSHOT_DONE)
        if self._control.get(Word.SNAPSHOT_REQUEST) > done:
            return Turn.SNAPSHOT
        # Until the release the learner is still copying the rows that belong to the snapshot.
        may_step = not self._control.is_stopping and self._control.get(Word.SNAPSHOT_RELEASE) >= done
        return Turn.STEP if may_step and env_steps < self._control.get(Word.GRANTED) else None

    def snapshot_taken(self) -> None:
        """Say that the snapshot asked for is on disk."""
        self._control.set(Word.SNAPSHOT_DONE, self._control.get(Word.SNAPSHOT_REQUEST))
        self._learner_bell.ring()


class LearnerGate:
    """The learner's side."""

    def __init__(self, control: ControlPage, own_bell: Doorbell, collector_bell: Doorbell) -> None:
        self._control, self._own_bell, self._collector_bell = control, own_bell, collector_bell

    @property
    def env_steps(self) -> int:
        """Transitions collected so far."""
        return self._control.get(Word.ENV_STEPS)

    def wait_for(self, env_steps: int) -> None:
        """Block until that many transitions are committed, or until the run is stopping."""
        if self.env_steps >= env_steps:
            return
        self._control.set(Word.LEARNER_IS_WAITING, 1)
        while self.env_steps < env_steps and not self._control.is_stopping:
            self._own_bell.wait(POLL_S)
        self._control.set(Word.LEARNER_IS_WAITING, 0)

    def grant(self, env_steps: int) -> None:
        """Let the collector step up to that many transitions."""
        self._control.set(Word.GRANTED, env_steps)
        self._collector_bell.ring()

    def request_snapshot(self) -> bool:
        """Ask the collector for a snapshot and wait for it; False if the collector is gone.

        The collector then stands still until `release_snapshot`.
        """
        number = self._control.bump(Word.SNAPSHOT_REQUEST)
        self._collector_bell.ring()
        self._control.set(Word.LEARNER_IS_WAITING, 1)
        while self._control.get(Word.SNAPSHOT_DONE) < number and not self._control.get(Word.COLLECTOR_IS_GONE):
            self._own_bell.wait(POLL_S)
        self._control.set(Word.LEARNER_IS_WAITING, 0)
        return self._control.get(Word.SNAPSHOT_DONE) >= number

    def release_snapshot(self) -> None:
        """Let the collector go on."""
        self._control.set(Word.SNAPSHOT_RELEASE, self._control.get(Word.SNAPSHOT_REQUEST))
        self._collector_bell.ring()
