"""Waiting for a device, and the time of the work it was given: the only module that synchronises one.

Device time passes beside the learner's phases on the host and is never added to them. Pairs of events are put into the
device's streams, and read once both were reached, after the wait that ends `train` and that the loop needs anyway.
Timing adds no wait.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from offpolicy.protocols import DeviceSync
from offpolicy.timing.clock import Clock, MonotonicClock
from offpolicy.timing.phases import DeviceSpan
from offpolicy.timing.trace_writer import TraceTrack
from offpolicy.types import DeviceTotals

if TYPE_CHECKING:
    import torch

DEVICE_SPANS = tuple(DeviceSpan)
ANCHOR_NS = 1_000_000_000  # age at which a trace's anchor is replaced
NUM_PAIRS = 64  # pairs of events per kind of span: those of an iteration, and copies
CAUGHT_UP_NS = 100_000  # longest wait for the last few kernels, and for waking up after them
UNTIMED = nullcontext()


class StreamSync:
    """Waits for the work queued on a device's current stream; on the CPU there is nothing to wait for.

    The loop waits inside `train` exactly when the next phase (publishing the weights) would have to wait anyway, so the
    time lands on the phase that caused it and no synchronisation is added.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def wait(self) -> None:
        """Returns when the device has finished the work queued so far."""
        if self._device.type == "cuda":
            import torch  # noqa: PLC0415  # torch-free processes import this package too

            torch.cuda.current_stream(self._device).synchronize()


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
        return round(1e6 * self.start.elapsed_time(self.stop))


class DeviceTrace:
    """Writes a device's spans into a trace, on the machine's clock.

    Their place is the time from an event that was recorded when the stream had nothing to do: it was reached at once,
    when the clock was read. The two clocks drift, so there is a new one every second.
    """

    def __init__(self, track: TraceTrack, new_event: Callable[[], DeviceEvent], clock: Clock) -> None:
        self._track, self._new_event, self._now_ns = track, new_event, clock.now_ns
        self._anchor: DeviceEvent | None = None
        self._anchored_ns = 0

    def renew_anchor(self) -> None:
        """Called when the thread has just waited for its stream, and has given it nothing since."""
        now_ns = self._now_ns()
        if self._anchor is None or now_ns - self._anchored_ns > ANCHOR_NS:
            self._anchor, self._anchored_ns = self._new_event(), now_ns
            self._anchor.record()

    def write(self, span: DeviceSpan, pair: Pair) -> None:
        """Writes a span that is over; it is left out before there is an anchor."""
        if self._anchor is not None:
            start_ns = self._anchored_ns + round(1e6 * self._anchor.elapsed_time(pair.start))
            stop_ns = start_ns + pair.ns
            self._track.span(DEVICE_SPANS.index(span), start_ns, stop_ns)


class EventPool:
    """Adds up the device time of spans that one thread starts and stops; a span without a free pair is only counted."""

    def __init__(
        self, new_event: Callable[[], DeviceEvent], num_pairs: int = NUM_PAIRS, trace: DeviceTrace | None = None
    ) -> None:
        self._trace, self._new_event = trace, new_event
        self.totals_ns = dict.fromkeys(DeviceSpan, 0)
        self.num_dropped = 0
        self._num_unmade = dict.fromkeys(DeviceSpan, num_pairs)
        self._free: dict[DeviceSpan, list[Pair]] = {span: [] for span in DeviceSpan}
        self._open: dict[DeviceSpan, Pair] = {}
        self._pending: list[tuple[DeviceSpan, Pair]] = []

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
            self._pending.append((span, pair))

    def resolve(self) -> None:
        """Adds up the spans that are over; the others stay pending. Does not wait."""
        still_pending = []
        for span, pair in self._pending:
            if pair.stop.query():
                self.totals_ns[span] += pair.ns
                if self._trace is not None:
                    self._trace.write(span, pair)
                self._free[span].append(pair)
            else:
                still_pending.append((span, pair))
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


