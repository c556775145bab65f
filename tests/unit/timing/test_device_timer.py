"""Device time of a learner on a simulated device: what is timed, whose a wait was, what never waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from offpolicy.timing import device_timer
from offpolicy.timing.device_events import UNTIMED, CudaEvent, EventPool
from offpolicy.timing.device_timer import (
    CAUGHT_UP_NS,
    BackgroundCopyTimer,
    DeviceTimer,
    StreamSync,
    make_device_timer,
)
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import DeviceSpan, LearnerPhase
from offpolicy.timing.time_account import NullLedger
from offpolicy.types import DeviceTotals
from tests.simulated_device import CUDA, MS, SimulatedDevice, SimulatedStream

TRAIN, H2D, SAMPLE = DeviceSpan.TRAIN, DeviceSpan.H2D, DeviceSpan.SAMPLE


def new_event() -> CudaEvent:
    return CudaEvent(CUDA)


class Iterations:
    """The loop's use of a device timer."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.device, self.ledger = device, Ledger(LearnerPhase, device)
        self.timer = DeviceTimer(StreamSync(CUDA), self.ledger, new_event, device)
        self.ledger.end_warmup()

    def run(self, train_ns: int, launch_ns: int = 0, copy_ns: int = 0, sample_ns: int = 0) -> None:
        """Rows are drawn and copied on the device, updates launched in `launch_ns`, and everything is waited for."""
        phase, span = self.ledger.phase, self.timer.span
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


def totals_of(timer: DeviceTimer) -> DeviceTotals:
    totals = timer.totals()
    assert totals is not None
    return totals


