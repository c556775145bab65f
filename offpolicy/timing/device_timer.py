"""Waiting for a device, and the time of the work it was given: the only module that synchronises one.

Device time passes beside the learner's phases on the host and is never added to them. Pairs of events are put into the
device's streams, and read once both were reached, after the wait that ends `train` and that the loop needs anyway.
Timing adds no wait. What that wait was for is known then: a part of it may belong to the phases before `train`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

from offpolicy.protocols import DeviceSync
from offpolicy.timing.clock import Clock, MonotonicClock
from offpolicy.timing.device_events import (
    CudaEvent,
    DeviceEvent,
    DeviceTrace,
    EventPool,
    Pair,
    Pause,
    Pending,
    TimedSpan,
    elapsed_ns,
)
from offpolicy.timing.ledger import NULL_SPAN, Ledger
from offpolicy.timing.phases import DeviceSpan, LearnerPhase
from offpolicy.timing.trace_writer import TraceTrack
from offpolicy.types import DeviceTotals

if TYPE_CHECKING:
    import torch

CAUGHT_UP_NS = 100_000  # longest time for the last few kernels, and for waking up after them
# Work in front of an update that the host only queues: the phase whose time it is, if the host waits for it.
QUEUED_BEFORE_TRAIN = {DeviceSpan.SAMPLE: LearnerPhase.REPLAY_SAMPLE, DeviceSpan.H2D: LearnerPhase.H2D}


class StreamSync:
    """Waits for the work queued on a device's current stream; on the CPU there is nothing to wait for.

    The loop waits inside `train` exactly when the next phase (publishing the weights) would have to wait anyway, so the
    time lands on the phase that caused it and no synchronisation is added. With `yields_core` the thread sleeps
    meanwhile, where CUDA would spin, and wakes up some 20 us later. One thread uses it.
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
        """Splits the copies that the thread has just waited for by how long the learner waited meanwhile.

        The stream of the copies is the current one.
        """
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


class DeviceTimer:
    """Waits for the device of a learner rank, and times nothing: on a CPU, and without timing."""

    def __init__(self, sync: DeviceSync) -> None:
        self._sync = sync

    def span(self, span: DeviceSpan) -> AbstractContextManager[None]:
        """A reusable context manager that times what the current stream is given inside it."""
        return NULL_SPAN

    def outside_train(self) -> AbstractContextManager[None]:
        """A reusable context manager: what the current stream is given inside it is not work of the update."""
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
        new_event: Callable[[], DeviceEvent],
        traces: DeviceTraces,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(sync)
        self._ledger, self._new_event, self._traces = ledger, new_event, traces
        self._clock = clock or MonotonicClock()
        self._pool = self._new_pool(traces.stream)
        self._waited_for = new_event()  # what the newest wait ended with
        self._spans = {span: TimedSpan(self._pool, span) for span in DeviceSpan}
        self._pause = Pause(self._pool, DeviceSpan.TRAIN)
        self._background: list[BackgroundCopyTimer] = []
        self._iterations = self._launch_bound = 0
        self._behind_ns: list[int] = []  # how long the device was at each part of this update once it was queued
        self._warmup: DeviceTotals | None = None  # those of the first iteration

    def _new_pool(self, track: TraceTrack | None) -> EventPool:
        trace = None if track is None else DeviceTrace(track, self._new_event, self._clock)
        return EventPool(self._new_event, self._clock, trace=trace)

    def span(self, span: DeviceSpan) -> AbstractContextManager[None]:
        """A reusable context manager that times what the current stream is given inside it."""
        return self._spans[span]

    def outside_train(self) -> AbstractContextManager[None]:
        """A reusable context manager: what the current stream is given inside it is not work of the update."""
        return self._pause

    def wait(self) -> None:
        """Waits for the current stream, in `train`.

        The part of the wait in which the device still copied or sampled is moved to the phases of these.
        """
        self._waited_for.record()  # also behind an exchange, whose time is not the update's
        start_ns = self._clock.now_ns()
        self._sync.wait()
        end_ns = self._clock.now_ns()
        train = self._pool.ended(DeviceSpan.TRAIN)
        if train:
            self._behind_ns += _behind_ns(train, self._waited_for, end_ns)
            for span, phase in QUEUED_BEFORE_TRAIN.items():
                before = [each.pair for each in self._pool.ended(span)]
                waited_ns = sum(_ns_within(pair, end_ns - start_ns, self._waited_for) for pair in before)
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
        self._pool.resolve_idle()
        if self._warmup is None:
            self._warmup = self._sums()

    def background_copies(self) -> BackgroundCopyTimer:
        """A timer of copies that another thread issues."""
        self._background.append(BackgroundCopyTimer(self._new_pool(self._traces.copies), self._clock))
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
            iterations=self._iterations,
            launch_bound=self._launch_bound,
            dropped=self._pool.num_dropped + sum(copies.num_dropped for copies in self._background),
        )


def _behind_ns(parts: Sequence[Pending], end: DeviceEvent, end_ns: int) -> list[int]:
    """Returns how long the device was at each part of an update after the host had queued it.

    It has just reached `end`. An exchange between ranks, or a wait of the host, after a part does not count.
    """
    return [min(end_ns - elapsed_ns(part.pair.stop, end) - part.queued_ns, part.pair.ns) for part in parts]


def _ns_within(pair: Pair, wait_ns: int, end: DeviceEvent) -> int:
    """Returns the time of a span that fell into the `wait_ns` before `end`."""
    return min(max(wait_ns - elapsed_ns(pair.stop, end), 0), pair.ns)


def make_device_timer(
    device_sync: StreamSync, ledger: Ledger, *, is_enabled: bool, traces: Callable[[], DeviceTraces] = DeviceTraces
) -> DeviceTimer:
    """The timer of a rank's device, which opens traces only where there is something to time."""
    device = device_sync.device
    if not is_enabled or device.type != "cuda":
        return DeviceTimer(device_sync)
    return EventTimer(device_sync, ledger, lambda: CudaEvent(device), traces())