class BackgroundCopyTimer(TimedSpan):
    """Times copies that a thread beside the learner's issues, inside this context, and waits for.

    The part of a copy during which the learner waited is exposed; the rest ran behind its work and is hidden.
    """

    def __init__(self, pool: EventPool, clock: Clock) -> None:
        super().__init__(pool, DeviceSpan.H2D_HIDDEN)
        self._now_ns = clock.now_ns
        self._started_ns = 0
        self._waiting_since_ns: int | None = None
        self.split_ns = (0, 0)  # exposed and hidden; one store, so that another thread reads both of one instant

    @property
    def num_dropped(self) -> int:
        """Copies that were not timed."""
        return self._pool.num_dropped

    def __enter__(self) -> None:
        self._started_ns = self._now_ns()
        super().__enter__()

    def split_finished(self) -> None:
        """Splits the copies that the thread has just waited for by how long the learner waited meanwhile."""
        now_ns, since_ns = self._now_ns(), self._waiting_since_ns
        waited_ns = 0 if since_ns is None else now_ns - since_ns
        share = min(1.0, waited_ns / max(1, now_ns - self._started_ns))
        self._pool.resolve_idle()
        exposed_ns, hidden_ns = self.split_ns
        new_ns = self._pool.totals_ns[DeviceSpan.H2D_HIDDEN] - exposed_ns - hidden_ns
        newly_exposed_ns = round(share * new_ns)
        self.split_ns = (exposed_ns + newly_exposed_ns, hidden_ns + new_ns - newly_exposed_ns)

    @contextmanager
    def learner_waiting(self) -> Iterator[None]:
        """Entered by the learner's thread while it waits for what is copied."""
        self._waiting_since_ns = self._now_ns()
        try:
            yield
        finally:
            self._waiting_since_ns = None


class DeviceTraces(NamedTuple):
    """The trace tracks of a device: work on the learner's stream, and copies beside it."""

    stream: TraceTrack | None = None
    copies: TraceTrack | None = None


NO_TRACES = DeviceTraces()


class DeviceTimer:
    """The device time of one learner rank, called from the learner's thread.

    Without `new_event` (no device, or timing is off) it waits and does nothing else: no event, no clock reading.
    """

    def __init__(
        self,
        sync: DeviceSync,
        new_event: Callable[[], DeviceEvent] | None = None,
        clock: Clock | None = None,
        traces: DeviceTraces = NO_TRACES,
    ) -> None:
        self._sync, self._new_event, self._clock, self._traces = sync, new_event, clock or MonotonicClock(), traces
        self._pool = self._new_pool(traces.stream)
        self._spans = {} if self._pool is None else {span: TimedSpan(self._pool, span) for span in DeviceSpan}
        self._background: list[BackgroundCopyTimer] = []
        self._iterations = self._launch_bound = 0

    def _new_pool(self, track: TraceTrack | None) -> EventPool | None:
        if self._new_event is None:
            return None
        trace = None if track is None else DeviceTrace(track, self._new_event, self._clock)
        return EventPool(self._new_event, trace=trace)

    def span(self, span: DeviceSpan) -> AbstractContextManager[None]:
        """A reusable context manager that times what the current stream is given inside it."""
        return self._spans.get(span, UNTIMED)

    def wait(self) -> None:
        """Waits for the device, notes whether there was anything to wait for, and adds up the spans that are over.

        A device that has nothing left to do when the host has queued everything was waiting for the host.
        """
        if self._pool is None:
            self._sync.wait()
            return
        start_ns = self._clock.now_ns()
        self._sync.wait()
        self._iterations += 1
        self._launch_bound += self._clock.now_ns() - start_ns < CAUGHT_UP_NS
        self._pool.resolve_idle()

    def background_copies(self) -> BackgroundCopyTimer | None:
        """A timer of copies that another thread issues; None where nothing is timed."""
        pool = self._new_pool(self._traces.copies)
        if pool is None:
            return None
        self._background.append(BackgroundCopyTimer(pool, self._clock))
        return self._background[-1]

    def totals(self) -> DeviceTotals | None:
        """The cumulative times and counts; None where nothing is timed."""
        if self._pool is None:
            return None
        spans_ns, splits_ns = self._pool.totals_ns, [copies.split_ns for copies in self._background]
        return DeviceTotals(
            train_ns=spans_ns[DeviceSpan.TRAIN],
            h2d_ns=spans_ns[DeviceSpan.H2D] + sum(exposed_ns for exposed_ns, _ in splits_ns),
            h2d_hidden_ns=sum(hidden_ns for _, hidden_ns in splits_ns),
            inference_ns=spans_ns[DeviceSpan.INFERENCE],
            iterations=self._iterations,
            launch_bound=self._launch_bound,
            dropped=self._pool.num_dropped + sum(copies.num_dropped for copies in self._background),
        )


def make_device_timer(
    device: torch.device, *, is_enabled: bool, traces: Callable[[], DeviceTraces] = lambda: NO_TRACES
) -> DeviceTimer:
    """The timer of a rank's device, which opens traces only where there is something to time."""
    if not is_enabled or device.type != "cuda":
        return DeviceTimer(StreamSync(device))
    return DeviceTimer(StreamSync(device), lambda: CudaEvent(device), traces=traces())
