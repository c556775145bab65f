"""Device time from pairs of events: spans of work on a stream, added up, and drawn where they were.

Events are put into the streams together with the work, and read once they were reached. Nothing here waits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from offpolicy.timing.clock import Clock
from offpolicy.timing.phases import DeviceSpan
from offpolicy.timing.trace_writer import TraceTrack

if TYPE_CHECKING:
    import torch

DEVICE_SPANS = tuple(DeviceSpan)
ANCHOR_NS = 1_000_000_000  # age at which a trace's anchor is replaced
NUM_PAIRS = 256  # pairs of events per kind of span: those of an iteration, and copies; made when they are needed


class DeviceEvent(Protocol):
    """A point in a device's work; `torch.cuda.Event(enable_timing=True)` is one."""

    def record(self) -> None:
        """Puts the event into the current stream."""
        ...

    def query(self) -> bool:
        """True if the event was reached; does not wait."""
        ...

    def elapsed_time(self, end_event: Self) -> float:
        """Milliseconds from here to `end_event`; both were reached."""
        ...


class CudaEvent:
    """A `DeviceEvent` of the current stream of `device`, which need not be the current device."""

    def __init__(self, device: torch.device) -> None:
        import torch  # noqa: PLC0415  # torch-free processes import this package too

        self._stream = functools.partial(torch.cuda.current_stream, device)
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has no types there

    def record(self) -> None:
        """Puts the event into the current stream."""
        self._event.record(self._stream())

    def query(self) -> bool:
        """True if the event was reached."""
        return bool(self._event.query())  # type: ignore[no-untyped-call]  # as above

    def elapsed_time(self, end_event: CudaEvent) -> float:
        """Milliseconds from here to `end_event`."""
        return float(self._event.elapsed_time(end_event._event))


class Pair(NamedTuple):
    """The events between which a span lies."""

    start: DeviceEvent
    stop: DeviceEvent

    @property
    def ns(self) -> int:
        """The length of a span that is over."""
        return elapsed_ns(self.start, self.stop)


class Pending(NamedTuple):
    """A span that was not over when it was last looked at."""

    span: DeviceSpan
    pair: Pair
    queued_ns: int  # when the host had queued all of it


def elapsed_ns(start: DeviceEvent, stop: DeviceEvent) -> int:
    """Returns the time between two events that were reached."""
    return round(1e6 * start.elapsed_time(stop))


class DeviceTrace:
    """Writes a device's spans into a trace, on the machine's clock.

    Their place is the time from an event that was recorded when the stream had nothing to do: it was reached at once,
    when the clock was read, right after recording it. The two clocks drift, so there is a new one every second.
    """

    def __init__(self, track: TraceTrack, new_event: Callable[[], DeviceEvent], clock: Clock) -> None:
        self._track, self._new_event, self._now_ns = track, new_event, clock.now_ns
        self._anchor: DeviceEvent | None = None
        self._anchored_ns = 0

    def renew_anchor(self) -> None:
        """Called when the thread has just waited for its current stream, and has given it nothing since."""
        if self._anchor is None or self._now_ns() - self._anchored_ns > ANCHOR_NS:
            self._anchor = self._new_event()
            self._anchor.record()
            self._anchored_ns = self._now_ns()

    def write(self, span: DeviceSpan, pair: Pair) -> None:
        """Writes a span that is over; it is left out before an anchor was reached."""
        if self._anchor is not None and self._anchor.query():
            start_ns = self._anchored_ns + elapsed_ns(self._anchor, pair.start)
            self._track.span(DEVICE_SPANS.index(span), start_ns, start_ns + pair.ns)


class EventPool:
    """Adds up the device time of spans that one thread starts and stops; a span without a free pair is only counted."""

    def __init__(
        self,
        new_event: Callable[[], DeviceEvent],
        clock: Clock,
        num_pairs: int = NUM_PAIRS,
        trace: DeviceTrace | None = None,
    ) -> None:
        self._trace, self._new_event, self._now_ns = trace, new_event, clock.now_ns
        self.totals_ns = dict.fromkeys(DeviceSpan, 0)
        self.num_dropped = 0
        self._num_unmade = dict.fromkeys(DeviceSpan, num_pairs)
        self._free: dict[DeviceSpan, list[Pair]] = {span: [] for span in DeviceSpan}
        self._open: dict[DeviceSpan, Pair] = {}
        self._pending: list[Pending] = []

    def start(self, span: DeviceSpan) -> None:
        """Starts a span with what the current stream is given next."""
        pair = self._open.pop(span, None) or self._take(span)  # one still open was left by an exception
        if pair is None:
            self.num_dropped += 1
            return
        pair.start.record()
        self._open[span] = pair

    def stop(self, span: DeviceSpan) -> None:
        """Ends a span with what the current stream was given last."""
        pair = self._open.pop(span, None)
        if pair is not None:
            pair.stop.record()
            self._pending.append(Pending(span, pair, self._now_ns()))

    def is_open(self, span: DeviceSpan) -> bool:
        """True if a span was started and not ended yet."""
        return span in self._open

    def ended(self, span: DeviceSpan) -> list[Pending]:
        """Returns the spans of a kind that are over and not added up yet, oldest first."""
        return [each for each in self._pending if each.span == span and each.pair.stop.query()]

    def resolve(self) -> None:
        """Adds up the spans that are over; the others stay pending. Does not wait."""
        still_pending = []
        for pending in self._pending:
            span, pair, _ = pending
            if pair.stop.query():
                self.totals_ns[span] += pair.ns
                if self._trace is not None:
                    self._trace.write(span, pair)
                self._free[span].append(pair)
            else:
                still_pending.append(pending)
        self._pending = still_pending

    def resolve_idle(self) -> None:
        """As `resolve`, for a thread that has just waited for its stream."""
        self.resolve()
        if self._trace is not None:
            self._trace.renew_anchor()

    def _take(self, span: DeviceSpan) -> Pair | None:
        if not self._free[span] and self._num_unmade[span]:
            self._num_unmade[span] -= 1
            return Pair(self._new_event(), self._new_event())
        if not self._free[span]:
            self.resolve()
        return self._free[span].pop() if self._free[span] else None


class TimedSpan:
    """A reusable context manager: times what the current stream is given inside it."""

    def __init__(self, pool: EventPool, span: DeviceSpan) -> None:
        self._pool, self._span = pool, span

    def __enter__(self) -> None:
        self._pool.start(self._span)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._pool.stop(self._span)


class Pause:
    """A reusable context manager: what the current stream is given inside it does not count to a span that is open."""

    def __init__(self, pool: EventPool, span: DeviceSpan) -> None:
        self._pool, self._span = pool, span
        self._was_open = False

    def __enter__(self) -> None:
        self._was_open = self._pool.is_open(self._span)
        self._pool.stop(self._span)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._was_open and kind is None:
            self._pool.start(self._span)
