"""The simulated device follows CUDA's rules, and finds what breaks them."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.simulated_device import CUDA, MS, SimulatedDevice, SimulatedStream


def pinned(value: float) -> torch.Tensor:
    return torch.full((2,), value).pin_memory()


def timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def test_streams_run_beside_the_host_and_beside_each_other(device: SimulatedDevice) -> None:
    copies = SimulatedStream(device, "copies")
    device.work(5 * MS)
    device.work(5 * MS)
    with device.stream(copies):
        device.work(3 * MS)
    device.advance(MS)
    assert device.now_ns() == MS
    copies.synchronize()
    assert device.now_ns() == 3 * MS
    device.default.synchronize()
    assert [(ran.stream, ran.start_ns // MS, ran.stop_ns // MS) for ran in device.log] == [
        ("copies", 0, 3), ("default", 0, 5), ("default", 5, 10),
    ]  # fmt: skip


def test_the_current_stream_is_that_of_the_thread(device: SimulatedDevice) -> None:
    found: list[object] = []
    with device.stream(SimulatedStream(device, "copies")):
        thread = threading.Thread(target=lambda: found.append(torch.cuda.current_stream()))
        thread.start()
        thread.join()
    assert found == [device.default]


def test_the_time_between_events_is_known_once_both_were_reached(device: SimulatedDevice) -> None:
    start, stop = timed_event(), timed_event()
    with pytest.raises(RuntimeError, match="must be recorded"):
        start.elapsed_time(stop)
    start.record()
    device.work(5 * MS)
    stop.record()
    device.advance(4 * MS)
    assert (start.query(), stop.query()) == (True, False)
    with pytest.raises(RuntimeError, match="must be completed"):
        start.elapsed_time(stop)
    device.advance(MS)
    assert start.elapsed_time(stop) == 5.0
    with pytest.raises(RuntimeError, match="enable_timing"):
        start.elapsed_time(torch.cuda.Event())


def test_a_stream_waits_for_an_event_as_it_was_recorded_last(device: SimulatedDevice) -> None:
    copies, event = SimulatedStream(device, "copies"), torch.cuda.Event()
    copies.wait_event(event)  # was never recorded
    device.work(5 * MS)
    event.record()
    copies.wait_event(event)
    device.work(5 * MS)
    event.record()  # later: not what the stream waits for
    copies.synchronize()
    assert device.now_ns() == 5 * MS


def test_a_wait_for_what_never_runs_is_an_error_and_no_hang(device: SimulatedDevice) -> None:
    copies, event = SimulatedStream(device, "copies"), torch.cuda.Event()
    with device.stream(copies):
        device.work(MS)
        event.record()
    ahead = copies.queue.pop()  # as if another process had it
    device.default.wait_event(event)
    with pytest.raises(RuntimeError, match="never runs"):
        device.default.synchronize()
    copies.queue.append(ahead)


def test_a_tensor_has_its_content_once_the_operation_has_run(device: SimulatedDevice) -> None:
    source = pinned(3.0)
    target = torch.zeros(2, device=CUDA)
    target.copy_(source, non_blocking=True)
    twice = target * 2
    assert (target.device, twice.device, device.now_ns()) == (CUDA, CUDA, 0)
    assert twice.plain.isnan().all()  # type: ignore[attr-defined]  # of the simulation
    assert twice.cpu().tolist() == [6.0, 6.0]
    assert device.now_ns() == device.copy_ns + 2 * device.kernel_ns
    assert float(twice.sum()) == 12.0


@pytest.mark.parametrize(("is_pinned", "is_asynchronous"), [(True, True), (True, False), (False, True)])
def test_only_a_copy_from_page_locked_memory_runs_behind_the_host(
    device: SimulatedDevice, is_pinned: bool, is_asynchronous: bool
) -> None:
    source = pinned(1.0) if is_pinned else torch.ones(2)
    source.to(CUDA, non_blocking=is_asynchronous)
    assert (device.now_ns() == 0) == (is_pinned and is_asynchronous)


def test_page_locked_memory_that_is_written_before_its_copy_has_run_is_a_race(device: SimulatedDevice) -> None:
    source, target = pinned(1.0), torch.zeros(2, device=CUDA)
    device.work(5 * MS)
    target.copy_(source, non_blocking=True)
    source[:] = 2.0
    with pytest.raises(AssertionError, match="race: what aten::copy_ reads was changed"):
        device.default.synchronize()
    device.forgive()


def test_memory_that_is_overwritten_while_a_kernel_reads_it_is_a_race(device: SimulatedDevice) -> None:
    source, target = pinned(1.0), torch.zeros(2, device=CUDA)
    device.work(5 * MS, [target])
    with device.stream(SimulatedStream(device, "copies")):
        device.work(MS)
        target.copy_(source, non_blocking=True)
    with pytest.raises(AssertionError, match="race: what kernel reads was changed"):
        device.default.synchronize()
    device.forgive()


def test_an_index_from_memory_that_was_not_written_is_out_of_bounds(device: SimulatedDevice) -> None:
    rows, index = torch.zeros(4, device=CUDA), torch.empty(2, dtype=torch.int64, device=CUDA)
    rows.index_select(0, index)
    with pytest.raises(AssertionError, match="out of range"):
        device.default.synchronize()
    device.forgive()


def test_a_launch_takes_its_time_on_the_host(device: SimulatedDevice) -> None:
    device.launch_ns = 7_000
    device.work(MS)
    torch.cuda.Event().record()
    assert device.now_ns() == 14_000
