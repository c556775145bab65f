"""The time lane of a device: what it did while the learner's phases passed on the host; never added to them.

The lane stands around the learner, the source of batches and the fence at the end of `train`, and reads its events
behind that fence, which waits anyway. The loop knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol

from offpolicy.protocols import Batch_co, BatchSource, CopyTimer, Fence, Learner
from offpolicy.timing.clock import Clock, MonotonicClock
from offpolicy.timing.device import CopiesBeside, CudaEvent, DeviceEvent, DeviceTrace, EventPool, HeldCopies
from offpolicy.timing.phases import DeviceSpan
from offpolicy.timing.trace_writer import TraceLane
from offpolicy.types import DeviceTotals

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Traces(NamedTuple):
    """Where the device's spans are written down: those of the learner's stream, those of copies beside it."""

    stream: TraceLane | None = None
    copies: TraceLane | None = None


NO_TRACES = Traces()
CAUGHT_UP_NS = 100_000  # what the last few kernels, and waking up after them, take


class TimerBeside(CopyTimer, Protocol):
    """Times copies that a thread beside the learner's issues and waits for."""

    def settle(self) -> None:
        """Book the copies that the thread has just waited for; called by that thread."""
        ...

    def learner_waiting(self) -> AbstractContextManager[None]:
        """The learner waits for what is copied; entered by the learner's thread."""
        ...


class DeviceTime(Protocol):
    """What a runner needs of a lane; `DeviceLane` keeps one, `NullLane` leaves everything as it is."""

    def around_source(self, source: BatchSource[Batch_co]) -> BatchSource[Batch_co]:
        """The source, its copies timed."""
        ...

    def around_learner(self, learner: Learner) -> Learner:
        """The learner, its updates timed."""
        ...

    def around_fence(self, fence: Fence) -> Fence:
        """The fence, behind which the lane is read."""
        ...

    def held_copies(self) -> CopyTimer:
        """A timer of copies that the learner's thread issues and its work waits for."""
        ...

    def copies_beside(self) -> TimerBeside:
        """A timer of copies that another thread issues."""
        ...

    def totals(self) -> DeviceTotals | None:
        """The cumulative times and counts; None where there is no lane."""
        ...


class DeviceLane:
    """The device's time of one learner rank. Its calls come from the learner's thread."""

    def __init__(
        self, new_event: Callable[[], DeviceEvent], clock: Clock | None = None, traces: Traces = NO_TRACES
    ) -> None:
        self._new_event, self._clock, self._traces = new_event, clock or MonotonicClock(), traces
        self._pool = self._new_pool(traces.stream)
        self._beside: list[CopiesBeside] = []
        self._iterations = self._launch_bound = 0

    def around_source(self, source: BatchSource[Batch_co]) -> BatchSource[Batch_co]:
        """The source, its copies timed."""
        return _TimedSource(source, self._pool)

    def around_learner(self, learner: Learner) -> Learner:
        """The learner, its updates timed."""
        return _TimedLearner(learner, self._pool)

    def around_fence(self, fence: Fence) -> Fence:
        """The fence, behind which the lane is read."""
        return _ReadingFence(fence, self)

    def held_copies(self) -> CopyTimer:
        """A timer of copies that the learner's thread issues and its work waits for."""
        return HeldCopies(self._pool)

    def copies_beside(self) -> TimerBeside:
        """A timer of copies that another thread issues."""
        self._beside.append(CopiesBeside(self._new_pool(self._traces.copies), self._clock))
        return self._beside[-1]

    def wait(self, fence: Fence) -> None:
        """Wait as the loop would, note whether there was anything to wait for, and read what is over.

        A device that has nothing left to do when the host has handed over everything was waiting for the host.
        """
        start_ns = self._clock.now_ns()
        fence.wait()
        self._iterations += 1
        self._launch_bound += self._clock.now_ns() - start_ns < CAUGHT_UP_NS
        self._pool.idle()

    def _new_pool(self, lane: TraceLane | None) -> EventPool:
        trace = None if lane is None else DeviceTrace(lane, self._new_event, self._clock)
        return EventPool(self._new_event, trace=trace)

    def totals(self) -> DeviceTotals:
        """The cumulative times and counts."""
        spans_ns = self._pool.totals_ns
        divided_ns = [copies.divided_ns for copies in self._beside]
        return DeviceTotals(
            train_ns=spans_ns[DeviceSpan.TRAIN],
            h2d_ns=spans_ns[DeviceSpan.H2D] + sum(exposed_ns for exposed_ns, _ in divided_ns),
            h2d_hidden_ns=sum(hidden_ns for _, hidden_ns in divided_ns),
            inference_ns=spans_ns[DeviceSpan.INFERENCE],
            iterations=self._iterations,
            launch_bound=self._launch_bound,
            dropped=self._pool.num_dropped + sum(copies.num_dropped for copies in self._beside),
        )


class _TimedSource(Generic[Batch_co]):
    """A source whose copies on the learner's stream are timed."""

    def __init__(self, source: BatchSource[Batch_co], pool: EventPool) -> None:
        self._source, self._pool = source, pool

    def wait_ready(self) -> None:
        self._source.wait_ready()

    def is_exhausted(self) -> bool:
        return self._source.is_exhausted()

    def wait_batch(self) -> None:
        self._source.wait_batch()

    def sample(self) -> Tensor:
        return self._source.sample()

    def to_device(self, rows: Tensor) -> Batch_co:
        self._pool.start(DeviceSpan.H2D)
        batches = self._source.to_device(rows)
        self._pool.stop(DeviceSpan.H2D)
        return batches

    def release(self) -> None:
        self._source.release()


class _TimedLearner:
    """A learner whose updates are timed."""

    def __init__(self, learner: Learner, pool: EventPool) -> None:
        self._learner, self._pool = learner, pool

    def update(self, batch: Any, /) -> None:  # Any: as in `Learner`
        self._pool.start(DeviceSpan.TRAIN)
        self._learner.update(batch)
        self._pool.stop(DeviceSpan.TRAIN)


class _ReadingFence:
    """A fence behind which the lane is read."""

    def __init__(self, fence: Fence, lane: DeviceLane) -> None:
        self._fence, self._lane = fence, lane

    def wait(self) -> None:
        self._lane.wait(self._fence)


class NullTimer:
    """Times nothing."""

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def settle(self) -> None:
        """Do nothing."""

    def learner_waiting(self) -> AbstractContextManager[None]:
        """A context in which nothing is noted."""
        return _NOTHING


_NOTHING = nullcontext()
UNTIMED = NullTimer()


class NullLane:
    """No device, or timing switched off: every part stays as it is; no event, no clock reading."""

    def around_source(self, source: BatchSource[Batch_co]) -> BatchSource[Batch_co]:
        """The source itself."""
        return source

    def around_learner(self, learner: Learner) -> Learner:
        """The learner itself."""
        return learner

    def around_fence(self, fence: Fence) -> Fence:
        """The fence itself."""
        return fence

    def held_copies(self) -> CopyTimer:
        """A timer that times nothing."""
        return UNTIMED

    def copies_beside(self) -> TimerBeside:
        """A timer that times nothing."""
        return UNTIMED

    def totals(self) -> None:
        """There are none."""
        return


def make_lane(
    device: torch.device, *, is_enabled: bool, traces: Callable[[], Traces] = lambda: NO_TRACES
) -> DeviceTime:
    """A lane on a CUDA device, or the null object, which opens no trace."""
    if not is_enabled or device.type != "cuda":
        return NullLane()
    return DeviceLane(lambda: CudaEvent(device), traces=traces())
