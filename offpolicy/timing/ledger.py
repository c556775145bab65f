"""The account of one thread's wall time: it closes, by construction, in integer nanoseconds.

Exactly one phase is open at any instant, `other` by default. Switching closes one phase and opens the next at the
same clock reading, so no nanosecond is counted twice and none is lost: `sum(phases) == wall`. Entering a phase inside
another (`param_sync` inside `train`) takes its time out of the outer one. An exception keeps its interval. One ledger
belongs to one thread.
"""

from __future__ import annotations

from enum import StrEnum
from types import TracebackType
from typing import Protocol

from offpolicy.timing.clock import Clock, MonotonicClock, cpu_ns, scheduler_stats
from offpolicy.timing.histogram import HistogramRecorder
from offpolicy.timing.trace_writer import Mark, TraceTrack
from offpolicy.types import Account, TaggedTime


class PhaseSpan(Protocol):
    """A context manager during which one phase is open."""

    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class TimeAccount(Protocol):
    """A ledger as the loops see it; `Ledger` keeps the account, `NullLedger` reads no clock."""

    def phase(self, phase: StrEnum) -> PhaseSpan:
        """Returns the span of a phase, for a `with` statement."""
        ...

    def close(self) -> None:
        """Ends the iteration; the next one starts at the same nanosecond."""
        ...

    def end_warmup(self) -> None:
        """Puts the time until now into the warm-up bucket; the account starts here."""
        ...

    def account(self) -> Account | None:
        """Returns the cumulative account up to now; None when timing is off."""
        ...

    def mark(self, mark: Mark, value: int) -> None:
        """Writes an instant into the trace, if there is one."""
        ...

    def tag(self, phase: StrEnum) -> None:
        """Adds the time of `phase` in this iteration to the tagged time; always the same phase."""
        ...

    def move(self, source: StrEnum, target: StrEnum, ns: int) -> None:
        """Moves time of this iteration from one phase, which may be open, to another, whose work it was spent on."""
        ...


class _Span:
    """A reusable object per phase, so that a phase costs two clock readings and no allocation."""

    __slots__ = ("_index", "_is_open", "_ledger", "_outer")

    def __init__(self, ledger: Ledger, index: int) -> None:
        self._ledger, self._index, self._outer, self._is_open = ledger, index, 0, False

    def __enter__(self) -> None:
        if self._is_open:
            raise RuntimeError(f"phase {self._ledger.names[self._index]} opened inside itself")
        self._is_open = True
        self._outer = self._ledger.switch(self._index)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        self._ledger.switch(self._outer)


class Ledger:
    """The account of one thread over the phases of one enum, which must contain `other`.

    With a `trace` (see `trace_names`) every phase but `other` is written into it when it closes. Without a histogram an
    account takes a microsecond or two, for threads that are asked for one in every iteration.
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
        self._now_ns = (clock or MonotonicClock()).now_ns
        self._trace, self._has_histogram = trace, has_histogram
        self.names = tuple(str(phase) for phase in phases)
        self._spans = {phase: _Span(self, index) for index, phase in enumerate(phases)}
        self._phases_ns = [0] * len(self.names)
        self._histogram = HistogramRecorder(len(self.names))
        self._tagged = TaggedTime()
        self._open = self._other = self.names.index("other")
        self._born_ns = self._now_ns() if opened_ns is None else opened_ns
        self._start_ns = self._last_ns = self._born_ns
        self._iterations = 0
        self._is_warm = False

    def phase(self, phase: StrEnum) -> PhaseSpan:
        """Returns the span of a phase, for a `with` statement."""
        return self._spans[phase]

    def switch(self, index: int) -> int:
        """Closes the open phase, opens another at the same instant, and returns the index of the closed one."""
        now_ns = self._now_ns()
        closed = self._open
        self._phases_ns[closed] += now_ns - self._last_ns
        if self._trace is not None and closed != self._other:
            self._trace.span(closed, self._last_ns, now_ns)
        self._last_ns, self._open = now_ns, index
        return closed

    def close(self) -> None:
        """Ends the iteration; the next one starts at the same nanosecond."""
        self.switch(self._open)
        self._iterations += 1
        self._histogram.add(self._phases_ns)
        if self._trace is not None:
            self._trace.mark(Mark.ITERATION, self._last_ns, self._iterations)

    def end_warmup(self) -> None:
        """Puts the time until now into the warm-up bucket; the account starts here. Only the first call counts."""
        if not self._is_warm:
            self._start_here()
            self._is_warm = True

    def _start_here(self) -> None:
        self.switch(self._open)
        self._start_ns = self._last_ns
        self._phases_ns = [0] * len(self.names)
        self._histogram = HistogramRecorder(len(self.names))
        self._tagged = TaggedTime()
        self._iterations = 0

    def account(self) -> Account:
        """Returns the account up to now; `sum(phases_ns.values()) == wall_ns`. All time is warm-up until that ends."""
        if self._is_warm:
            self.switch(self._open)
        else:
            self._start_here()
        return Account(
            wall_ns=self._last_ns - self._start_ns,
            warmup_ns=self._start_ns - self._born_ns,
            iterations=self._iterations,
            phases_ns=dict(zip(self.names, self._phases_ns, strict=True)),
            cpu_ns=cpu_ns(),
            scheduler=scheduler_stats(),
            tagged=self._tagged,
            histogram=self._histogram.counts() if self._has_histogram else None,
        )

    def tag(self, phase: StrEnum) -> None:
        """Adds the time of `phase` in this iteration to the tagged time; always the same phase."""
        row = self.names.index(phase)
        taken_ns = self._phases_ns[row] - self._histogram.last_ns(row)
        self._tagged = TaggedTime(self._tagged.iterations + 1, self._tagged.ns + taken_ns)

    def move(self, source: StrEnum, target: StrEnum, ns: int) -> None:
        """Moves time of this iteration from one phase to another; the trace keeps what was open when."""
        self._phases_ns[self.names.index(source)] -= ns
        self._phases_ns[self.names.index(target)] += ns

    def mark(self, mark: Mark, value: int) -> None:
        """Writes an instant into the trace, if there is one."""
        if self._trace is not None:
            self._trace.mark(mark, self._now_ns(), value)


def trace_names(phases: type[StrEnum]) -> tuple[str, ...]:
    """The names of the records of a ledger's trace: its phases, in their order, and the marks."""
    return (*map(str, phases), *Mark)


class _NullSpan:
    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class NullLedger:
    """The ledger of a run without timing: no clock reading, no allocation, no account."""

    _span = _NullSpan()

    def phase(self, phase: StrEnum) -> PhaseSpan:
        """Returns a span that does nothing."""
        return self._span

    def close(self) -> None:
        """Does nothing."""

    def end_warmup(self) -> None:
        """Does nothing."""

    def account(self) -> None:
        """Returns None."""
        return

    def mark(self, mark: Mark, value: int) -> None:
        """Does nothing."""

    def tag(self, phase: StrEnum) -> None:
        """Does nothing."""

    def move(self, source: StrEnum, target: StrEnum, ns: int) -> None:
        """Does nothing."""


def make_ledger(
    phases: type[StrEnum],
    *,
    is_enabled: bool,
    opened_ns: int | None = None,
    trace: TraceTrack | None = None,
    has_histogram: bool = True,
) -> TimeAccount:
    """Returns a ledger on the machine's clock, or the null object."""
    return Ledger(phases, None, opened_ns, trace, has_histogram=has_histogram) if is_enabled else NullLedger()
