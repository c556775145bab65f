"""The account of one process's wall time: it closes, by construction, in integer nanoseconds.

Exactly one phase is open at any instant, `other` by default. Switching closes one phase and opens the next at the
same clock reading, so no nanosecond is counted twice and none is lost: `sum(phases) == wall`. Entering a phase inside
another (`param_sync` inside `train`) takes its time out of the outer one. An exception keeps its interval. One ledger
belongs to one thread.
"""

from __future__ import annotations

from enum import StrEnum
from types import TracebackType
from typing import Protocol

from offpolicy.timing.clock import Clock, MonotonicClock, cpu_ns, thread_load
from offpolicy.timing.histogram import SpreadRecorder
from offpolicy.timing.trace_writer import Mark, TraceLane
from offpolicy.types import Account, TaggedTime


class PhaseSpan(Protocol):
    """A context manager during which one phase is open."""

    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class TimeAccount(Protocol):
    """What loops need of a ledger; `Ledger` keeps the account, `NullLedger` reads no clock."""

    def phase(self, phase: StrEnum) -> PhaseSpan:
        """The span of a phase, for a `with` statement."""
        ...

    def close(self) -> None:
        """End the iteration here; the next one starts at the same nanosecond."""
        ...

    def end_warmup(self) -> None:
        """Put everything so far into the warm-up bucket; the account starts here."""
        ...

    def account(self) -> Account | None:
        """The cumulative account up to now; None when timing is off."""
        ...

    def mark(self, mark: Mark, value: int) -> None:
        """Note an instant in the trace, if there is one."""
        ...

    def set_apart(self, phase: StrEnum) -> None:
        """Count what `phase` took in this iteration as of a special kind, too; always the same phase."""
        ...


class _Span:
    """Reusable: one object per phase, made once, so that a phase costs two clock readings and no allocation."""

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

    With a `trace` (see `trace_names`) every phase but `other` is written down when it closes. Without `has_spread` its
    account is made in a microsecond or two, for threads that are asked in every iteration.
    """

    def __init__(
        self,
        phases: type[StrEnum],
        clock: Clock | None = None,
        opened_ns: int | None = None,
        trace: TraceLane | None = None,
        *,
        has_spread: bool = True,
    ) -> None:
        self._now_ns = (clock or MonotonicClock()).now_ns
        self._trace, self._has_spread = trace, has_spread
        self.names = tuple(str(phase) for phase in phases)
        self._spans = {phase: _Span(self, index) for index, phase in enumerate(phases)}
        self._phases_ns = [0] * len(self.names)
        self._spread = SpreadRecorder(len(self.names))
        self._apart = TaggedTime()
        self._open = self._other = self.names.index("other")
        self._born_ns = self._now_ns() if opened_ns is None else opened_ns
        self._start_ns = self._last_ns = self._born_ns
        self._iterations = 0
        self._is_warm = False

    def phase(self, phase: StrEnum) -> PhaseSpan:
        """The span of a phase, for a `with` statement."""
        return self._spans[phase]

    def switch(self, index: int) -> int:
        """Close the open phase, open another at the same instant, and return the index of the one closed."""
        now_ns = self._now_ns()
        closed = self._open
        self._phases_ns[closed] += now_ns - self._last_ns
        if self._trace is not None and closed != self._other:
            self._trace.span(closed, self._last_ns, now_ns)
        self._last_ns, self._open = now_ns, index
        return closed

    def close(self) -> None:
        """End the iteration here; the next one starts at the same nanosecond."""
        self.switch(self._open)
        self._iterations += 1
        self._spread.add(self._phases_ns)
        if self._trace is not None:
            self._trace.mark(Mark.ITERATION, self._last_ns, self._iterations)

    def end_warmup(self) -> None:
        """Put everything so far into the warm-up bucket; the account starts here. Only the first call counts."""
        if not self._is_warm:
            self._start_here()
            self._is_warm = True

    def _start_here(self) -> None:
        self.switch(self._open)
        self._start_ns = self._last_ns
        self._phases_ns = [0] * len(self.names)
        self._spread = SpreadRecorder(len(self.names))
        self._apart = TaggedTime()
        self._iterations = 0

    def account(self) -> Account:
        """The cumulative account up to now; `sum(phases_ns.values()) == wall_ns`. All is warm-up until that ends."""
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
            load=thread_load(),
            apart=self._apart,
            spread=self._spread.counts() if self._has_spread else None,
        )

    def set_apart(self, phase: StrEnum) -> None:
        """Count what `phase` took in this iteration as of a special kind, too; always the same phase."""
        row = self.names.index(phase)
        taken_ns = self._phases_ns[row] - self._spread.last_ns(row)
        self._apart = TaggedTime(self._apart.iterations + 1, self._apart.ns + taken_ns)

    def mark(self, mark: Mark, value: int) -> None:
        """Note an instant in the trace, if there is one."""
        if self._trace is not None:
            self._trace.mark(mark, self._now_ns(), value)


def trace_names(phases: type[StrEnum]) -> tuple[str, ...]:
    """What the records of a ledger's trace may be called: its phases, in their order, and the marks."""
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
    """Timing switched off: no clock reading, no allocation, no account."""

    _span = _NullSpan()

    def phase(self, phase: StrEnum) -> PhaseSpan:
        """A span that does nothing."""
        return self._span

    def close(self) -> None:
        """Do nothing."""

    def end_warmup(self) -> None:
        """Do nothing."""

    def account(self) -> None:
        """There is none."""
        return

    def mark(self, mark: Mark, value: int) -> None:
        """Do nothing."""

    def set_apart(self, phase: StrEnum) -> None:
        """Do nothing."""


def make_ledger(
    phases: type[StrEnum],
    *,
    is_enabled: bool,
    opened_ns: int | None = None,
    trace: TraceLane | None = None,
    has_spread: bool = True,
) -> TimeAccount:
    """A ledger on the machine's clock, or the null object."""
    return Ledger(phases, None, opened_ns, trace, has_spread=has_spread) if is_enabled else NullLedger()
