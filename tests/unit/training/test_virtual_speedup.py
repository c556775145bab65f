"""The gains that experiments measure on simulated threads, beside those of the same pipeline with a faster phase."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase
from offpolicy.timing.virtual_speedup import CANDIDATES, DelayedLedger, ThreadDelays, VirtualTimes
from offpolicy.training.speed_tuner import NoTuner
from offpolicy.training.virtual_speedup import PERCENTS, Gains, VirtualSpeedup
from tests.fakes import FakeClock
from tests.simulated_threads import SimulatedThreads

MS = 1_000_000


@dataclass(frozen=True)
class Costs:
    """Milliseconds of each phase of a run, and the iterations that its collector may be ahead."""

    train: float
    env_step: float
    action_select: float = 1.0
    pack: float = 0.0  # on a thread of its own, one batch ahead; 0: there is none
    lead: int = 0

    def faster(self, phase: str, percent: int) -> Costs:
        """The same run with a phase that takes so much less time."""
        return replace(self, **{phase: getattr(self, phase) * (1.0 - percent / 100.0)})


class Run:
    """Learner, collector and packer of a run: who waits for whom is as in the real one; work is sleep."""

    def __init__(self, costs: Costs, *, is_measured: bool = True) -> None:
        self.costs, self.machine = costs, SimulatedThreads()
        self.steps = self.granted = self.updates = self.packed = self.requested = 0
        self.gains: Gains = {}
        self.warnings: list[str] = []
        self.base = 0.0
        threads = ("learner", "collector", "packer")
        self.times = VirtualTimes(memoryview(bytearray(VirtualTimes.nbytes(len(threads)))), threads)
        self.is_measured = is_measured

    def delays(self, thread: str) -> ThreadDelays:
        return ThreadDelays(self.times, thread, self.machine.now_ns, self.machine.sleep)

    def work(self, ledger: DelayedLedger, phase: LearnerPhase | CollectorPhase | PackerPhase, ms: float) -> None:
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
                self.requested = self.updates + 2
            with ledger.phase(LearnerPhase.COLLECTOR_WAIT):
                self.machine.wait(lambda: self.steps > self.updates)
            if self.costs.pack:
                with ledger.phase(LearnerPhase.REPLAY_BATCH_WAIT):
                    self.machine.wait(lambda: self.packed > self.updates)
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

    def pack(self) -> None:
        ledger = DelayedLedger(PackerPhase, self.delays("packer"), 0, clock=self.machine, has_histogram=False)
        while True:
            with ledger.phase(PackerPhase.REQUEST_WAIT):
                self.machine.wait(lambda: self.requested > self.packed)
            self.work(ledger, PackerPhase.PACK, self.costs.pack)
            self.packed += 1

    def report(self, base: float, gains: Gains) -> None:
        self.base, self.gains = base, gains

    def until(self, seconds: float) -> Run:
        sides = [self.learn, self.collect, *([self.pack] if self.costs.pack else [])]
        self.machine.run(sides, lambda: self.machine.now_ns() > seconds * 1e9)
        return self

    @property
    def steps_per_sec(self) -> float:
        return self.updates / (self.machine.now_ns() / 1e9)


RUNS = {
    "in turns": Costs(train=20, env_step=10),
    "in turns, learner short": Costs(train=4, env_step=30),
    "overlap, learner-bound": Costs(train=20, env_step=4, lead=1),
    "overlap, collector-bound": Costs(train=5, env_step=20, lead=1),
    "overlap, nearly balanced": Costs(train=20, env_step=14, lead=1),
    "overlap, packer-bound": Costs(train=10, env_step=4, pack=20, lead=1),
    "overlap, packer beside": Costs(train=20, env_step=4, pack=15, lead=1),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_gain_of_a_faster_phase_is_measured_before_it_is_made_faster(name: str) -> None:
    costs = RUNS[name]
    run = Run(costs).until(32 if costs.pack else 24)
    usual = Run(costs, is_measured=False).until(4).steps_per_sec
    assert run.base == pytest.approx(usual, rel=0.01)
    tried = [phase for phase in ("train", "env_step", "action_select", "pack") if getattr(costs, phase)]
    assert set(run.gains) >= set(tried)
    for phase in tried:
        for percent in PERCENTS:
            done = Run(costs.faster(phase, percent), is_measured=False).until(4).steps_per_sec / usual
            assert np.mean(run.gains[phase][percent]) == pytest.approx(done, rel=0.01), (phase, percent, done)


class Trying(NoTuner):
    """A tuner whose trial ends after so many iterations."""

    left = 40

    @property
    def is_trying(self) -> bool:  # type: ignore[override]
        return self.left > 0

    def run_if_due(self) -> None:
        self.left -= 1


class Iterations:
    """Iterations of 100 ms without any thread: which experiment each was in."""

    def __init__(self, tuner: NoTuner) -> None:
        self.clock, self.updates, self.paused_ns, self.warnings = FakeClock(), 0, 0, list[str]()
        self.times = VirtualTimes(memoryview(bytearray(VirtualTimes.nbytes(1))), ("learner",))
        ledger: Any = SimpleNamespace(total_ns=lambda phases: self.paused_ns)
        delays = ThreadDelays(self.times, "learner", self.clock.now_ns, self.clock.advance)
        counts, rng = lambda: (self.updates, self.updates), np.random.default_rng(0)
        self.speedup = VirtualSpeedup(
            delays, ledger, counts, tuner, lambda base, gains: None, self.warnings.append, rng
        )

    def until_an_experiment(self, pause_every: int = 0) -> int:
        """Returns the iterations before the first one, of which every so many evaluates for ten seconds."""
        for count in range(1, 1000):
            self.clock.advance(100 * MS)
            self.updates += 1
            if pause_every and self.updates % pause_every == 0:
                self.clock.advance(10_000 * MS)
                self.paused_ns += 10_000 * MS
            self.times.add_time("learner", CANDIDATES.index("train"), 90 * MS)
            self.speedup.run_if_due()
            if self.times.experiment:
                return count
        raise AssertionError("no experiment")


def test_no_experiment_begins_before_a_setting_is_chosen() -> None:
    assert Iterations(Trying()).until_an_experiment() == Iterations(NoTuner()).until_an_experiment() + Trying.left


def test_an_iteration_that_evaluates_and_those_in_which_the_run_settles_do_not_count() -> None:
    usual, often = Iterations(NoTuner()), Iterations(NoTuner())
    assert usual.until_an_experiment() == 2 * (3 + 10)  # blocks: iterations to settle in, and those of a second
    # Of five iterations three settle, one counts and one evaluates.
    assert often.until_an_experiment(pause_every=5) == 5 * 20 - 1
    assert often.warnings == []


def test_a_run_that_evaluates_before_it_has_settled_says_that_it_makes_no_experiment() -> None:
    run = Iterations(NoTuner())
    with pytest.raises(AssertionError, match="no experiment"):
        run.until_an_experiment(pause_every=4)
    (line,) = run.warnings
    assert "evaluations or checkpoints come too often" in line
