"""Waiting for a device, and the time of the work it was given: the only module that synchronises one.

Device time passes beside the learner's phases and is never added to them. Pairs of events are put into the streams
together with the work, and read after the wait that ends `train` and that the loop needs anyway: timing adds no wait.
A part of that wait may belong to the phases before `train`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from operator import sub
from types import TracebackType
from typing import TYPE_CHECKING

from offpolicy.protocols import DeviceSync
from offpolicy.timing.clock import Clock, MonotonicClock
from offpolicy.timing.ledger import NULL_SPAN, Ledger
from offpolicy.timing.phases import DeviceSpan, LearnerPhase
from offpolicy.timing.trace_writer import TraceTrack
from offpolicy.types import DeviceTotals

if TYPE_CHECKING:
    import torch

ANCHOR_NS = 1_000_000_000  # age at which a trace's anchor is replaced
CAUGHT_UP_NS = 100_000  # longest time for the last few kernels, and for waking up after them
NUM_PAIRS = 256  # pairs of events per kind of span: those of an iteration, and copies; made when they are needed
# Work in front of an update that the host only queues: the phase whose time it is, if the host waits for it.
QUEUED_BEFORE_TRAIN = {
    DeviceSpan.COLLECT: LearnerPhase.COLLECT,
    DeviceSpan.SAMPLE: LearnerPhase.REPLAY_SAMPLE,
    DeviceSpan.H2D: LearnerPhase.H2D,
}


class StreamSync:
    """Waits for the work queued on a device's current stream; on the CPU there is nothing to wait for.

    With `yields_core` the one thread that uses it sleeps, where CUDA would spin, and wakes up some 20 us later.
    """

    def __init__(self, device: torch.device, *, yields_core: bool = False) -> None:
        self.device, self._yields_core = device, yields_core
        self._end: torch.cuda.Event | None = None

    def wait(self) -> None:
        """Returns when the device has finished the work queued so far."""
        if self.device.type != "cuda":
            return
        import torch  # noqa: PLC0415  # torch-free processes import this package too

        stream = torch.cuda.current_stream(self.device)
        if not self._yields_core:
            stream.synchronize()
            return
        self._end = self._end or torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch has none
        self._end.record(stream)
        self._end.synchronize()


class CudaEvent:
    """A point in the work of the current stream of `device`, which need not be the current device."""

    def __init__(self, device: torch.device) -> None:
        import torch  # noqa: PLC0415  # torch-free processes import this package too

        self._device, self._current_stream = device, torch.cuda.current_stream
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has no types there

    def record(self) -> None:
        """Puts the event into the current stream."""
        self._event.record(self._current_stream(self._device))

    def query(self) -> bool:
        """True if the event was reached; does not wait."""
        return bool(self._event.query())  # type: ignore[no-untyped-call]  # as above

    def elapsed_time(self, end_event: CudaEvent) -> float:
        """Milliseconds from here to `end_event`; both were reached."""
        return float(self._event.elapsed_time(end_event._event))


def elapsed_ns(start: CudaEvent, stop: CudaEvent) -> int:
    """Returns the time between two events that were reached."""
    return round(1e6 * start.elapsed_time(stop))


@dataclass(slots=True)
class Interval:
    """The events between which a span lies, used again once it is over and added up."""

    span: DeviceSpan
    start: CudaEvent
    stop: CudaEvent
    queued_ns: int = 0  # when the host had queued all of it

    @property
    def ns(self) -> int:
        """The length of a span that is over."""
        return elapsed_ns(self.start, self.stop)


class EventPool:
    """Adds up the device time of spans that one thread starts and stops; a span without a free pair is only counted.

    With a `track` they are drawn on the machine's clock: by the time from an event that was recorded, and the clock
    read, when the stream had nothing to do. The two clocks drift, so there is a new one every second.
    """

    def __init__(self, new_event: Callable[[], CudaEvent], clock: Clock, track: TraceTrack | None = None) -> None:
        self._new_event, self._now_ns, self._track = new_event, clock.now_ns, track
        self.totals_ns = dict.fromkeys(DeviceSpan, 0)
        self.num_dropped = 0
        self._num_unmade = dict.fromkeys(DeviceSpan, NUM_PAIRS)
        self._free: dict[DeviceSpan, list[Interval]] = {span: [] for span in DeviceSpan}
        self._open: dict[DeviceSpan, Interval] = {}
        self._pending: list[Interval] = []  # not over when they were last looked at
        self._anchor: CudaEvent | None = None
        self._anchored_ns = 0

    def start(self, span: DeviceSpan) -> None:
        """Starts a span with what the current stream is given next."""
        free = self._free[span]
        if not free and self._num_unmade[span]:
            self._num_unmade[span] -= 1
            free.append(Interval(span, self._new_event(), self._new_event()))
        elif not free:
            self.resolve()
        interval = self._open.pop(span, None) or (free.pop() if free else None)  # one still open: left by an exception
        if interval is None:
            self.num_dropped += 1
            return
        interval.start.record()
        self._open[span] = interval

    def stop(self, span: DeviceSpan) -> bool:
        """Ends a span with what the current stream was given last; False without a start."""
        interval = self._open.pop(span, None)
        if interval is None:
            return False
        interval.stop.record()
        interval.queued_ns = self._now_ns()
        self._pending.append(interval)
        return True

    def ended(self, span: DeviceSpan) -> list[Interval]:
        """Returns the spans of a kind that are over and not added up yet, oldest first."""
        return [each for each in self._pending if each.span == span and each.stop.query()]

    def resolve(self, *, is_idle: bool = False) -> None:
        """Adds up the spans that are over; the others stay pending. Does not wait.

        `is_idle`: the thread has just waited for its current stream, and has given it nothing since.
        """
        still_pending = []
        for each in self._pending:
            if not each.stop.query():
                still_pending.append(each)
                continue
            self.totals_ns[each.span] += each.ns
            if self._track is not None and self._anchor is not None and self._anchor.query():
                start_ns = self._anchored_ns + elapsed_ns(self._anchor, each.start)
                self._track.span(list(DeviceSpan).index(each.span), start_ns, start_ns + each.ns)
            self._free[each.span].append(each)
        self._pending = still_pending
        is_old = self._anchor is None or self._now_ns() - self._anchored_ns > ANCHOR_NS
        if is_idle and self._track is not None and is_old:
            self._anchor = self._new_event()
            self._anchor.record()
            self._anchored_ns = self._now_ns()


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
        self.pool, self._now_ns = pool, clock.now_ns
        self._started_ns = 0
        self._waiting_since_ns: int | None = None
        self.split_ns = (0, 0)  # exposed and hidden; one store, so that another thread reads both of one instant

    def __enter__(self) -> None:
        self._started_ns = self._now_ns()
        super().__enter__()

    def split_finished(self) -> None:
        """Splits the copies that the thread has just waited for by how long the learner waited meanwhile.

        The stream of the copies is the current one.
        """
        now_ns, since_ns = self._now_ns(), self._waiting_since_ns
        waited_ns = 0 if since_ns is None else now_ns - since_ns
        share = min(1.0, waited_ns / max(1, now_ns - self._started_ns))
        self.pool.resolve(is_idle=True)
        exposed_ns, hidden_ns = self.split_ns
        new_ns = self.pool.totals_ns[DeviceSpan.H2D_HIDDEN] - exposed_ns - hidden_ns
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


class DeviceTimer:
    """Waits for the device of a learner rank, and times nothing: on a CPU, and without timing."""

    def __init__(self, sync: DeviceSync) -> None:
        self._sync = sync

    def span(self, span: DeviceSpan) -> AbstractContextManager[None]:
        """A reusable context manager that times what the current stream is given inside it."""
        return NULL_SPAN

    def outside_train(self) -> AbstractContextManager[None]:
        """A context manager: what the current stream is given inside it is not work of the update."""
        return NULL_SPAN

    def wait(self) -> None:
        """Waits for the current stream: the `DeviceSync` of whatever waits on the learner's thread."""
        self._sync.wait()

    def end_update(self) -> None:
        """Waits for the device at the end of an iteration's updates."""
        self.wait()

    def background_copies(self) -> BackgroundCopyTimer | None:
        """A timer of copies that another thread issues; None where nothing is timed."""
        return None

    def totals(self) -> DeviceTotals | None:
        """The cumulative times and counts since the first iteration, the warm-up; None where nothing is timed."""
        return None


