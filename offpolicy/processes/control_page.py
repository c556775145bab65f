"""The control page: u64 words, one writer each, by which supervisor, learner ranks and collectors steer one another.

Only a word's own writer stores it, which is one aligned write of 8 bytes: never torn.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum, auto
from typing import TypeAlias

Words: TypeAlias = memoryview  # the words of one process, indexed by its enumeration below


class HostWord(IntEnum):
    """The words of the host. Their only writer is the supervisor."""

    STOP = 0  # a Stop
    REPORT_REQUEST = 1  # number of reports requested so far
    SAVE_REQUEST = 2  # number of checkpoints requested so far, by the clock or by a signal
    SAVE_SIGNALS = 3  # number of those that a signal has requested


class RankWord(IntEnum):
    """The words of one learner rank and, in brackets, their writer. The host's leader is its rank 0."""

    PROGRESS = 0  # [rank] changes whenever the rank made progress
    IS_WAITING = 1  # [rank] 1 while it waits for another process
    UPDATES = 2  # [rank] gradient updates done
    ITERATIONS = 3  # [rank] iterations done
    GRANTED = 4  # [leader] env steps, or rollouts, up to which each collector may go
    VERSION = 5  # [leader] newest published weights
    SNAPSHOT_REQUEST = 6  # [leader] number of collector snapshots requested
    SNAPSHOT_RELEASE = 7  # [leader] snapshots after which the collectors may resume
    ARRIVED_EVEN = 8  # [rank] instant of its arrival at every other collective
    ARRIVED_ODD = 9  # [rank] the same of the ones between


class CollectorWord(IntEnum):
    """The words of one collector and, in brackets, their writer."""

    PROGRESS = 0  # [collector] changes whenever the collector made progress
    IS_WAITING = 1  # [collector] 1 while it waits for another process
    ENV_STEPS = 2  # [collector] transitions collected; written after their rows
    SNAPSHOT_DONE = 3  # [collector] snapshots written
    IS_GONE = 4  # [supervisor] 1 once it has exited
    SNAPSHOT_ERRNO = 5  # [collector] errno of what the disk refused in its last snapshot; 0 where that is on disk
    RESTARTS = 6  # [collector] times that it has made its environments again
    HAS_BEGUN = 7  # [collector] 1 once its start is complete
    IS_SAVING = 8  # [collector] 1 while it writes its part of a checkpoint
    IS_INSIDE = 9  # [learner] 1 while its own thread takes a vector step


class EvaluatorWord(IntEnum):
    """The words of the evaluator, which only the first host has. Their only writer is the evaluator."""

    PROGRESS = 0  # changes whenever the evaluator made progress
    IS_WAITING = 1  # 1 while there is no request
    ANSWERED = 2  # number of the newest finished request; written after its result was sent
    EVALUATED_STEPS = 3  # env steps of that request
    STOPS_EARLY = 4  # 1 once the evaluations so far end the run (`stop.*`); written before `ANSWERED`


class Stop(IntEnum):
    """What the supervisor asks of all processes."""

    RUN = 0
    FINISH = 1  # the learners finish their iteration, save and exit; the collectors stay for the snapshot
    EXIT = 2  # exit now


class Turn(Enum):
    """The next thing that a collector does."""

    STEP = auto()
    SNAPSHOT = auto()
    STOP = auto()


_SECTION_WORDS = 16  # whole cache lines for each process, so that no process's stores slow down another one's


class ControlPage:
    """The sections of the page: `host`, `evaluator`, one of `ranks` per learner rank, one of `collectors` each."""

    def __init__(self, buffer: memoryview, num_ranks: int, num_collectors: int) -> None:
        words = buffer.cast("Q")
        starts = range(0, _SECTION_WORDS * (2 + num_ranks + num_collectors), _SECTION_WORDS)
        sections = [words[start : start + _SECTION_WORDS] for start in starts]
        self.host, self.evaluator = sections[:2]
        self.ranks = tuple(sections[2 : 2 + num_ranks])
        self.leader = self.ranks[0]  # steers the collectors and publishes the weights
        self.collectors = tuple(sections[2 + num_ranks :])

    @staticmethod
    def nbytes(num_ranks: int, num_collectors: int) -> int:
        """Returns the bytes of the page."""
        return 8 * _SECTION_WORDS * (2 + num_ranks + num_collectors)

    @property
    def is_stopping(self) -> bool:
        """True once the supervisor has asked all processes to finish."""
        return self.host[HostWord.STOP] != Stop.RUN

    @property
    def env_steps(self) -> int:
        """Transitions collected so far on this host."""
        return sum(collector[CollectorWord.ENV_STEPS] for collector in self.collectors)

    def words(self, role: str, index: int) -> Words:
        """Returns the words of a process. The first two mean the same for all of them."""
        by_role = {"learner": self.ranks, "evaluator": (self.evaluator,)}
        return by_role.get(role, self.collectors)[index]  # the link has those of its first collector

    def is_waiting(self, role: str, index: int) -> bool:
        """True while the process waits for another one."""
        return bool(self.words(role, index)[RankWord.IS_WAITING])

    def owes_snapshot(self, index: int) -> bool:
        """True while a collector has not answered the newest request for a snapshot."""
        return self.leader[RankWord.SNAPSHOT_REQUEST] > self.collectors[index][CollectorWord.SNAPSHOT_DONE]

    def turn(self, index: int, may_step: Callable[[int], bool]) -> Turn | None:
        """Returns what a collector does next, None if there is nothing yet. It takes a snapshot between two steps.

        `may_step` says whether a granted count allows the next step.
        """
        if self.host[HostWord.STOP] == Stop.EXIT:
            return Turn.STOP
        if self.owes_snapshot(index):
            return Turn.SNAPSHOT
        # Until the release the learner still copies the rows that belong to the snapshot.
        is_released = self.leader[RankWord.SNAPSHOT_RELEASE] >= self.collectors[index][CollectorWord.SNAPSHOT_DONE]
        is_free = is_released and not self.is_stopping
        return Turn.STEP if is_free and may_step(self.leader[RankWord.GRANTED]) else None

    def is_asked(self, role: str, index: int) -> bool:
        """True while a collector owes a snapshot, or any process its exit: it has no reason to wait."""
        return self.host[HostWord.STOP] == Stop.EXIT or (role == "collector" and self.owes_snapshot(index))

    def may_go(self, role: str, index: int) -> bool:
        """True for a collector that has a turn. Rollouts are granted by their number: only its first one is known."""
        if role != "collector":
            return False
        done = self.collectors[index][CollectorWord.ENV_STEPS]
        return self.turn(index, lambda granted: done < granted) is not None
