"""The device's lane, on events and a clock that obey the test: what is timed, when it is read, what never waits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from offpolicy.timing.clock import FakeClock
from offpolicy.timing.device import DEVICE_SPANS, NUM_PAIRS, CopiesBeside, EventPool
from offpolicy.timing.device_timer import CAUGHT_UP_NS, UNTIMED, DeviceLane, DeviceTime, NullLane, Traces, make_lane
from offpolicy.timing.phases import DeviceSpan
from offpolicy.timing.trace_reader import read_lanes
from offpolicy.timing.trace_writer import create_lanes, open_lane
from offpolicy.types import DeviceTotals

MS = 1_000_000
CPU = torch.device("cpu")
TRAIN, H2D = DeviceSpan.TRAIN, DeviceSpan.H2D


class Device:
    """A device that is told how long it works, and counts what is asked of its events."""

    def __init__(self) -> None:
        self.clock, self.asked = FakeClock(), Counter[str]()
        self.busy_until_ns = 0

    def work(self, ns: int) -> None:
        """Queue work: it begins when what was queued before is done."""
        self.busy_until_ns = max(self.busy_until_ns, self.clock.now_ns()) + ns

    def wait(self) -> None:
        self.asked["fence"] += 1
        self.clock.advance(max(0, self.busy_until_ns - self.clock.now_ns()))

    def new_event(self) -> Event:
        self.asked["event"] += 1
        return Event(self)


class Event:
    """A point in the work of the device."""

    def __init__(self, device: Device) -> None:
        self._device, self.reached_ns = device, -1

    def record(self) -> None:
        self._device.asked["record"] += 1
        self.reached_ns = max(self._device.busy_until_ns, self._device.clock.now_ns())

    def query(self) -> bool:
        return self._device.clock.now_ns() >= self.reached_ns

    def elapsed_time(self, end_event: Event) -> float:
        assert end_event.query(), "torch raises here: the event was not reached"
        return (end_event.reached_ns - self.reached_ns) / MS

    def synchronize(self) -> None:
        raise AssertionError("nobody waits for an event")


class Parts:
    """A source, a learner and a fence of a device, with one iteration as the loop makes it."""

    def __init__(self, device: Device, lane: DeviceTime) -> None:
        self.device, self.launch_ns, self.train_ns, self.copy_ns = device, 0, 0, 0
        self._source, self._learner = lane.around_source(self), lane.around_learner(self)
        self._fence = lane.around_fence(device)

    def wait_ready(self) -> None: ...
    def wait_batch(self) -> None: ...
    def release(self) -> None: ...
    def is_exhausted(self) -> bool:
        return False

    def sample(self) -> Any:
        return "rows"

    def to_device(self, rows: Any) -> Any:
        assert rows == "rows"
        self.device.work(self.copy_ns)
        self.device.wait()  # a copy that blocks
        return "batch"

    def update(self, batch: Any) -> None:
        assert batch == "batch"
        self.device.work(self.train_ns)
        self.device.clock.advance(self.launch_ns)

    def iterate(self, train_ns: int, launch_ns: int = 0, copy_ns: int = 0) -> None:
        self.train_ns, self.launch_ns, self.copy_ns = train_ns, launch_ns, copy_ns
        self._learner.update(self._source.to_device(self._source.sample()))
        self._fence.wait()


def test_updates_and_exposed_copies_are_timed_on_the_device() -> None:
    device = Device()
    lane = DeviceLane(device.new_event, device.clock)
    parts = Parts(device, lane)
    for _ in range(3):
        parts.iterate(train_ns=5 * MS, launch_ns=2 * MS, copy_ns=MS // 4)
    assert lane.totals() == DeviceTotals(15 * MS, 3 * MS // 4, 0, 0, iterations=3, launch_bound=0, dropped=0)


def test_a_device_that_has_caught_up_at_the_fence_is_launch_bound() -> None:
    device = Device()
    lane = DeviceLane(device.new_event, device.clock)
    parts = Parts(device, lane)
    for launch_ns in (0, 2 * MS, 5 * MS - CAUGHT_UP_NS, 5 * MS - CAUGHT_UP_NS + 1, 9 * MS):
        parts.iterate(train_ns=5 * MS, launch_ns=launch_ns)
    assert (lane.totals().iterations, lane.totals().launch_bound) == (5, 2)


def test_events_are_used_again_and_again() -> None:
    device = Device()
    parts = Parts(device, DeviceLane(device.new_event, device.clock))
    for _ in range(100):
        parts.iterate(train_ns=MS)
    assert device.asked["event"] == 4
    assert device.asked["record"] == 400


def test_a_span_that_is_not_over_is_read_the_next_time() -> None:
    device = Device()
    pool = EventPool(device.new_event)
    pool.start(TRAIN)
    device.work(7 * MS)
    pool.stop(TRAIN)
    pool.resolve()
    assert pool.totals_ns[TRAIN] == 0
    device.wait()
    pool.resolve()
    pool.resolve()
    assert pool.totals_ns[TRAIN] == 7 * MS


def test_a_span_without_a_free_pair_is_counted_not_timed_and_not_waited_for() -> None:
    device = Device()
    pool = EventPool(device.new_event)
    for _ in range(NUM_PAIRS + 3):
        pool.start(H2D)
        device.work(MS)
        pool.stop(H2D)
    assert (pool.num_dropped, device.asked["fence"], device.asked["event"]) == (3, 0, 2 * NUM_PAIRS)
    device.wait()
    pool.resolve()
    assert pool.totals_ns[H2D] == NUM_PAIRS * MS


def test_a_pair_that_is_over_makes_room_without_a_fence() -> None:
    device = Device()
    pool = EventPool(device.new_event, num_pairs=1)
    for _ in range(5):
        pool.start(H2D)
        device.work(MS)
        pool.stop(H2D)
        device.clock.advance(MS)
    assert (pool.num_dropped, pool.totals_ns[H2D]) == (0, 4 * MS)


def test_a_span_left_open_by_an_exception_starts_anew() -> None:
    device = Device()
    pool = EventPool(device.new_event)
    pool.start(TRAIN)
    device.work(100 * MS)
    pool.start(TRAIN)
    device.work(2 * MS)
    pool.stop(TRAIN)
    device.wait()
    pool.resolve()
    assert (pool.totals_ns[TRAIN], device.asked["event"]) == (2 * MS, 2)


@pytest.mark.parametrize(
    ("waits_from_ms", "waits_until_ms", "exposed_ms"),
    [(None, None, 0), (0, 30, 10), (10, 30, 10), (14, 30, 6), (5, 8, 0), (25, 30, 0), (19, 20, 1)],
)
def test_a_copy_beside_is_exposed_as_far_as_the_learner_waits(
    waits_from_ms: int | None, waits_until_ms: int | None, exposed_ms: int
) -> None:
    """The copy lasts from 10 to 20 ms."""
    device = Device()
    copies, waiting = CopiesBeside(EventPool(device.new_event), device.clock), None
    for ms in range(30):
        if ms == 20:
            copies.settle()
        if ms == waits_from_ms:
            waiting = copies.learner_waiting()
            waiting.__enter__()
        if ms == waits_until_ms and waiting is not None:
            waiting.__exit__(None, None, None)
        if ms == 10:
            copies.start()
            device.work(10 * MS)
            copies.stop()
        device.clock.advance(MS)
    assert copies.divided_ns == (exposed_ms * MS, (10 - exposed_ms) * MS)


def test_exposed_and_hidden_copies_are_all_copies_and_shares_of_device_time() -> None:
    """On the host a copy seems twice as long as on the device: only its share comes from there."""
    device = Device()
    lane = DeviceLane(device.new_event, device.clock)
    beside, held = lane.copies_beside(), lane.held_copies()
    for timer in (beside, held):
        timer.start()
        device.work(10 * MS)
        timer.stop()
        device.wait()
    device.clock.advance(20 * MS)
    with beside.learner_waiting():
        device.clock.advance(10 * MS)
        beside.settle()
    lane.wait(device)
    totals = lane.totals()
    assert (totals.h2d_ns, totals.h2d_hidden_ns) == (10 * MS + 2 * MS, 8 * MS)


def test_without_a_device_or_timing_every_part_stays_itself() -> None:
    for lane in (make_lane(CPU, is_enabled=True), make_lane(torch.device("cuda"), is_enabled=False)):
        source, fence = Parts(Device(), NullLane()), Device()
        assert lane.around_source(source) is source
        assert lane.around_learner(source) is source
        assert lane.around_fence(fence) is fence
        assert lane.held_copies() is lane.copies_beside() is UNTIMED
        assert lane.totals() is None


class FakeCudaEvent:
    """Stands in for `torch.cuda.Event`: remembers its streams, is always over, and each span lasts 2.5 ms."""

    streams: list[tuple[str, torch.device]]

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: tuple[str, torch.device]) -> None:
        self.streams.append(stream)

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: FakeCudaEvent) -> float:
        return 2.5


def test_cuda_events_go_into_the_stream_of_the_lanes_device(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCudaEvent.streams = []
    monkeypatch.setattr(torch.cuda, "Event", FakeCudaEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream of", device))
    second = torch.device("cuda", 1)
    lane = make_lane(second, is_enabled=True)
    Parts(Device(), lane).iterate(train_ns=MS)
    totals = lane.totals()
    assert totals is not None
    assert (totals.train_ns, totals.h2d_ns) == (2_500_000, 2_500_000)
    assert FakeCudaEvent.streams == [("stream of", second)] * 4


def test_a_traced_device_has_its_spans_where_they_were_on_the_machines_clock(tmp_path: Path) -> None:
    create_lanes(tmp_path / "0", ["device-0"], 1)
    trace = open_lane(str(tmp_path / "0"), "device-0", DEVICE_SPANS, "learner 0", "device 0")
    device = Device()
    lane = DeviceLane(device.new_event, device.clock, Traces(stream=trace))
    learner, fence = lane.around_learner(Working(device)), lane.around_fence(device)
    fence.wait()  # the first one sees the device idle
    begun = []
    for _ in range(3):
        device.clock.advance(700 * MS)
        begun.append(device.clock.now_ns())
        learner.update(None)
        fence.wait()
    [read] = read_lanes(tmp_path / "0")
    starts, stops = read.spans("train")
    assert starts.tolist() == begun
    assert (stops - starts).tolist() == [5 * MS] * 3


class Working:
    """A learner whose update takes the device 5 ms."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def update(self, batch: None, /) -> None:
        self._device.work(5 * MS)
