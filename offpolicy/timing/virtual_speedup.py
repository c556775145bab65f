"""Virtual speed-up: while one phase is open, every other thread is delayed by a percentage of its duration.

On a clock from which the delays are subtracted, the run then goes as fast as one in which that phase takes so many
percent less time, whatever the cores and the interpreter do to it: causal profiling (Curtsinger and Berger, "Coz:
Finding Code that Counts with Causal Profiling", SOSP 2015), here with the exact phases of the ledgers in place of
samples of the program counter.

Every thread has a virtual clock: its wall less its offset. A phase that is made faster raises the offset of its thread
while it is open. A thread that works pays before it opens its next phase: it sleeps until its own offset is the largest
of all. A thread that waited for another one is credited instead: it resumes at the virtual time of the one that it
waited for, which has paid before.
"""

from __future__ import annotations

import ctypes
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from offpolicy.timing.clock import Clock, MonotonicClock
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase
from offpolicy.timing.trace_writer import TraceTrack

# Phases that can be made faster: work, neither waits nor what is done at a cadence of its own.
CANDIDATES: tuple[str, ...] = (
    LearnerPhase.REPLAY_SAMPLE,
    LearnerPhase.H2D,
    LearnerPhase.TRAIN,
    LearnerPhase.WEIGHT_PUBLISH,
    CollectorPhase.WEIGHT_APPLY,
    CollectorPhase.ACTION_SELECT,
    CollectorPhase.ENV_STEP,
    CollectorPhase.REPLAY_WRITE,
    PackerPhase.PACK,
    PackerPhase.COPY,
)
# Phases in which a thread may wait for another one.
BLOCKING = (
    LearnerPhase.COLLECTOR_WAIT,
    LearnerPhase.REPLAY_BATCH_WAIT,
    LearnerPhase.EVALUATION,
    LearnerPhase.CHECKPOINT,
    CollectorPhase.LEARNER_WAIT,
    CollectorPhase.SNAPSHOT,
    PackerPhase.REQUEST_WAIT,
    PackerPhase.ROWS_WAIT,
    PackerPhase.SLOT_WAIT,
)
# Phases that the delays are charged to: they count as waits.
DELAYED = (LearnerPhase.SYNC_COORDINATION, CollectorPhase.LEARNER_WAIT, PackerPhase.SLOT_WAIT)

TOLERANCE_NS = 5_000  # difference of two offsets that is not paid yet
SPIN_NS = 60_000  # end of a delay that is not slept, because a sleep ends late by as much
PR_SET_TIMERSLACK = 29
_LINE_WORDS = 16  # two cache lines for each thread
_PERCENT_BITS = 7
_WRAP = 1 << (64 - _PERCENT_BITS)


class Experiment(NamedTuple):
    """A phase, and the percentage of its time that it takes less. Its code fits into one word."""

    phase: str
    percent: int

    @property
    def code(self) -> int:
        """The experiment as a number; 0 for the baseline."""
        return (CANDIDATES.index(self.phase) + 1) << _PERCENT_BITS | self.percent if self.percent else 0


BASELINE = Experiment("", 0)


class Measured(NamedTuple):
    """The results of a run's experiments."""

    steps_per_sec: float  # of the baseline
    gains: Mapping[str, Mapping[str, Sequence[float]]]  # ratios to the baseline, by phase and percentage


class Gain(NamedTuple):
    """A mean gain as a fraction, and its 95 % interval; None of fewer than three values."""

    gain: float
    low: float | None
    high: float | None


def interval_of(ratios: Sequence[float]) -> Gain:
    """Returns the mean gain of repeated blocks, with Student's t interval."""
    mean, degrees = statistics.fmean(ratios) - 1.0, len(ratios) - 1
    if degrees < 2:
        return Gain(mean, None, None)
    # The quantile of t in powers of 1 / degrees (Abramowitz and Stegun 26.7.5): to 1 %.
    quantile = 1.960 + 2.372 / degrees + 2.822 / degrees**2 + 2.556 / degrees**3 + 1.589 / degrees**4
    margin = quantile * statistics.stdev(ratios) / math.sqrt(len(ratios))
    return Gain(mean, mean - margin, mean + margin)


