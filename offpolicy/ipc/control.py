"""The control page: u64 words, one writer each, by which supervisor, learner and collector steer one another."""

from __future__ import annotations

from enum import IntEnum


class Word(IntEnum):
    """The words of the page and, in brackets, their only writer."""

    STOP = 0  # [supervisor] a Stop
    REPORT_REQUEST = 1  # [supervisor] number of reports asked for so far
    UPDATES = 2  # [learner] gradient updates done
    GRANTED = 3  # [learner] env steps up to which the collector may step
    VERSION = 4  # [learner] newest published weights
    SNAPSHOT_REQUEST = 5  # [learner] number of collector snapshots asked for
    SNAPSHOT_RELEASE = 6  # [learner] snapshots after which the collector may go on
    LEARNER_PROGRESS = 7  # [learner] changes whenever it got somewhere
    LEARNER_IS_WAITING = 8  # [learner] 1 while it waits for somebody else
    ITERATIONS = 9  # [learner] iterations done
    ENV_STEPS = 10  # [collector] transitions collected; written after their rows are committed
    SNAPSHOT_DONE = 11  # [collector] snapshots written
    COLLECTOR_PROGRESS = 12  # [collector] changes whenever it got somewhere
    COLLECTOR_IS_WAITING = 13  # [collector] 1 while it waits for somebody else
    COLLECTOR_IS_GONE = 14  # [supervisor] 1 once the collector has exited


class Stop(IntEnum):
    """What the supervisor asks of everybody."""

    RUN = 0
    FINISH = 1  # the learner finishes its iteration, saves and exits; the collector stands by for the snapshot
    LEAVE = 2  # exit now


PAGE_BYTES = 4096


class ControlPage:
    """Reads and writes of the words. A store is one aligned 8-byte write: never torn."""

    def __init__(self, buffer: memoryview) -> None:
        self._words = buffer.cast("Q")

    def get(self, word: Word) -> int:
        """The word's value."""
        return self._words[word]

    def set(self, word: Word, value: int) -> None:
        """Store a value; only the word's own writer may."""
        self._words[word] = value

    def bump(self, word: Word) -> int:
        """Add one; only the word's own writer may."""
        self._words[word] += 1
        return self._words[word]

    @property
    def is_stopping(self) -> bool:
        """Whether the supervisor asked everybody to finish."""
        return self._words[Word.STOP] != Stop.RUN
