"""Waiting for a device, and the time of what it was given: the only module that synchronises one.

Pairs of events are put into the device's streams and read once both were reached. Nothing waits for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from offpolicy.timing.clock import Clock, MonotonicClock
from offpolicy.timing.phases import DeviceSpan
from offpolicy.timing.trace_writer import TraceLane

if TYPE_CHECKING:
    import torch

DEVICE_SPANS = tuple(DeviceSpan)
ANCHOR_NS = 1_000_000_000
NUM_PAIRS = 64  # spans of one kind that may be pending: those of an iteration, and copies


class DeviceFence:
    """Wait for the work queued on a device's current stream.

    The loop waits inside `train` exactly when the next phase (publishing the weights) would have to wait anyway, so the
    time lands on the phase that caused it and no synchronisation is added. On the CPU there is nothing to wait for.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def wait(self) -> None:
        """Return when the device has finished what was queued so far."""
        if self._device.type == "cuda":
            import torch  # noqa: PLC0415  # torch-free processes import this package too

            torch.cuda.current_stream(self._device).synchronize()


class DeviceEvent(Protocol):
    """A point in a device's work; `torch.cuda.Event(enable_timing=True)` is one."""

    def record(self) -> None:
        """Put it into the current stream."""
        ...

    def query(self) -> bool:
        """Whether it was reached; does not wait."""
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
        """Put it into the current stream."""
        self._event.record(self._stream())

    def query(self) -> bool:
        """Whether it was reached."""
        return bool(self._event.query())  # type: ignore[no-untyped-call]  # as above

    def elapsed_time(self, end_event: CudaEvent) -> float:
        """Milliseconds from here to `end_event`."""
        return float(self._event.elapsed_time(end_event._event))


class Pair(NamedTuple):
    """Where a span starts and stops."""

    start: DeviceEvent
    stop: DeviceEvent


class DeviceTrace:
    """Writes a device's spans into a trace, on the machine's clock.

    Their place is the time from an event that was recorded when the stream had nothing to do: it was reached at once,
    when the clock was read. The two clocks drift, so there is a new one every second.
    """

    def __init__(self, lane: TraceLane, new_event: Callable[[], DeviceEvent], clock: Clock | None = None) -> None:
        self._lane, self._new_event, self._now_ns = lane, new_event, (clock or MonotonicClock()).now_ns
        self._anchor: DeviceEvent | None = None
        self._anchored_ns = 0

    def idle(self) -> None:
        """The thread has just waited for its stream, and has given it nothing since."""
        now_ns = self._now_ns()
        if self._anchor is None or now_ns - self._anchored_ns > ANCHOR_NS:
            self._anchor, self._anchored_ns = self._new_event(), now_ns
            self._anchor.record()

    def write(self, span: DeviceSpan, pair: Pair) -> None:
        """A span that is over; left out before there is an anchor."""
        if self._anchor is not None:
            start_ns = self._anchored_ns + round(1e6 * self._anchor.elapsed_time(pair.start))
            stop_ns = start_ns + round(1e6 * pair.start.elapsed_time(pair.stop))
            self._lane.span(DEVICE_SPANS.index(span), start_ns, stop_ns)


class EventPool:
    """Adds up the device time of spans that one thread starts and stops; a span without a free pair is only counted."""

    def __init__(
        self, new_event: Callable[[], DeviceEvent], num_pairs: int = NUM_PAIRS, trace: DeviceTrace | None = None
    ) -> None:
        self._trace = trace
        self.totals_ns = dict.fromkeys(DeviceSpan, 0)
        self.num_dropped = 0
        self._new_event = new_event
        self._unmade = dict.fromkeys(DeviceSpan, num_pairs)
        self._free: dict[DeviceSpan, list[Pair]] = {span: [] for span in DeviceSpan}
        self._open: dict[DeviceSpan, Pair] = {}
        self._pending: list[tuple[DeviceSpan, Pair]] = []

    def start(self, span: DeviceSpan) -> None:
        """What is given to the current stream from now on belongs to the span."""
        pair = self._open.pop(span, None) or self._take(span)  # one still open was left by an exception
        if pair is None:
            self.num_dropped += 1
            return
        pair.start.record()
        self._open[span] = pair

    def stop(self, span: DeviceSpan) -> None:
        """The span ends with what the current stream was given so far."""
        pair = self._open.pop(span, None)
        if pair is not None:
            pair.stop.record()
            self._pending.append((span, pair))

    def resolve(self) -> None:
        """Add up the spans that are over; the others stay for the next time. Does not wait."""
        still_pending = []
        for span, pair in self._pending:
            if pair.stop.query():
                self.totals_ns[span] += round(1e6 * pair.start.elapsed_time(pair.stop))
                if self._trace is not None:
                    self._trace.write(span, pair)
                self._free[span].append(pair)
            else:
                still_pending.append((span, pair))
        self._pending = still_pending

    def idle(self) -> None:
        """The thread has just waited for its stream: read what is over."""
        self.resolve()
        if self._trace is not None:
            self._trace.idle()

    def _take(self, span: DeviceSpan) -> Pair | None:
        if not self._free[span] and self._unmade[span]:
            self._unmade[span] -= 1
            return Pair(self._new_event(), self._new_event())
        if not self._free[span]:
            self.resolve()
        return self._free[span].pop() if self._free[span] else None


class HeldCopies:
    """Copies that the learner's thread issues on a stream of their own and its work waits for: all exposed."""

    def __init__(self, pool: EventPool) -> None:
        self._pool = pool

    def start(self) -> None:
        """A copy begins."""
        self._pool.start(DeviceSpan.H2D)

    def stop(self) -> None:
        """It ends."""
        self._pool.stop(DeviceSpan.H2D)


class CopiesBeside:
    """Copies that another thread issues and waits for.

    The part of a copy during which the learner waited is exposed; the rest ran behind its work and is hidden.
    """

    def __init__(self, pool: EventPool, clock: Clock) -> None:
        self._pool, self._now_ns = pool, clock.now_ns
        self._begun_ns = 0
        self._waiting_since_ns: int | None = None
        self.divided_ns = (0, 0)  # exposed and hidden; one store, so that another thread reads both of one instant

    @property
    def num_dropped(self) -> int:
        """Copies that were not timed."""
        return self._pool.num_dropped

    def start(self) -> None:
        """A copy begins."""
        self._begun_ns = self._now_ns()
        self._pool.start(DeviceSpan.H2D_HIDDEN)

    def stop(self) -> None:
        """It ends."""
        self._pool.stop(DeviceSpan.H2D_HIDDEN)

    def settle(self) -> None:
        """Divide the copies that are over by how long the learner waited meanwhile."""
        now_ns, since_ns = self._now_ns(), self._waiting_since_ns
        waited_ns = 0 if since_ns is None else now_ns - since_ns
        share = min(1.0, waited_ns / max(1, now_ns - self._begun_ns))
        self._pool.idle()
        exposed_ns, hidden_ns = self.divided_ns
        new_ns = self._pool.totals_ns[DeviceSpan.H2D_HIDDEN] - exposed_ns - hidden_ns
        newly_exposed_ns = round(share * new_ns)
        self.divided_ns = (exposed_ns + newly_exposed_ns, hidden_ns + new_ns - newly_exposed_ns)

    @contextmanager
    def learner_waiting(self) -> Iterator[None]:
        """Note since when the learner waits."""
        self._waiting_since_ns = self._now_ns()
        try:
            yield
        finally:
            self._waiting_since_ns = None
