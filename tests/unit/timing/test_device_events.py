"""Spans between events of a simulated device: what is counted, when it is read, where it is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from offpolicy.errors import ConfigError
from offpolicy.timing import device_events
from offpolicy.timing.device_events import (
    ANCHOR_NS,
    DEVICE_SPANS,
    NUM_PAIRS,
    CudaEvent,
    DeviceTrace,
    EventPool,
    Pause,
    TimedSpan,
)
from offpolicy.timing.phases import DeviceSpan
from offpolicy.timing.trace_reader import read_tracks
from offpolicy.timing.trace_writer import TraceTrack, create_tracks, open_track
from tests.simulated_device import CUDA, MS, SimulatedDevice, SimulatedStream

TRAIN, H2D = DeviceSpan.TRAIN, DeviceSpan.H2D


def pool_of(device: SimulatedDevice, num_pairs: int = NUM_PAIRS, track: TraceTrack | None = None) -> EventPool:
    trace = None if track is None else DeviceTrace(track, lambda: CudaEvent(CUDA), device)
    return EventPool(lambda: CudaEvent(CUDA), device, num_pairs, trace)


def test_a_span_that_is_not_over_is_resolved_the_next_time(device: SimulatedDevice) -> None:
    pool = pool_of(device)
    pool.start(TRAIN)
    device.work(7 * MS)
    pool.stop(TRAIN)
    pool.resolve()
    assert (pool.totals_ns[TRAIN], pool.ended(TRAIN)) == (0, [])
    device.advance(7 * MS)
    pool.resolve()
    pool.resolve()
    assert pool.totals_ns[TRAIN] == 7 * MS


def test_a_span_without_a_free_pair_is_counted_as_dropped(device: SimulatedDevice) -> None:
    pool = pool_of(device)
    for _ in range(NUM_PAIRS + 3):
        pool.start(H2D)
        device.work(MS)
        pool.stop(H2D)
    assert (pool.num_dropped, device.calls["record"], device.now_ns()) == (3, 2 * NUM_PAIRS, 0)
    device.default.synchronize()
    pool.resolve()
    assert pool.totals_ns[H2D] == NUM_PAIRS * MS


def test_a_finished_pair_is_reused_without_a_wait(device: SimulatedDevice) -> None:
    pool = pool_of(device, num_pairs=1)
    for _ in range(5):
        pool.start(H2D)
        device.work(MS)
        pool.stop(H2D)
        device.advance(MS)
    assert (pool.num_dropped, pool.totals_ns[H2D], device.calls["synchronize"]) == (0, 4 * MS, 0)


def test_a_span_that_an_exception_left_is_not_counted(device: SimulatedDevice) -> None:
    pool = pool_of(device)
    span = TimedSpan(pool, TRAIN)
    span.__enter__()
    device.work(100 * MS)
    span.__exit__(ValueError, ValueError("NaN"), None)
    with span:
        device.work(2 * MS)
    device.default.synchronize()
    pool.resolve()
    assert pool.totals_ns[TRAIN] == 2 * MS


def test_what_a_pause_queues_is_not_counted(device: SimulatedDevice) -> None:
    pool = pool_of(device)
    pause = Pause(pool, TRAIN)
    with TimedSpan(pool, TRAIN):
        device.work(2 * MS)
        with pause:
            device.work(40 * MS)
        device.work(3 * MS)
    with pause:  # outside a span it starts none
        device.work(40 * MS)
    device.default.synchronize()
    pool.resolve()
    assert (pool.totals_ns[TRAIN], pool.is_open(TRAIN)) == (5 * MS, False)


class FakeCudaEvent:
    """Stands in for `torch.cuda.Event`: remembers its streams."""

    streams: list[tuple[str, torch.device]]

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: tuple[str, torch.device]) -> None:
        self.streams.append(stream)


def test_an_event_goes_into_the_stream_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCudaEvent.streams = []
    monkeypatch.setattr(torch.cuda, "Event", FakeCudaEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream of", device))
    second = torch.device("cuda", 1)
    CudaEvent(second).record()
    assert FakeCudaEvent.streams == [("stream of", second)]


def test_events_are_of_the_stream_that_is_current_when_they_are_recorded(device: SimulatedDevice) -> None:
    pool, copies = pool_of(device), SimulatedStream(device, "copies")
    device.work(30 * MS)
    with device.stream(copies):
        pool.start(H2D)
        device.work(MS)
        pool.stop(H2D)
    copies.synchronize()
    pool.resolve()
    assert (pool.totals_ns[H2D], device.now_ns()) == (MS, MS)


def drawn(device: SimulatedDevice, directory: Path) -> tuple[list[int], list[int]]:
    """Begins and lengths of three updates of 5 ms in the trace, each a second after the one before."""
    create_tracks(directory, ["device-0"], 1)
    track = open_track(str(directory), "device-0", DEVICE_SPANS, "learner 0", "device 0")
    pool = pool_of(device, track=track)
    pool.resolve_idle()  # the first one sees the device idle
    for _ in range(3):
        device.advance(ANCHOR_NS)
        with TimedSpan(pool, TRAIN):
            device.work(5 * MS)
        device.default.synchronize()
        pool.resolve_idle()
    [read] = read_tracks(directory)
    starts, stops = read.spans("train")
    return starts.tolist(), (stops - starts).tolist()


@pytest.mark.parametrize("launch_ns", [0, 20_000])
def test_a_span_is_drawn_where_it_was_on_the_machines_clock(
    device: SimulatedDevice, tmp_path: Path, launch_ns: int
) -> None:
    device.launch_ns = launch_ns
    starts, lengths = drawn(device, tmp_path / "0")
    assert starts == [ran.start_ns - launch_ns for ran in device.log]  # from the event, which is launched before
    assert lengths == [5 * MS + launch_ns] * 3


def test_an_anchor_whose_instant_is_read_before_its_launch_is_found_out(
    device: SimulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def renew_anchor(self: DeviceTrace) -> None:
        self._anchor, self._anchored_ns = self._new_event(), self._now_ns()
        self._anchor.record()

    monkeypatch.setattr(device_events.DeviceTrace, "renew_anchor", renew_anchor)
    device.launch_ns = 20_000
    starts, _ = drawn(device, tmp_path / "0")
    assert starts == [ran.start_ns - 2 * device.launch_ns for ran in device.log]  # before they were launched


def test_a_span_is_left_out_while_its_anchor_was_not_reached(device: SimulatedDevice, tmp_path: Path) -> None:
    """As where the anchor lies in another stream, behind work; CUDA would raise."""
    create_tracks(tmp_path / "0", ["device-0"], 1)
    pool = pool_of(device, track=open_track(str(tmp_path / "0"), "device-0", DEVICE_SPANS, "learner 0", "device 0"))
    device.work(30 * MS)
    pool.resolve_idle()  # it is not idle
    with device.stream(SimulatedStream(device, "copies")), TimedSpan(pool, H2D):
        device.work(MS)
    device.advance(2 * MS)
    pool.resolve()
    assert pool.totals_ns[H2D] == MS
    with pytest.raises(ConfigError, match="holds no trace"):
        read_tracks(tmp_path / "0")
