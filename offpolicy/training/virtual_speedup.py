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
MANY_PAUSES = 20  # evaluations and checkpoints in a row before each of which the run had not settled
UNSETTLED = (
    "timing.virtual_speedup=true: no experiment is made, because evaluations or checkpoints come too often;"
    " raise eval.every or checkpoint.every"
)
LEAST_SHARE = 0.02  # share of the wall that a phase must take in its thread to be tried

Gains = dict[str, dict[int, list[float]]]  # speed by phase and percentage, as ratios to the baseline


class Counts(NamedTuple):
    """Cumulative counts at the end of an iteration."""

    wall_ns: int
    virtual_ns: int  # the clock from which the delays are subtracted
    updates: int
    env_steps: int
    paused_ns: int  # evaluations and checkpoints


class Block:
    """The iterations of one block, but for those that evaluate or save, and those in which the run settles."""

    def __init__(self, start: Counts) -> None:
        self._last = self._settling_from = start
        self._num_settling, self._num_counted = SETTLING_ITERATIONS, 0
        self._counted = Counts(0, 0, 0, 0, 0)
        self.num_pauses = 0  # since an iteration was counted

    def add(self, counts: Counts) -> Counts | None:
        """Adds an iteration; returns what the block counted once it is full."""
        begun, self._last = self._last, counts
        if counts.paused_ns > begun.paused_ns:
            self._settling_from, self._num_settling = counts, SETTLING_ITERATIONS
            self.num_pauses += 1
        elif self._num_settling > 0 or begun.wall_ns - self._settling_from.wall_ns < SETTLING_NS:
            self._num_settling -= 1
        else:
            grown = zip(self._counted, counts, begun, strict=True)
            self._counted = Counts(*(total + now - then for total, now, then in grown))
            self._num_counted, self.num_pauses = self._num_counted + 1, 0
        is_full = self._num_counted >= BLOCK_ITERATIONS and self._counted.wall_ns >= BLOCK_NS
        return self._counted if is_full else None


class VirtualSpeedup:
    """The tuner of a run with virtual speed-up: `tuner` first chooses its setting, then that stays.

    `report` takes the env steps per second of the baseline and the gains until now, after every block.
    """

    def __init__(  # noqa: PLR0913  # what it delays, reads, follows and reports to
        self,
        delays: ThreadDelays,
        ledger: TimeAccount,
        counts: Callable[[], tuple[int, int]],
        tuner: SpeedTuner | NoTuner,
        report: Callable[[float, Gains], None],
        warn: Callable[[str], None],
        rng: np.random.Generator,
    ) -> None:
        """`delays` are those of the calling thread; `counts` returns the updates and the env steps done."""
        self._delays, self._times, self._ledger, self._counts = delays, delays.times, ledger, counts
        self._tuner, self._report, self._warn, self._rng = tuner, report, warn, rng
        self._base_steps, self._base_ns = 0, 0  # of all blocks of the baseline
        self._has_warned = False
        self._experiments = self._all_experiments()
        self._experiment = next(self._experiments)
        self._block = Block(self._read())

    def run_if_due(self) -> None:
        """Counts an iteration, and begins the next block where that is due."""
        if self._tuner.is_trying:
            self._tuner.run_if_due()
            self._block = Block(self._read())
            return
        counts = self._read()
        counted = self._block.add(counts)
        if counted is None:
            if self._block.num_pauses >= MANY_PAUSES and not self._has_warned:
                self._warn(UNSETTLED)
                self._has_warned = True
            return
        if self._experiment == BASELINE:
            self._base_steps += counted.env_steps
            self._base_ns += counted.virtual_ns
        self._experiment = self._experiments.send(counted.updates / counted.virtual_ns)
        self._times.begin(self._experiment)
        self._block = Block(counts)

    def _read(self) -> Counts:
        now_ns = self._delays.now_ns()
        paused_ns = self._ledger.total_ns(LEARNER_PERIODIC)
        return Counts(now_ns, now_ns - self._delays.offset_ns, *self._counts(), paused_ns)

    def _all_experiments(self) -> Generator[Experiment, float, None]:
        """Yields the experiment of the next block and is sent its speed, without end."""
        yield BASELINE  # until the first updates are made
        begun, times_ns = self._read(), self._times.times_ns()
        before = yield BASELINE
        now = self._read()
        took_ns = now.wall_ns - begun.wall_ns - (now.paused_ns - begun.paused_ns)
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