def test_updates_copies_and_draws_are_timed_on_the_device(device: SimulatedDevice) -> None:
    iterations = Iterations(device)
    for _ in range(3):
        iterations.run(train_ns=5 * MS, launch_ns=2 * MS, copy_ns=MS // 4, sample_ns=MS)
    assert iterations.timer.totals() == DeviceTotals(
        15 * MS, 3 * MS // 4, 0, 0, 3 * MS, iterations=3, launch_bound=0, dropped=0
    )


def test_a_device_that_has_caught_up_at_the_end_is_launch_bound(device: SimulatedDevice) -> None:
    iterations = Iterations(device)
    for launch_ns in (0, 2 * MS, 5 * MS - CAUGHT_UP_NS, 5 * MS - CAUGHT_UP_NS + 1, 9 * MS):
        iterations.run(train_ns=5 * MS, launch_ns=launch_ns)
    totals = totals_of(iterations.timer)
    assert (totals.iterations, totals.launch_bound) == (5, 2)


def test_timing_waits_only_where_the_loop_waits(device: SimulatedDevice) -> None:
    iterations = Iterations(device)
    for _ in range(10):
        iterations.run(train_ns=MS, sample_ns=MS)
    assert (device.calls["synchronize"], device.calls["event"]) == (10, 0)


def test_events_are_reused(device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[CudaEvent] = []
    monkeypatch.setattr(f"{__name__}.new_event", lambda: made.append(CudaEvent(CUDA)) or made[-1])
    iterations = Iterations(device)
    for _ in range(100):
        iterations.run(train_ns=MS)
    assert (len(made), device.calls["record"]) == (7, 700)


@pytest.mark.parametrize("part", ["sample", "copy", "train"])
def test_a_delay_on_the_device_is_a_delay_of_its_phase_and_of_no_other(part: str) -> None:
    """Two milliseconds of launches run beside draws and copies; 4 ms more of one of them are 4 ms more of its phase."""
    phases = {"sample": LearnerPhase.REPLAY_SAMPLE, "copy": LearnerPhase.H2D, "train": LearnerPhase.TRAIN}
    spent = []
    for more_ns in (0, 4 * MS):
        with pytest.MonkeyPatch.context() as patch, SimulatedDevice().installed(patch) as device:
            iterations = Iterations(device)
            lengths = {"sample_ns": 3 * MS, "copy_ns": MS, "train_ns": 10 * MS}
            lengths[f"{part}_ns"] += more_ns
            iterations.run(launch_ns=2 * MS, **lengths)
            spent.append(dict(zip(phases, iterations.phases_ms(*phases.values()), strict=True)))
    # Before the wait of 12 ms the host has launched for 2 ms, behind which the device drew rows.
    assert spent[0] == {"sample": 1.0, "copy": 1.0, "train": 12.0}
    assert spent[1] == {**spent[0], part: spent[0][part] + 4.0}


def test_without_the_split_of_the_wait_a_slow_draw_would_look_like_a_slow_update(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_timer, "QUEUED_BEFORE_TRAIN", {})
    iterations = Iterations(device)
    iterations.run(train_ns=MS, sample_ns=20 * MS)
    assert iterations.phases_ms(LearnerPhase.REPLAY_SAMPLE, LearnerPhase.TRAIN) == [0.0, 21.0]


def test_draws_that_end_behind_the_launches_stay_where_they_are(device: SimulatedDevice) -> None:
    iterations = Iterations(device)
    iterations.run(train_ns=10 * MS, launch_ns=8 * MS, sample_ns=3 * MS)
    assert iterations.phases_ms(LearnerPhase.REPLAY_SAMPLE, LearnerPhase.TRAIN) == [0.0, 13.0]


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
            self._timer.wait()
            self._ledger.insert(LearnerPhase.PARAM_SYNC, 5 * MS)
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
    return totals_of(iterations.timer)


@pytest.mark.parametrize("waits", ["twice", "once", "later"])
def test_the_exchange_and_the_wait_for_other_ranks_are_not_device_time_of_the_update(
    device: SimulatedDevice, waits: str
) -> None:
    late_ns = 30 * MS if waits == "twice" else 0
    totals = update_with_exchange(device, kernels_ns=8 * MS, launch_ns=2 * MS, late_ns=late_ns, waits=waits)
    assert totals.train_ns == 4 * (8 * MS + 50_000)


@pytest.mark.parametrize("waits", ["twice", "once", "later"])
@pytest.mark.parametrize(("kernels_ns", "launch_ns", "share"), [(8 * MS, 2 * MS, 0.0), (MS, 9 * MS, 1.0)])
def test_several_ranks_are_launch_bound_by_their_gradients_and_not_by_what_is_left_after_the_exchange(
    device: SimulatedDevice, waits: str, kernels_ns: int, launch_ns: int, share: float
) -> None:
    totals = update_with_exchange(device, kernels_ns=kernels_ns, launch_ns=launch_ns, late_ns=0, waits=waits)
    assert totals.launch_bound / totals.iterations == share


def test_draws_before_an_exchange_keep_to_their_part_of_the_wait_for_both(device: SimulatedDevice) -> None:
    """Draws of 2 ms end as the host, after 2 ms of launches, begins to wait for the update and the collective."""
    iterations = Iterations(device)
    peers = Peers(iterations, late_ns=0, waits="once")
    for _ in range(4):
        with iterations.ledger.phase(LearnerPhase.REPLAY_SAMPLE), iterations.timer.span(DeviceSpan.SAMPLE):
            device.work(2 * MS)
        with iterations.ledger.phase(LearnerPhase.TRAIN):
            with iterations.timer.span(TRAIN):
                device.work(MS)
                device.advance(2 * MS)
                with iterations.timer.outside_train():
                    peers.average()
            iterations.timer.end_update()
    moved_ms, train_ms, sync_ms = iterations.phases_ms(
        LearnerPhase.REPLAY_SAMPLE, LearnerPhase.TRAIN, LearnerPhase.PARAM_SYNC
    )
    assert (moved_ms, train_ms, sync_ms) == (0.0, 4 * 3.0, 4 * 5.0)


@pytest.mark.parametrize(("looks_at_all", "launch_bound"), [(True, 0), (False, 4)])
def test_a_timer_that_looks_at_the_last_part_only_calls_every_rank_launch_bound(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, looks_at_all: bool, launch_bound: int
) -> None:
    """The host waits for gradients of 8 ms inside the exchange, without the timer."""
    behind_ns = device_timer._behind_ns
    if not looks_at_all:
        monkeypatch.setattr(device_timer, "_behind_ns", lambda parts, *end: behind_ns(parts[-1:], *end))
    monkeypatch.setattr(Peers, "average", lambda peers: peers._device.default.synchronize())
    totals = update_with_exchange(device, kernels_ns=8 * MS, launch_ns=2 * MS, late_ns=0, waits="later")
    assert (totals.iterations, totals.launch_bound) == (4, launch_bound)


def test_the_sampling_that_a_rank_waits_for_before_its_exchange_is_not_the_updates(device: SimulatedDevice) -> None:
    iterations = Iterations(device)
    with iterations.ledger.phase(LearnerPhase.REPLAY_SAMPLE), iterations.timer.span(SAMPLE):
        device.work(6 * MS)
    with iterations.ledger.phase(LearnerPhase.TRAIN):
        with iterations.timer.span(TRAIN):
            device.work(3 * MS)
            with iterations.timer.outside_train():
                Peers(iterations, late_ns=0, waits="twice").average()
        iterations.timer.end_update()
    iterations.ledger.close()
    phases = LearnerPhase.REPLAY_SAMPLE, LearnerPhase.TRAIN, LearnerPhase.PARAM_SYNC
    assert iterations.phases_ms(*phases) == [6.0, 3.0, 5.0]


@pytest.mark.parametrize(
    ("waits_from_ms", "waits_until_ms", "exposed_ms"),
    [(None, None, 0), (0, 30, 10), (10, 30, 10), (14, 30, 6), (5, 8, 0), (25, 30, 0), (19, 20, 1)],
)
def test_a_background_copy_is_exposed_while_the_learner_waits(
    device: SimulatedDevice, waits_from_ms: int | None, waits_until_ms: int | None, exposed_ms: int
) -> None:
    """The copy lasts from 10 to 20 ms."""
    copies, waiting = BackgroundCopyTimer(EventPool(new_event, device), device), None
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


def test_exposed_and_hidden_copies_are_all_copies_and_shares_of_device_time(device: SimulatedDevice) -> None:
    """On the host a copy seems twice as long as on the device: only its share comes from there."""
    timer = Iterations(device).timer
    background = timer.background_copies()
    assert background is not None
    for timed in (background, timer.span(H2D)):
        with timed:
            device.work(10 * MS)
        device.default.synchronize()
    device.advance(20 * MS)
    with background.learner_waiting():
        device.advance(10 * MS)
        background.split_finished()
    timer.end_update()
    totals = totals_of(timer)
    assert (totals.h2d_ns, totals.h2d_hidden_ns) == (10 * MS + 2 * MS, 8 * MS)


def test_the_copies_of_all_threads_and_those_that_were_not_timed_add_up(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceTimer, "_new_pool", lambda self, _: EventPool(new_event, device, num_pairs=1))
    timer = Iterations(device).timer
    for count in (1, 2):
        copies = timer.background_copies()
        assert copies is not None
        for _ in range(count):  # the second one finds no pair of events
            with copies:
                device.work(10 * MS)
        device.default.synchronize()
        copies.split_finished()
    totals = totals_of(timer)
    assert (totals.h2d_hidden_ns, totals.dropped) == (20 * MS, 1)


@pytest.mark.parametrize(("name", "is_enabled"), [("cpu", True), ("cuda", False)])
def test_without_a_device_or_timing_nothing_is_timed(
    name: str, is_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StreamSync, "wait", lambda _: waits.append(1))
    waits: list[int] = []
    device_sync = StreamSync(torch.device(name))
    timer = make_device_timer(device_sync, NullLedger(), is_enabled=is_enabled, traces=lambda: pytest.fail("opened"))
    assert timer.span(TRAIN) is timer.span(H2D) is timer.outside_train() is UNTIMED
    timer.wait()
    timer.end_update()
    assert waits == [1, 1]
    assert timer.background_copies() is timer.totals() is None


def test_a_timer_of_a_device_times_it(device: SimulatedDevice) -> None:
    timer = make_device_timer(StreamSync(CUDA), NullLedger(), is_enabled=True)
    with timer.span(TRAIN):
        device.work(2 * MS)
    timer.end_update()
    assert totals_of(timer).train_ns == 2 * MS


@pytest.mark.parametrize(("yields_core", "call"), [(False, "synchronize"), (True, "blocking event")])
def test_a_wait_is_for_the_current_stream_and_gives_the_core_away_where_it_should(
    device: SimulatedDevice, yields_core: bool, call: str
) -> None:
    device_sync, copies = StreamSync(CUDA, yields_core=yields_core), SimulatedStream(device, "copies")
    device.work(30 * MS)
    with device.stream(copies):
        device.work(4 * MS)
        device_sync.wait()
    assert device.now_ns() == 4 * MS
    device_sync.wait()
    assert (device.now_ns(), device.calls[call]) == (30 * MS, 2)


@pytest.mark.parametrize("wait", [lambda _: None, lambda sync: torch.cuda.Stream(sync.device).synchronize()])
def test_a_wait_for_nothing_or_for_another_stream_is_found_out(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, wait: Callable[[StreamSync], None]
) -> None:
    monkeypatch.setattr(StreamSync, "wait", wait)
    iterations = Iterations(device)
    iterations.run(train_ns=5 * MS)
    assert totals_of(iterations.timer).train_ns == 0  # it is not over
    assert iterations.phases_ms(LearnerPhase.TRAIN) == [0.0]
