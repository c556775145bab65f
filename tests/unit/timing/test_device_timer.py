"""Device time, on events and a clock that obey the test: what is timed, when it is read, what never waits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from offpolicy.timing.device_timer import (
    CAUGHT_UP_NS,
    DEVICE_SPANS,
    NO_TRACES,
    NUM_PAIRS,
    UNTIMED,
    BackgroundCopyTimer,
    DeviceTimer,
    DeviceTraces,
    EventPool,
    StreamSync,
    TimedSpan,
    make_device_timer,
)
from offpolicy.timing.phases import DeviceSpan
from offpolicy.timing.trace_reader import read_tracks
from offpolicy.timing.trace_writer import create_tracks, open_track
from offpolicy.types import DeviceTotals
from tests.fakes import FakeClock

MS = 1_000_000
TRAIN, H2D = DeviceSpan.TRAIN, DeviceSpan.H2D


class Device:
    """A device whose work has a scripted length; counts the calls of its events."""

    def __init__(self) -> None:
        self.clock, self.asked = FakeClock(), Counter[str]()
        self.busy_until_ns = 0

    def work(self, ns: int) -> None:
        """Queue work: it begins when what was queued before is done."""
        self.busy_until_ns = max(self.busy_until_ns, self.clock.now_ns()) + ns

    def wait(self) -> None:
        self.asked["wait"] += 1
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
        raise AssertionError("an event must not be waited for")


class Iterations:
    """The loop's use of a device timer: a copy that blocks, an update, the wait behind it."""

    def __init__(self, device: Device, timer: DeviceTimer) -> None:
        self._device, self._timer = device, timer

    def run(self, train_ns: int, launch_ns: int = 0, copy_ns: int = 0) -> None:
        with self._timer.span(H2D):
            self._device.work(copy_ns)
            self._device.wait()
        with self._timer.span(TRAIN):
            self._device.work(train_ns)
            self._device.clock.advance(launch_ns)
        self._timer.wait()


def timer_of(device: Device, traces: DeviceTraces = NO_TRACES) -> DeviceTimer:
    return DeviceTimer(device, device.new_event, device.clock, traces)


def totals_of(timer: DeviceTimer) -> DeviceTotals:
    totals = timer.totals()
    assert totals is not None
    return totals