class EventTimer(DeviceTimer):
    """The device time of one learner rank, called from the learner's thread."""

    def __init__(
        self,
        sync: DeviceSync,
        ledger: Ledger,
        new_event: Callable[[], CudaEvent],
        open_track: Callable[[str, str], TraceTrack | None] = lambda name, what: None,
        clock: Clock | None = None,
    ) -> None:
        """`open_track` opens the trace of the work on the learner's stream, or of the copies beside it."""
        super().__init__(sync)
        self._ledger, self._new_event, self._open_track = ledger, new_event, open_track
        self._clock = clock or MonotonicClock()
        self._pool = EventPool(new_event, self._clock, open_track("device", "work"))
        self._waited_for = new_event()  # what the newest wait ended with
        self._spans = {span: TimedSpan(self._pool, span) for span in DeviceSpan}
        self._background: list[BackgroundCopyTimer] = []
        self._iterations = self._launch_bound = 0
        self._behind_ns: list[int] = []  # how long the device was at each part of this update once it was queued
        self._warmup: DeviceTotals | None = None  # those of the first iteration

    def span(self, span: DeviceSpan) -> AbstractContextManager[None]:
        """A reusable context manager that times what the current stream is given inside it."""
        return self._spans[span]

    @contextmanager
    def outside_train(self) -> Iterator[None]:
        """What the current stream is given inside it is not work of the update."""
        was_open = self._pool.stop(DeviceSpan.TRAIN)
        yield
        if was_open:
            self._pool.start(DeviceSpan.TRAIN)

    def wait(self) -> None:
        """Waits for the current stream, in `train`.

        The part of the wait in which the device still collected, copied or sampled is moved to the phases of these.
        """
        self._waited_for.record()  # also behind an exchange, whose time is not the update's
        start_ns = self._clock.now_ns()
        self._sync.wait()
        end_ns = self._clock.now_ns()
        train = self._pool.ended(DeviceSpan.TRAIN)
        if not train:
            return
        # An exchange between ranks, or a wait of the host, after a part of the update does not count.
        self._behind_ns += [
            min(end_ns - elapsed_ns(part.stop, self._waited_for) - part.queued_ns, part.ns) for part in train
        ]
        for span, phase in QUEUED_BEFORE_TRAIN.items():
            waited_ns = 0  # the time of these spans that fell into the wait
            for each in self._pool.ended(span):
                within_ns = end_ns - start_ns - elapsed_ns(each.stop, self._waited_for)
                waited_ns += min(max(within_ns, 0), each.ns)
            if waited_ns:
                self._ledger.move(LearnerPhase.TRAIN, phase, waited_ns)
        self._pool.resolve()

    def end_update(self) -> None:
        """Waits for the device, and notes whether the update was launch-bound.

        A device that is done with each part of an update as soon as the host has queued it was waiting for the host.
        """
        self.wait()
        if self._behind_ns:
            self._iterations += 1
            self._launch_bound += max(self._behind_ns) < CAUGHT_UP_NS
            self._behind_ns.clear()
        self._pool.resolve(is_idle=True)
        if self._warmup is None:
            self._warmup = self._sums()

    def background_copies(self) -> BackgroundCopyTimer:
        """A timer of copies that another thread issues."""
        pool = EventPool(self._new_event, self._clock, self._open_track("device_copies", "copies"))
        self._background.append(BackgroundCopyTimer(pool, self._clock))
        return self._background[-1]

    def totals(self) -> DeviceTotals:
        """The cumulative times and counts since the first iteration, which is warm-up as in the account."""
        sums = self._sums()
        return DeviceTotals(*map(sub, sums, self._warmup or sums))

    def _sums(self) -> DeviceTotals:
        spans_ns, splits_ns = self._pool.totals_ns, [copies.split_ns for copies in self._background]
        return DeviceTotals(
            train_ns=spans_ns[DeviceSpan.TRAIN],
            h2d_ns=spans_ns[DeviceSpan.H2D] + sum(exposed_ns for exposed_ns, _ in splits_ns),
            h2d_hidden_ns=sum(hidden_ns for _, hidden_ns in splits_ns),
            sample_ns=spans_ns[DeviceSpan.SAMPLE],
            collect_ns=spans_ns[DeviceSpan.COLLECT],
            iterations=self._iterations,
            launch_bound=self._launch_bound,
            dropped=self._pool.num_dropped + sum(copies.pool.num_dropped for copies in self._background),
        )


def make_device_timer(
    device_sync: StreamSync,
    ledger: Ledger,
    *,
    is_enabled: bool,
    open_track: Callable[[str, str], TraceTrack | None] = lambda name, what: None,
) -> DeviceTimer:
    """The timer of a rank's device, which opens traces only where there is something to time."""
    device = device_sync.device
    if not is_enabled or device.type != "cuda":
        return DeviceTimer(device_sync)
    return EventTimer(device_sync, ledger, lambda: CudaEvent(device), open_track)
