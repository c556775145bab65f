"""`timing.virtual_speedup`: what each phase would gain the run if it took less time, by experiments while it trains.

Blocks of about a second in which one phase is virtually faster (`timing/virtual_speedup.py`), in random order,
alternate with blocks in which none is. A gain is the ratio of a block's speed to the mean of the blocks before and
after it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import product
from typing import NamedTuple

import numpy as np

from offpolicy.timing.phases import LEARNER_PERIODIC, LearnerPhase
from offpolicy.timing.time_account import TimeAccount
from offpolicy.timing.virtual_speedup import BASELINE, Experiment, ThreadDelays
from offpolicy.training.speed_tuner import NoTuner, SpeedTuner

PERCENTS = (10, 25, 50)
BLOCK_NS, BLOCK_ITERATIONS = 1_000_000_000, 8  # of a block, at least
SETTLING_NS, SETTLING_ITERATIONS = 100_000_000, 3  # before a block: debts are paid, the sides find their lead
LEAST_SHARE = 0.02  # share of the wall that a phase must take in its thread to be tried

Gains = dict[str, dict[int, list[float]]]  # speed by phase and percentage, as ratios to the baseline


class Counts(NamedTuple):
    """Cumulative counts at the end of an iteration."""

    virtual_ns: int  # the clock from which the delays are subtracted
    updates: int
    env_steps: int
    paused_ns: int  # evaluations and checkpoints


class Block:
    """The iterations of one block."""

    def __init__(self, now_ns: int) -> None:
        self._begun_ns, self._iterations = now_ns, 0
        self._first: Counts | None = None

    def add(self, now_ns: int, counts: Counts) -> Counts | None:
        """Adds an iteration; returns what the block counted once it is full."""
        self._iterations += 1
        took_ns = now_ns - self._begun_ns
        if self._first is None:
            if self._iterations >= SETTLING_ITERATIONS and took_ns >= SETTLING_NS:
                self._begun_ns, self._iterations, self._first = now_ns, 0, counts
        elif self._iterations >= BLOCK_ITERATIONS and took_ns >= BLOCK_NS:
            return Counts(*(now - then for now, then in zip(counts, self._first, strict=True)))
        return None


class VirtualSpeedup:
    """The tuner of a run with virtual speed-up: `tuner` first chooses its setting, then that stays.

    `report` takes the env steps per second of the baseline and the gains until now, after every block.
    """

    def __init__(
        self,
        delays: ThreadDelays,
        ledger: TimeAccount,
        counts: Callable[[], tuple[int, int]],
        tuner: SpeedTuner | NoTuner,
        report: Callable[[float, Gains], None],
        rng: np.random.Generator,
    ) -> None:
        """`delays` are those of the calling thread; `counts` returns the updates and the env steps done."""
        self._delays, self._times, self._ledger, self._counts = delays, delays.times, ledger, counts
        self._tuner, self._report, self._rng, self._now_ns = tuner, report, rng, delays.now_ns
        self._base_steps, self._base_ns = 0, 0  # of all blocks of the baseline
        self._experiments = self._all_experiments()
        self._experiment = next(self._experiments)
        self._block = Block(self._now_ns())

    def run_if_due(self) -> None:
        """Counts an iteration, and begins the next block where that is due."""
        if self._tuner.is_trying:
            self._tuner.run_if_due()
            self._block = Block(self._now_ns())
            return
        now_ns = self._now_ns()
        paused_ns = self._ledger.total_ns(LEARNER_PERIODIC)
        counted = self._block.add(now_ns, Counts(now_ns - self._delays.offset_ns, *self._counts(), paused_ns))
        if counted is None:
            return
        if not counted.paused_ns:  # else the block is repeated
            if self._experiment == BASELINE:
                self._base_steps += counted.env_steps
                self._base_ns += counted.virtual_ns
            self._experiment = self._experiments.send(counted.updates / counted.virtual_ns)
            self._times.begin(self._experiment)
        self._block = Block(now_ns)

    def _all_experiments(self) -> Generator[Experiment, float, None]:
        """Yields the experiment of the next block and is sent its speed, without end."""
        yield BASELINE  # until the first updates are made
        begun_ns, times_ns = self._now_ns(), self._times.times_ns()
        before = yield BASELINE
        took_ns = self._now_ns() - begun_ns
        phases = [phase for phase, ns in self._times.times_ns().items() if ns - times_ns[phase] > LEAST_SHARE * took_ns]
        phases = phases or [str(LearnerPhase.TRAIN)]
        gains: Gains = {phase: {percent: [] for percent in PERCENTS} for phase in phases}
        pairs = list(product(phases, PERCENTS))
        while True:
            for index in self._rng.permutation(len(pairs)):
                phase, percent = pairs[index]
                speed = yield Experiment(phase, percent)
                after = yield BASELINE
                gains[phase][percent].append(2.0 * speed / (before + after))
                before = after
                self._report(1e9 * self._base_steps / self._base_ns, gains)