def test_updates_and_exposed_copies_are_timed_on_the_device() -> None:
    device = Device()
    timer = timer_of(device)
    iterations = Iterations(device, timer)
    for _ in range(3):
        iterations.run(train_ns=5 * MS, launch_ns=2 * MS, copy_ns=MS // 4)
    assert timer.totals() == DeviceTotals(15 * MS, 3 * MS // 4, 0, 0, iterations=3, launch_bound=0, dropped=0)


def test_a_device_that_has_caught_up_at_the_wait_is_launch_bound() -> None:
    device = Device()
    timer = timer_of(device)
    iterations = Iterations(device, timer)
    for launch_ns in (0, 2 * MS, 5 * MS - CAUGHT_UP_NS, 5 * MS - CAUGHT_UP_NS + 1, 9 * MS):
        iterations.run(train_ns=5 * MS, launch_ns=launch_ns)
    assert (totals_of(timer).iterations, totals_of(timer).launch_bound) == (5, 2)


def test_timing_waits_only_where_the_loop_waits() -> None:
    device = Device()
    iterations = Iterations(device, timer_of(device))
    for _ in range(10):
        iterations.run(train_ns=MS)
    assert device.asked["wait"] == 20  # a blocking copy and the end of train, ten times


def test_events_are_reused() -> None:
    device = Device()
    iterations = Iterations(device, timer_of(device))
    for _ in range(100):
        iterations.run(train_ns=MS)
    assert device.asked["event"] == 4
    assert device.asked["record"] == 400


def test_a_span_that_is_not_over_is_resolved_the_next_time() -> None:
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


def test_a_span_without_a_free_pair_is_counted_as_dropped() -> None:
    device = Device()
    pool = EventPool(device.new_event)
    for _ in range(NUM_PAIRS + 3):
        pool.start(H2D)
        device.work(MS)
        pool.stop(H2D)
    assert (pool.num_dropped, device.asked["wait"], device.asked["event"]) == (3, 0, 2 * NUM_PAIRS)
    device.wait()
    pool.resolve()
    assert pool.totals_ns[H2D] == NUM_PAIRS * MS


def test_a_finished_pair_is_reused_without_a_wait() -> None:
    device = Device()
    pool = EventPool(device.new_event, num_pairs=1)
    for _ in range(5):
        pool.start(H2D)
        device.work(MS)
        pool.stop(H2D)
        device.clock.advance(MS)
    assert (pool.num_dropped, pool.totals_ns[H2D]) == (0, 4 * MS)


def test_a_span_that_an_exception_left_is_not_counted() -> None:
    device = Device()
    pool = EventPool(device.new_event)
    span = TimedSpan(pool, TRAIN)
    span.__enter__()
    device.work(100 * MS)
    span.__exit__(ValueError, ValueError("NaN"), None)
    with span:
        device.work(2 * MS)
    device.wait()
    pool.resolve()
    assert (pool.totals_ns[TRAIN], device.asked["event"]) == (2 * MS, 2)


@pytest.mark.parametrize(
    ("waits_from_ms", "waits_until_ms", "exposed_ms"),
    [(None, None, 0), (0, 30, 10), (10, 30, 10), (14, 30, 6), (5, 8, 0), (25, 30, 0), (19, 20, 1)],
)
def test_a_background_copy_is_exposed_while_the_learner_waits(
    waits_from_ms: int | None, waits_until_ms: int | None, exposed_ms: int
) -> None:
    """The copy lasts from 10 to 20 ms."""
    device = Device()
    copies, waiting = BackgroundCopyTimer(EventPool(device.new_event), device.clock), None
    for ms in range(30):
        if ms == 20:
            copies.split_finished()
        if ms == waits_from_ms:
            waiting = copies.learner_waiting()
            waiting.__enter__()
        if ms == waits_until_ms and waiting is not None:
            waiting.__exit__(None, None, None)
        if ms == 10:
            with copies:
                device.work(10 * MS)
        device.clock.advance(MS)
    assert copies.split_ns == (exposed_ms * MS, (10 - exposed_ms) * MS)


def test_exposed_and_hidden_copies_are_all_copies_and_shares_of_device_time() -> None:
    """On the host a copy seems twice as long as on the device: only its share comes from there."""
    device = Device()
    device_timer = timer_of(device)
    background = device_timer.background_copies()
    assert background is not None
    for timed in (background, device_timer.span(H2D)):
        with timed:
            device.work(10 * MS)
        device.wait()
    device.clock.advance(20 * MS)
    with background.learner_waiting():
        device.clock.advance(10 * MS)
        background.split_finished()
    device_timer.wait()
    totals = totals_of(device_timer)
    assert (totals.h2d_ns, totals.h2d_hidden_ns) == (10 * MS + 2 * MS, 8 * MS)


@pytest.mark.parametrize(("device", "is_enabled"), [("cpu", True), ("cuda", False)])
def test_without_a_device_or_timing_nothing_is_timed(
    device: str, is_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StreamSync, "wait", lambda _: waits.append(1))
    waits: list[int] = []
    timer = make_device_timer(torch.device(device), is_enabled=is_enabled, traces=lambda: pytest.fail("opened"))
    assert timer.span(TRAIN) is timer.span(H2D) is UNTIMED
    timer.wait()
    assert waits == [1]
    assert timer.background_copies() is timer.totals() is None


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


def test_cuda_events_go_into_the_stream_of_the_timers_device(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCudaEvent.streams = []
    monkeypatch.setattr(torch.cuda, "Event", FakeCudaEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream of", device))
    second = torch.device("cuda", 1)
    timer = make_device_timer(second, is_enabled=True)
    monkeypatch.setattr(StreamSync, "wait", lambda _: None)
    Iterations(Device(), timer).run(train_ns=MS)
    totals = totals_of(timer)
    assert (totals.train_ns, totals.h2d_ns) == (2_500_000, 2_500_000)
    assert FakeCudaEvent.streams == [("stream of", second)] * 4


def test_a_traced_device_has_its_spans_where_they_were_on_the_machines_clock(tmp_path: Path) -> None:
    create_tracks(tmp_path / "0", ["device-0"], 1)
    track = open_track(str(tmp_path / "0"), "device-0", DEVICE_SPANS, "learner 0", "device 0")
    device = Device()
    timer = timer_of(device, DeviceTraces(stream=track))
    timer.wait()  # the first one sees the device idle
    begun = []
    for _ in range(3):
        device.clock.advance(700 * MS)
        begun.append(device.clock.now_ns())
        with timer.span(TRAIN):
            device.work(5 * MS)
        timer.wait()
    [read] = read_tracks(tmp_path / "0")
    starts, stops = read.spans("train")
    assert starts.tolist() == begun
    assert (stops - starts).tolist() == [5 * MS] * 3
