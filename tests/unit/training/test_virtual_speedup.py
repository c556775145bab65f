"""The gains that experiments measure on simulated threads, beside those of the same pipeline with a faster phase."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.timing.virtual_speedup import DelayedLedger, ThreadDelays, VirtualTimes
from offpolicy.training.speed_tuner import NoTuner
from offpolicy.training.virtual_speedup import PERCENTS, Gains, VirtualSpeedup
from tests.simulated_threads import SimulatedThreads

MS = 1_000_000


@dataclass(frozen=True)
class Costs:
    """Milliseconds of each phase of a run, and the iterations that its collector may be ahead."""

    train: float
    env_step: float
    action_select: float = 1.0
    lead: int = 0

    def faster(self, phase: str, percent: int) -> Costs:
        """The same run with a phase that takes so much less time."""
        return replace(self, **{phase: getattr(self, phase) * (1.0 - percent / 100.0)})


class Run:
    """Learner and collector of a run: who waits for whom is as in the real one; work is sleep."""

    def __init__(self, costs: Costs, *, is_measured: bool = True) -> None:
        self.costs, self.machine = costs, SimulatedThreads()
        self.steps = self.granted = self.updates = 0
        self.gains: Gains = {}
        self.warnings: list[str] = []
        self.base = 0.0
        threads = ("learner", "collector")
        self.times = VirtualTimes(memoryview(bytearray(VirtualTimes.nbytes(len(threads)))), threads)
        self.is_measured = is_measured

    def delays(self, thread: str) -> ThreadDelays:
        return ThreadDelays(self.times, thread, self.machine.now_ns, self.machine.sleep)

    def work(self, ledger: DelayedLedger, phase: LearnerPhase | CollectorPhase, ms: float) -> None:
        with ledger.phase(phase):
            self.machine.sleep(round(ms * MS))

    def learn(self) -> None:
        delays = self.delays("learner")
        ledger = DelayedLedger(LearnerPhase, delays, 0, clock=self.machine)
        counts, rng = lambda: (self.updates, self.steps), np.random.default_rng(0)
        tuner = VirtualSpeedup(delays, ledger, counts, NoTuner(), self.report, self.warnings.append, rng)
        while True:
            with ledger.phase(LearnerPhase.SYNC_COORDINATION):
                self.granted = self.updates + 1 + self.costs.lead
            with ledger.phase(LearnerPhase.COLLECTOR_WAIT):
                self.machine.wait(lambda: self.steps > self.updates)
            self.work(ledger, LearnerPhase.TRAIN, self.costs.train)
            self.updates += 1
            with ledger.phase(LearnerPhase.LOG):
                if self.is_measured:
                    tuner.run_if_due()
            ledger.close()

    def collect(self) -> None:
        ledger = DelayedLedger(CollectorPhase, self.delays("collector"), 0, clock=self.machine)
        while True:
            with ledger.phase(CollectorPhase.LEARNER_WAIT):
                self.machine.wait(lambda: self.granted > self.steps)
            self.work(ledger, CollectorPhase.ACTION_SELECT, self.costs.action_select)
            self.work(ledger, CollectorPhase.ENV_STEP, self.costs.env_step)
            with ledger.phase(CollectorPhase.HANDSHAKE):
                self.steps += 1
            ledger.close()

    def report(self, base: float, gains: Gains) -> None:
        self.base, self.gains = base, gains

    def until(self, seconds: float) -> Run:
        self.machine.run([self.learn, self.collect], lambda: self.machine.now_ns() > seconds * 1e9)
        return self

    @property
    def steps_per_sec(self) -> float:
        return self.updates / (self.machine.now_ns() / 1e9)


def test_the_gain_of_a_faster_phase_is_measured_before_it_is_made_faster() -> None:
    costs = Costs(train=20, env_step=10)  # in turns
    run = Run(costs).until(24)
    usual = Run(costs, is_measured=False).until(4).steps_per_sec
    assert run.base == pytest.approx(usual, rel=0.01)
    tried = ["train", "env_step", "action_select"]
    assert set(run.gains) >= set(tried)
    for phase in tried:
        for percent in PERCENTS:
            done = Run(costs.faster(phase, percent), is_measured=False).until(4).steps_per_sec / usual
            assert np.mean(run.gains[phase][percent]) == pytest.approx(done, rel=0.01), (phase, percent, done)
