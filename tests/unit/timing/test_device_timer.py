"""Device time of a learner on a simulated device: what is timed, whose a wait was, what never waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.analysis.trace_reader import read_tracks
from offpolicy.timing.device_timer import (
    ANCHOR_NS,
    CAUGHT_UP_NS,
    BackgroundCopyTimer,
    CudaEvent,
    EventPool,
    EventTimer,
    StreamSync,
    TimedSpan,
)
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import DeviceSpan, LearnerPhase
from offpolicy.timing.trace_writer import TraceTrack, create_tracks, open_track
from offpolicy.types import DeviceTotals
from tests.simulated_device import CUDA, MS, SimulatedDevice

TRAIN, H2D, SAMPLE, COLLECT = DeviceSpan.TRAIN, DeviceSpan.H2D, DeviceSpan.SAMPLE, DeviceSpan.COLLECT


def new_event() -> CudaEvent:
    return CudaEvent(CUDA)


def pool_of(device: SimulatedDevice, track: TraceTrack | None = None) -> EventPool:
    return EventPool(new_event, device, track)


def test_a_span_is_drawn_where_it_was_on_the_machines_clock(device: SimulatedDevice, tmp_path: Path) -> None:
    """Three updates of 5 ms, each a second after the one before."""
    device.launch_ns = 20_000
    create_tracks(tmp_path / "0", ["device-0"], 1)
    pool = pool_of(device, open_track(str(tmp_path / "0"), "device-0", tuple(DeviceSpan), "learner 0", "device 0"))
    pool.resolve(is_idle=True)
    for _ in range(3):
        device.advance(ANCHOR_NS)
        with TimedSpan(pool, TRAIN):
            device.work(5 * MS)
        device.default.synchronize()
        pool.resolve(is_idle=True)
    [read] = read_tracks(tmp_path / "0")
    starts, stops = read.spans("train")
    assert starts.tolist() == [ran.start_ns - 20_000 for ran in device.log]  # from the event, launched before
    assert (stops - starts).tolist() == [5 * MS + 20_000] * 3


class Iterations:
    """The loop's use of a device timer."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.device, self.ledger = device, Ledger(LearnerPhase, device)
        self.timer = EventTimer(StreamSync(CUDA), self.ledger, new_event, clock=device)
        self.timer.end_update()  # of the warm-up
        self.ledger.end_warmup()

    def run(self, train_ns: int, launch_ns: int = 0, copy_ns: int = 0, sample_ns: int = 0, collect_ns: int = 0) -> None:
        """The device collects, draws rows, copies them and trains, launched in `launch_ns`; all is waited for."""
        phase, span = self.ledger.phase, self.timer.span
        with phase(LearnerPhase.COLLECT), span(COLLECT):
            self.device.work(collect_ns)
        with phase(LearnerPhase.REPLAY_SAMPLE), span(SAMPLE):
            self.device.work(sample_ns)
        with phase(LearnerPhase.H2D), span(H2D):
            self.device.work(copy_ns)
        with phase(LearnerPhase.TRAIN):
            with span(TRAIN):
                self.device.work(train_ns)
                self.device.advance(launch_ns)
            self.timer.end_update()
        self.ledger.close()

    def phases_ms(self, *names: LearnerPhase) -> list[float]:
        account = self.ledger.account()
        assert sum(account.phases_ns.values()) == account.wall_ns
        return [account.phases_ns[name] / MS for name in names]