class VirtualTimes:
    """Shared words: the experiment; and of each thread its offset and its time by phase. One writer each."""

    def __init__(self, buffer: memoryview, threads: Sequence[str]) -> None:
        self._words = buffer.cast("Q")
        self._first = {name: _LINE_WORDS * (1 + index) for index, name in enumerate(threads)}

    @staticmethod
    def nbytes(num_threads: int) -> int:
        """Returns the bytes of the words of so many threads."""
        return 8 * _LINE_WORDS * (1 + num_threads)

    @property
    def experiment(self) -> int:
        """The code of the experiment that goes on."""
        return self._words[0]

    def begin(self, experiment: Experiment) -> None:
        """Begins an experiment; only one thread may."""
        self._words[0] = experiment.code

    def publish(self, thread: str, offset_ns: int, now_ns: int, percent: int) -> None:
        """Stores the offset of a thread, which from now on grows by `percent` of the time.

        One store: what it would have been at time 0, and the percentage. It is never read with the wrong one.
        """
        self._words[self._first[thread]] = (offset_ns - percent * now_ns // 100) % _WRAP << _PERCENT_BITS | percent

    def offset_ns(self, thread: str, now_ns: Callable[[], int]) -> int:
        """Returns the offset of a thread now. The clock is read after the word."""
        word = self._words[self._first[thread]]
        percent = word & ((1 << _PERCENT_BITS) - 1)
        offset_ns = ((word >> _PERCENT_BITS) + percent * now_ns() // 100) % _WRAP
        return offset_ns if offset_ns < _WRAP // 2 else 0  # below 0 where the clocks of two cores differ

    def largest_ns(self, now_ns: Callable[[], int]) -> int:
        """Returns the largest offset of all threads now."""
        return max(self.offset_ns(thread, now_ns) for thread in self._first)

    def add_time(self, thread: str, candidate: int, ns: int) -> None:
        """Adds to the time that a thread has spent in a candidate."""
        self._words[self._first[thread] + 1 + candidate] += ns

    def times_ns(self) -> dict[str, int]:
        """Returns the time by candidate of the thread that spent most in it."""
        rows = enumerate(CANDIDATES)
        return {str(phase): max(self._words[first + 1 + row] for first in self._first.values()) for row, phase in rows}


def wait_ns(ns: int) -> None:
    """Blocks the calling thread for that long, to a few microseconds."""
    stop_ns = MonotonicClock.now_ns() + ns
    if ns > SPIN_NS:
        time.sleep((ns - SPIN_NS) / 1e9)
    while MonotonicClock.now_ns() < stop_ns:
        pass


class ThreadDelays:
    """The offset of one thread, which pays for the others' or is credited."""

    def __init__(
        self,
        times: VirtualTimes,
        thread: str,
        now_ns: Callable[[], int] = MonotonicClock.now_ns,
        wait: Callable[[int], None] = wait_ns,
    ) -> None:
        self.times, self._thread, self.now_ns, self._wait = times, thread, now_ns, wait
        self._percent, self._entered_ns, self._is_precise = 0, now_ns(), False

    @property
    def offset_ns(self) -> int:
        """The offset of this thread now."""
        return self.times.offset_ns(self._thread, self.now_ns)

    def enter(self, candidate: int) -> None:
        """Begins a phase: a candidate's index, or -1."""
        self._entered_ns, code = self.now_ns(), self.times.experiment
        if candidate >= 0 and code >> _PERCENT_BITS == candidate + 1:
            self._percent = code & ((1 << _PERCENT_BITS) - 1)
            self._publish(self.offset_ns)

    def leave(self, candidate: int, *, is_blocking: bool) -> None:
        """Ends a phase; one that was made faster grows no more, one that may have waited is credited."""
        offset_ns = self.offset_ns
        if candidate >= 0:
            self.times.add_time(self._thread, candidate, self.now_ns() - self._entered_ns)
        if self._percent or is_blocking:
            self._percent = 0
            self._publish(max(offset_ns, self.times.largest_ns(self.now_ns)) if is_blocking else offset_ns)

    def owes(self) -> bool:
        """True if another thread's offset is larger."""
        return self._owed_ns() > TOLERANCE_NS

    def pay(self) -> None:
        """Delays the thread until its offset is the largest; again as long as another one is growing meanwhile.

        All of the time counts as paid, what the readings between two waits take among it: without that a thread that
        owes less than they take never catches up with an offset that grows.
        """
        if not self._is_precise:
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)  # of this thread: sleeps end late by 50 us without
            self._is_precise = True
        offset_ns, begun_ns = self.offset_ns, self.now_ns()
        while (owed_ns := self._owed_ns()) > TOLERANCE_NS:
            self._wait(owed_ns)
            self._publish(offset_ns + self.now_ns() - begun_ns)

    def _owed_ns(self) -> int:
        return self.times.largest_ns(self.now_ns) - self.offset_ns

    def _publish(self, offset_ns: int) -> None:
        self.times.publish(self._thread, offset_ns, self.now_ns(), self._percent)


class DelayedLedger(Ledger):
    """The ledger of a thread that takes part in the experiments; the delays are charged to a phase of `DELAYED`."""

    def __init__(
        self,
        phases: type[StrEnum],
        delays: ThreadDelays,
        opened_ns: int | None = None,
        trace: TraceTrack | None = None,
        *,
        has_histogram: bool = True,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(phases, clock, opened_ns, trace, has_histogram=has_histogram)
        self._delays = delays
        self._candidate = [CANDIDATES.index(phase) if phase in CANDIDATES else -1 for phase in phases]
        self._is_blocking = [phase in BLOCKING for phase in phases]
        self._delayed = next(index for index, phase in enumerate(phases) if phase in DELAYED)

    def switch(self, index: int) -> int:
        """Closes the open phase, pays what the thread owes, and opens another; returns the index of the closed one."""
        closed = self._open
        self._delays.leave(self._candidate[closed], is_blocking=self._is_blocking[closed])
        if self._delays.owes():
            super().switch(self._delayed)
            self._delays.pay()
        super().switch(index)
        self._delays.enter(self._candidate[index])
        return closed
