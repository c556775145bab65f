"""Offsets of threads in shared words: they grow while a phase is open, are paid in delays, and are credited."""

from __future__ import annotations

import pytest

from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.timing.virtual_speedup import (
    DelayedLedger,
    Experiment,
    ThreadDelays,
    VirtualTimes,
    interval_of,
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


@pytest.mark.parametrize(("ratios", "low", "high"), [((1.1, 1.3), None, None), ((1.1, 1.2, 1.3), -0.048, 0.448)])
def test_three_blocks_have_an_interval(ratios: tuple[float, ...], low: float | None, high: float | None) -> None:
    gain = interval_of(ratios)  # the t quantile of 2 degrees is 4.303
    assert gain.gain == pytest.approx(0.2)
    assert (gain.low, gain.high) == (pytest.approx(low, abs=0.005), pytest.approx(high, abs=0.005))