@pytest.mark.promise("lanes-apart")
def test_updates_copies_and_draws_are_timed_on_the_device(device: SimulatedDevice) -> None:
    iterations = Iterations(device)
    for _ in range(3):
        iterations.run(train_ns=5 * MS, launch_ns=2 * MS, copy_ns=MS // 4, sample_ns=MS)
    assert iterations.timer.totals() == DeviceTotals(
        15 * MS, 3 * MS // 4, 0, 3 * MS, 0, iterations=3, launch_bound=0, dropped=0
    )


def test_the_first_iteration_is_warm_up_on_the_device_too(device: SimulatedDevice) -> None:
    """Kernels are loaded and graphs captured in it: the first record had the seconds of that in each iteration."""
    ledger = Ledger(LearnerPhase, device)
    timer = EventTimer(StreamSync(CUDA), ledger, new_event, clock=device)
    for train_ns in (2000 * MS, 5 * MS, 5 * MS):
        with ledger.phase(LearnerPhase.TRAIN):
            with timer.span(TRAIN):
                device.work(train_ns)
            timer.end_update()
        ledger.close()
        ledger.end_warmup()
    assert (timer.totals().train_ns, timer.totals().iterations, ledger.account().iterations) == (10 * MS, 2, 2)


def test_a_device_that_has_caught_up_at_the_end_is_launch_bound(device: SimulatedDevice) -> None:
    iterations = Iterations(device)
    for launch_ns in (0, 2 * MS, 5 * MS - CAUGHT_UP_NS, 5 * MS - CAUGHT_UP_NS + 1, 9 * MS):
        iterations.run(train_ns=5 * MS, launch_ns=launch_ns)
    totals = iterations.timer.totals()
    assert (totals.iterations, totals.launch_bound) == (5, 2)


@pytest.mark.promise("measuring-changes-nothing")
def test_timing_waits_only_where_the_loop_waits(device: SimulatedDevice) -> None:
    iterations = Iterations(device)
    for _ in range(10):
        iterations.run(train_ns=MS, sample_ns=MS)
    assert (device.calls["synchronize"], device.calls["event"]) == (1 + 10, 0)  # that of the warm-up too


@pytest.mark.promise("account-true")
@pytest.mark.parametrize("part", ["collect", "sample", "copy", "train"])
def test_a_delay_on_the_device_is_a_delay_of_its_phase_and_of_no_other(part: str) -> None:
    """Launches run beside the first 2 ms of collecting; 4 ms more of one part are 4 ms more of its phase."""
    phases = {
        "collect": LearnerPhase.COLLECT,
        "sample": LearnerPhase.REPLAY_SAMPLE,
        "copy": LearnerPhase.H2D,
        "train": LearnerPhase.TRAIN,
    }
    spent = []
    for more_ns in (0, 4 * MS):
        with pytest.MonkeyPatch.context() as patch, SimulatedDevice().installed(patch) as device:
            iterations = Iterations(device)
            lengths = {"collect_ns": 3 * MS, "sample_ns": MS, "copy_ns": MS, "train_ns": 10 * MS}
            lengths[f"{part}_ns"] += more_ns
            iterations.run(launch_ns=2 * MS, **lengths)
            spent.append(dict(zip(phases, iterations.phases_ms(*phases.values()), strict=True)))
    # Before the wait of 12 ms the host has launched for 2 ms, in which the device collected.
    assert spent[0] == {"collect": 1.0, "sample": 1.0, "copy": 1.0, "train": 12.0}
    assert spent[1] == {**spent[0], part: spent[0][part] + 4.0}


class Peers:
    """The exchange of an update, which the host waits for in one of three ways.

    `twice`, as over host memory: for the own work, then for late ranks and the collective. `once`, as over NCCL: for
    the own work and the collective together. `later`: not at all.
    """

    def __init__(self, iterations: Iterations, *, late_ns: int, waits: str) -> None:
        self._device, self._timer, self._ledger = iterations.device, iterations.timer, iterations.ledger
        self._late_ns, self._waits = late_ns, waits

    def average(self) -> None:
        if self._waits == "once":
            self._device.work(5 * MS)
            with self._ledger.phase(LearnerPhase.PARAM_SYNC):
                self._timer.wait()
                self._ledger.charge_head(LearnerPhase.TRAIN, self._ledger.now_ns() - 5 * MS)
            return
        if self._waits == "twice":
            self._timer.wait()
        with self._ledger.phase(LearnerPhase.PARAM_SYNC):
            self._device.advance(self._late_ns)
            self._device.work(5 * MS)
            if self._waits == "twice":
                self._timer.wait()


def update_with_exchange(
    device: SimulatedDevice, *, kernels_ns: int, launch_ns: int, late_ns: int, waits: str
) -> DeviceTotals:
    """Gradients, their exchange, and a step of 50 us, in each of 4 iterations."""
    iterations = Iterations(device)
    peers = Peers(iterations, late_ns=late_ns, waits=waits)
    for _ in range(4):
        with iterations.ledger.phase(LearnerPhase.TRAIN):
            with iterations.timer.span(TRAIN):
                device.work(kernels_ns)
                device.advance(launch_ns)
                with iterations.timer.outside_train():
                    peers.average()
                device.work(50_000)
            iterations.timer.end_update()
    return iterations.timer.totals()


@pytest.mark.parametrize("waits", ["twice", "once", "later"])
@pytest.mark.parametrize(("kernels_ns", "launch_ns", "share"), [(8 * MS, 2 * MS, 0.0), (MS, 9 * MS, 1.0)])
def test_an_exchange_is_no_device_time_of_the_update_and_does_not_decide_whether_it_is_launch_bound(
    device: SimulatedDevice, waits: str, kernels_ns: int, launch_ns: int, share: float
) -> None:
    late_ns = 30 * MS if waits == "twice" else 0
    totals = update_with_exchange(device, kernels_ns=kernels_ns, launch_ns=launch_ns, late_ns=late_ns, waits=waits)
    assert totals.launch_bound / totals.iterations == share
    if share == 0.0:  # else the device has waited for the host within the span
        assert totals.train_ns == 4 * (kernels_ns + 50_000)


@pytest.mark.parametrize(
    ("waits_from_ms", "waits_until_ms", "exposed_ms"),
    [(None, None, 0), (0, 30, 10), (10, 30, 10), (14, 30, 6), (5, 8, 0), (25, 30, 0), (19, 20, 1)],
)
def test_a_background_copy_is_exposed_while_the_learner_waits(
    device: SimulatedDevice, waits_from_ms: int | None, waits_until_ms: int | None, exposed_ms: int
) -> None:
    """The copy lasts from 10 to 20 ms."""
    copies, waiting = BackgroundCopyTimer(pool_of(device), device), None
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
        device.advance(MS)
    assert copies.split_ns == (exposed_ms * MS, (10 - exposed_ms) * MS)
