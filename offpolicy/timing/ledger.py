"""The account of one thread's wall time: it closes, by construction, in integer nanoseconds.

Exactly one phase is open at any instant, `other` by default. Switching closes one phase and opens the next at the
same clock reading, so no nanosecond is counted twice and none is lost: `sum(phases) == wall`. Entering a phase inside
another (`param_sync` inside `train`), never inside itself, takes its time out of the outer one. An exception keeps its
interval. One ledger belongs to one thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from operator import sub
from types import TracebackType

import numpy as np

from offpolicy.timing.clock import Clock, MonotonicClock, cpu_ns, scheduler_stats
from offpolicy.timing.histogram import Counts, bins_of
from offpolicy.timing.phases import LearnerPhase
from offpolicy.timing.trace_writer import Mark, TraceTrack
from offpolicy.types import HISTOGRAM_BINS, NO_ACCOUNT, Account, Cooldown, SchedulerStats, TaggedTime

NULL_SPAN = nullcontext()
SLICE = 128  # iterations that are noted before their histograms are counted: some 50 us at a time


class Ledger:
    """The account of one thread over the phases of one enum, which must contain `other`.

    A span, `with ledger.phase(...)`, costs two clock readings and no allocation. With a `trace` (see `trace_names`)
    every phase but `other` is written into it when it closes. Without a histogram an account is cheap, for threads that
    are asked for one in every iteration.
    """

    def __init__(
        self,
        phases: type[StrEnum],
        clock: Clock | None = None,
        opened_ns: int | None = None,
        trace: TraceTrack | None = None,
        *,
        has_histogram: bool = True,
    ) -> None:
        self.now_ns = (clock or MonotonicClock()).now_ns  # 0 without timing
        self._trace, self._has_histogram = trace, has_histogram
        self.names = tuple(str(phase) for phase in phases)
        self._index = {phase: index for index, phase in enumerate(phases)}
        self._opened = dict(self._index)  # -1 for a phase that is skipped
        self._next = self._open = self._other = self.names.index("other")
        self._outer = [0] * len(self.names)  # for each open phase, the one that was open before
        self._clear()
        self._born_ns = self.now_ns() if opened_ns is None else opened_ns
        self._start_ns = self.switched_ns = self._born_ns  # `switched_ns`: when the open phase was opened, or read last
        self._closed_ns = 0  # the end of the last iteration
        self._is_warm = False
        self._num_closed = 0  # iterations, those of the warm-up among them
        self._last_iteration: Cooldown | None = None  # readings at its end, once the cooldown has begun

    def phase(self, phase: StrEnum) -> AbstractContextManager[None]:
        """Returns the span of a phase, for a `with` statement."""
        self._next = index = self._opened[phase]
        return NULL_SPAN if index < 0 else self

    def __enter__(self) -> None:
        index = self._next
        self._outer[index] = self.switch(index)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.switch(self._outer[self._open])

    def switch(self, index: int) -> int:
        """Closes the open phase, opens another at the same instant, and returns the index of the closed one."""
        now_ns = self.now_ns()
        closed = self._open
        self._phases_ns[closed] += now_ns - self.switched_ns
        if self._trace is not None and closed != self._other:
            self._trace.span(closed, self.switched_ns, now_ns)
        self.switched_ns, self._open = now_ns, index
        return closed

    def close(self) -> None:
        """Ends the iteration; the next one starts at the same nanosecond."""
        self.switch(self._open)
        self._closed_ns = self.switched_ns
        self._iterations += 1
        self._num_closed += 1
        self._notes.extend(self._phases_ns)
        if len(self._notes) >= SLICE * len(self.names):
            self._count()
        if self._trace is not None:
            self._trace.mark(Mark.ITERATION, self.switched_ns, self._num_closed)

    def end_warmup(self) -> None:
        """Puts the time until now into the warm-up bucket; the account starts here. Only the first call counts."""
        if not self._is_warm:
            self._start_here()
            self._is_warm = True

    def _start_here(self) -> None:
        self.switch(self._open)
        self._start_ns = self.switched_ns
        self._clear()

    def _clear(self) -> None:
        num_phases = len(self.names)
        self._phases_ns = [0] * num_phases
        self._iterations, self._tagged = 0, TaggedTime()
        # Histograms of each phase, and of all together in the last row. An iteration is noted, in well below a
        # microsecond, and counted when counts are read, or with a slice of others.
        self._counts = np.zeros((num_phases + 1, HISTOGRAM_BINS), dtype=np.int64)
        self._before_ns = np.zeros(num_phases, dtype=np.int64)  # the totals of the last iteration that was counted
        self._notes = array("q")  # the totals of every iteration since

    def _count(self) -> Counts:
        """Counts the iterations that were noted; returns a copy of the counts [phases + 1, HISTOGRAM_BINS]."""
        notes = np.frombuffer(self._notes, dtype=np.int64).reshape(-1, len(self.names))
        took_ns = np.diff(notes, axis=0, prepend=self._before_ns[np.newaxis])
        bins = bins_of(np.concatenate((took_ns, took_ns.sum(axis=1, keepdims=True)), axis=1))
        flat = bins + HISTOGRAM_BINS * np.arange(len(self._counts))
        self._counts += np.bincount(flat.ravel(), minlength=self._counts.size).reshape(self._counts.shape)
        if len(notes):
            self._before_ns = notes[-1]
        self._notes = array("q")
        return self._counts.copy()

    def _last_ns(self, index: int) -> int:
        """Returns the time of a phase from the start to the end of the last iteration."""
        return self._notes[index - len(self.names)] if self._notes else int(self._before_ns[index])

    def begin_cooldown(self) -> None:
        """Sets what came after the last iteration apart, within the account. Only the first call counts.

        Before the end of the warm-up nothing is.
        """
        if self._is_warm and self._last_iteration is None:
            last_ns = {name: self._last_ns(index) for index, name in enumerate(self.names)}
            self._last_iteration = Cooldown(last_ns, cpu_ns(), scheduler_stats())

    def account(self) -> Account:
        """Returns the account up to now; `sum(phases_ns.values()) == wall_ns`. All time is warm-up until that ends."""
        if self._is_warm:
            self.switch(self._open)
        else:
            self._start_here()
        cpu, scheduler, last, cooldown = cpu_ns(), scheduler_stats(), self._last_iteration, None
        if last is not None:
            since_ns = map(sub, self._phases_ns, last.phases_ns.values())
            since = SchedulerStats(*map(sub, scheduler, last.scheduler))
            cooldown = Cooldown(dict(zip(self.names, since_ns, strict=True)), cpu - last.cpu_ns, since)
        return Account(
            wall_ns=self.switched_ns - self._start_ns,
            warmup_ns=self._start_ns - self._born_ns,
            iterations=self._iterations,
            phases_ns=dict(zip(self.names, self._phases_ns, strict=True)),
            cpu_ns=cpu,
            scheduler=scheduler,
            tagged=self._tagged,
            cooldown=cooldown,
            histogram=self._count() if self._has_histogram else None,
        )

    def skip(self, phases: Iterable[StrEnum]) -> None:
        """Opens these phases no more: their part does nothing, and a clock reading would be most of their time."""
        self._opened |= dict.fromkeys(phases, -1)

    def tag(self, phase: StrEnum) -> None:
        """Adds this iteration and its time of `phase` to the tagged time; always the same phase."""
        row = self._index[phase]
        iterations, ns = self._tagged
        self._tagged = TaggedTime(iterations + 1, ns + self._phases_ns[row] - self._last_ns(row))

    @property
    def is_in_iteration(self) -> bool:
        """True if the account has time of an iteration that has not ended: not in the warm-up or the cooldown."""
        has_begun = self.switched_ns > max(self._start_ns, self._closed_ns)
        return self._is_warm and self._last_iteration is None and has_begun

    def total_ns(self, phases: Sequence[StrEnum]) -> int:
        """Returns the time of closed phases since the warm-up."""
        return sum(self._phases_ns[self._index[phase]] for phase in phases)

    def charge_head(self, phase: StrEnum, until_ns: int) -> None:
        """Charges the time from the opening of the open phase until an instant that has passed to `phase` instead."""
        if until_ns > self.switched_ns:
            index = self._index[phase]
            self._phases_ns[index] += until_ns - self.switched_ns
            if self._trace is not None:
                self._trace.span(index, self.switched_ns, until_ns)
            self.switched_ns = until_ns

    def move(self, source: StrEnum, target: StrEnum, ns: int) -> None:
        """Moves time of this iteration from one phase to another; the trace keeps what was open when."""
        self._phases_ns[self._index[source]] -= ns
        self._phases_ns[self._index[target]] += ns

    def mark(self, mark: Mark, value: int) -> None:
        """Writes an instant into the trace, if there is one."""
        if self._trace is not None:
            self._trace.mark(mark, self.now_ns(), value)


class NullLedger(Ledger):
    """The ledger of a run without timing: it opens no phase, reads no clock, and its account is empty."""

    def __init__(self, phases: type[StrEnum] = LearnerPhase) -> None:
        super().__init__(phases, None, 0, has_histogram=False)
        self.now_ns = lambda: 0

    def phase(self, phase: StrEnum) -> AbstractContextManager[None]:
        """Returns a span that does nothing, also for phases of other enums."""
        return NULL_SPAN

    def close(self) -> None:
        """Does nothing."""

    def begin_cooldown(self) -> None:
        """Does nothing."""

    def account(self) -> Account:
        """Returns the empty account."""
        return NO_ACCOUNT


def trace_names(phases: type[StrEnum]) -> tuple[str, ...]:
    """The names of the records of a ledger's trace: its phases, in their order, and the marks."""
    return (*map(str, phases), *Mark)


def make_ledger(
    phases: type[StrEnum],
    *,
    is_enabled: bool,
    opened_ns: int | None = None,
    trace: TraceTrack | None = None,
    has_histogram: bool = True,
) -> Ledger:
    """Returns a ledger on the machine's clock, or the null object."""
    return Ledger(phases, None, opened_ns, trace, has_histogram=has_histogram) if is_enabled else NullLedger(phases)
