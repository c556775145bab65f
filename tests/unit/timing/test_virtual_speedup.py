"""Offsets of threads in shared words: they grow while a phase is open, are paid in delays, and are credited."""

from __future__ import annotations

import pytest

from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.timing.virtual_speedup import (
    BASELINE,
    BLOCKING,
    CANDIDATES,
    DelayedLedger,
    Experiment,
    ThreadDelays,
    VirtualTimes,
    interval_of,
    wait_ns,
)
from tests.fakes import FakeClock

MS = 1_000_000


class Pair:
    """The ledgers of a learner and a collector on one clock; a delay advances it."""

    def __init__(self) -> None:
        self.clock = FakeClock(10**15)  # a machine that is up for long: offsets are small differences of large numbers
        self.times = VirtualTimes(memoryview(bytearray(VirtualTimes.nbytes(2))), ("learner", "collector"))
        self.delays = {
            name: ThreadDelays(self.times, name, self.clock.now_ns, self.clock.advance)
            for name in ("learner", "collector")
        }
        opened_ns = self.clock.now_ns()
        self.learner = DelayedLedger(LearnerPhase, self.delays["learner"], opened_ns, clock=self.clock)
        self.collector = DelayedLedger(CollectorPhase, self.delays["collector"], opened_ns, clock=self.clock)

    def offsets_ms(self) -> tuple[float, float]:
        return self.delays["learner"].offset_ns / MS, self.delays["collector"].offset_ns / MS


def test_a_faster_phase_is_owed_by_the_other_thread_while_it_is_open() -> None:
    pair = Pair()
    pair.times.begin(Experiment(LearnerPhase.TRAIN, 25))
    with pair.learner.phase(LearnerPhase.TRAIN):
        pair.clock.advance(8 * MS)
        assert pair.offsets_ms() == (2.0, 0.0)
    pair.clock.advance(8 * MS)
    assert pair.offsets_ms() == (2.0, 0.0)


def test_a_debt_is_paid_before_the_next_phase_and_is_a_wait_in_the_account() -> None:
    pair = Pair()
    pair.times.begin(Experiment(LearnerPhase.TRAIN, 50))
    with pair.learner.phase(LearnerPhase.TRAIN):
        pair.clock.advance(8 * MS)
    with pair.collector.phase(CollectorPhase.ENV_STEP):
        pair.clock.advance(MS)
    assert pair.offsets_ms() == (4.0, 4.0)
    pair.collector.end_warmup()
    account = pair.collector.account()
    assert sum(account.phases_ns.values()) == account.wall_ns
    assert account.warmup_ns == 13 * MS


def test_delays_are_charged_to_waits() -> None:
    pair = Pair()
    pair.learner.end_warmup()
    pair.times.begin(Experiment(CollectorPhase.ENV_STEP, 50))
    with pair.collector.phase(CollectorPhase.ENV_STEP):
        pair.clock.advance(8 * MS)
    with pair.learner.phase(LearnerPhase.TRAIN):
        pair.clock.advance(MS)
    phases_ns = {phase: ns for phase, ns in pair.learner.account().phases_ns.items() if ns}
    assert phases_ns == {"other": 8 * MS, "sync_coordination": 4 * MS, "train": MS}


def test_a_thread_that_waited_is_credited() -> None:
    pair = Pair()
    pair.times.begin(Experiment(LearnerPhase.TRAIN, 50))
    with pair.collector.phase(CollectorPhase.LEARNER_WAIT), pair.learner.phase(LearnerPhase.TRAIN):
        pair.clock.advance(8 * MS)
    begun_ns = pair.clock.now_ns()
    with pair.collector.phase(CollectorPhase.ENV_STEP):
        assert pair.offsets_ms() == (4.0, 4.0)
        assert pair.clock.now_ns() == begun_ns


