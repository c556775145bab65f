"""The account of a thread's time as the loops see it, and the one of a run without timing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from types import TracebackType
from typing import Protocol

from offpolicy.timing.trace_writer import Mark
from offpolicy.types import Account


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

    def begin_cooldown(self) -> None:
        """Sets what came after the last iteration apart, within the account."""
        ...

    def account(self) -> Account | None:
        """Returns the cumulative account up to now; None when timing is off."""
        ...

    def skip(self, phases: Iterable[StrEnum]) -> None:
        """Opens these phases no more: their part does nothing."""
        ...

    def mark(self, mark: Mark, value: int) -> None:
        """Writes an instant into the trace, if there is one."""
        ...

    def tag(self, phase: StrEnum, weight: int) -> None:
        """Adds the time of `phase` in this iteration to the tagged time; always the same phase."""
        ...

    def move(self, source: StrEnum, target: StrEnum, ns: int) -> None:
        """Moves time of this iteration from one phase, which may be open, to another, whose work it was spent on."""
        ...

    @property
    def is_in_iteration(self) -> bool:
        """True if the account has time of an iteration that has not ended: not in the warm-up or the cooldown."""
        ...

    @property
    def switched_ns(self) -> int:
        """The instant at which the open phase was opened, or read last; 0 when timing is off."""
        ...

    def total_ns(self, phases: Sequence[StrEnum]) -> int:
        """Returns the time of closed phases since the warm-up; 0 when timing is off."""
        ...

    def trace_when_split(self, phase: StrEnum) -> None:
        """Leaves the spans of `phase` out of the trace until `split` writes them."""
        ...

    def insert(self, phase: StrEnum, took_ns: int) -> tuple[int, int]:
        """Charges the last `took_ns` of the open phase to `phase` instead; returns their start and stop."""
        ...

    def split(self, phase: StrEnum, head: StrEnum, start_ns: int, stop_ns: int, head_ns: int) -> None:
        """Charges the first `head_ns` of a span of `phase` from `start_ns` to `stop_ns` to the phase `head` instead.

        The span lies in this iteration or in the last one that ended.
        """
        ...


class _NullSpan:
    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


NULL_SPAN = _NullSpan()


class NullLedger:
    """The ledger of a run without timing: no clock reading, no allocation, no account."""

    switched_ns = 0
    is_in_iteration = False

    def phase(self, phase: StrEnum) -> PhaseSpan:
        """Returns a span that does nothing."""
        return NULL_SPAN

    def skip(self, phases: Iterable[StrEnum]) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def end_warmup(self) -> None:
        """Does nothing."""

    def begin_cooldown(self) -> None:
        """Does nothing."""

    def account(self) -> None:
        """Returns None."""
        return

    def mark(self, mark: Mark, value: int) -> None:
        """Does nothing."""

    def tag(self, phase: StrEnum, weight: int) -> None:
        """Does nothing."""

    def total_ns(self, phases: Sequence[StrEnum]) -> int:
        """Returns 0."""
        return 0

    def trace_when_split(self, phase: StrEnum) -> None:
        """Does nothing."""

    def insert(self, phase: StrEnum, took_ns: int) -> tuple[int, int]:
        """Returns zeros."""
        return 0, 0

    def split(self, phase: StrEnum, head: StrEnum, start_ns: int, stop_ns: int, head_ns: int) -> None:
        """Does nothing."""

    def move(self, source: StrEnum, target: StrEnum, ns: int) -> None:
        """Does nothing."""