def test_a_debt_that_grows_is_paid_although_reading_the_clock_takes_longer_than_what_is_owed() -> None:
    """8 us owed, 3 us for each reading: were they not counted, the thread would pay until the other's phase ends."""
    pair = Pair()

    def slow_now_ns() -> int:
        pair.clock.advance(3_000)
        return pair.clock.now_ns()

    waits: list[int] = []

    def wait(ns: int) -> None:
        waits.append(ns)
        assert len(waits) < 20, "the debt grows as fast as it is paid"
        pair.clock.advance(ns)

    learner = ThreadDelays(pair.times, "learner", slow_now_ns, wait)
    pair.times.begin(Experiment(CollectorPhase.ENV_STEP, 50))
    with pair.collector.phase(CollectorPhase.ENV_STEP):
        pair.clock.advance(16_000)
        learner.pay()
        owed, paid = pair.delays["collector"].offset_ns, learner.offset_ns
    assert owed - paid == pytest.approx(0, abs=10_000)  # what it grew meanwhile


def test_an_experiment_that_ends_meanwhile_leaves_an_open_phase_its_own_percentage() -> None:
    pair = Pair()
    pair.times.begin(Experiment(CollectorPhase.ENV_STEP, 50))
    with pair.collector.phase(CollectorPhase.ENV_STEP):
        pair.clock.advance(4 * MS)
        pair.times.begin(BASELINE)
        pair.clock.advance(4 * MS)
        assert pair.offsets_ms() == (0.0, 4.0)
    assert pair.offsets_ms() == (0.0, 4.0)


def test_the_time_of_candidates_is_counted() -> None:
    pair = Pair()
    with pair.learner.phase(LearnerPhase.TRAIN):
        pair.clock.advance(3 * MS)
    with pair.learner.phase(LearnerPhase.LOG):
        pair.clock.advance(3 * MS)
    assert {phase: ns for phase, ns in pair.times.times_ns().items() if ns} == {"train": 3 * MS}


def test_the_time_of_a_candidate_is_that_of_the_thread_that_spent_most_in_it() -> None:
    pair = Pair()
    for thread, ms in (("learner", 3), ("collector", 5)):
        pair.times.add_time(thread, CANDIDATES.index(CollectorPhase.ENV_STEP), ms * MS)
    assert pair.times.times_ns()["env_step"] == 5 * MS


def test_an_offset_below_zero_by_the_clock_of_another_core_is_none() -> None:
    """The thread has published that it is at 50 % from now on; its reader's clock is 2 us behind."""
    pair = Pair()
    now_ns = pair.clock.now_ns()
    pair.times.publish("learner", 0, now_ns, 50)
    assert pair.times.offset_ns("learner", lambda: now_ns - 2_000) == 0


def test_every_experiment_has_a_code_of_its_own() -> None:
    codes = {Experiment(phase, percent).code for phase in CANDIDATES for percent in (10, 25, 50)}
    assert len(codes) == 3 * len(CANDIDATES)
    assert BASELINE.code == 0
    assert len({*CANDIDATES, *BLOCKING}) == len(CANDIDATES) + len(BLOCKING), "a name is one phase of one thread"


@pytest.mark.parametrize(("ratios", "low", "high"), [((1.1, 1.3), None, None), ((1.1, 1.2, 1.3), -0.048, 0.448)])
def test_three_blocks_have_an_interval(ratios: tuple[float, ...], low: float | None, high: float | None) -> None:
    gain = interval_of(ratios)  # the t quantile of 2 degrees is 4.303
    assert gain.gain == pytest.approx(0.2)
    assert (gain.low, gain.high) == (pytest.approx(low, abs=0.005), pytest.approx(high, abs=0.005))


def test_a_wait_is_not_shorter_than_asked_for() -> None:
    from offpolicy.timing.clock import MonotonicClock

    begun_ns = MonotonicClock.now_ns()
    wait_ns(200_000)
    assert MonotonicClock.now_ns() - begun_ns >= 200_000
