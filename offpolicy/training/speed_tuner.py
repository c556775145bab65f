"""Chooses, while it trains, the CPU threads of the learner (`threads.learner=auto`) and the mode (`collect.mode=auto`).

Which setting is fastest depends on the size of the networks, on the cores of the machine and on the other programs that
run on them: with more threads than free cores an update takes many times as long, because OpenMP's threads wait for the
one that has no core. So the settings are tried: short blocks of iterations with each of them in turn, the fastest one
stays. The trial is repeated when the iterations have become slower or faster than they were, and from time to time,
because a core that has become free changes nothing for a learner that does not use it.

An algorithm's results depend on the number of threads in their last bits. A checkpoint therefore holds the setting that
was chosen and the iterations since then, and blocks are counted in iterations where these are short.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from offpolicy.number_text import counted
from offpolicy.timing.clock import MonotonicClock

BLOCK_ITERATIONS = 40  # iterations of a block
BLOCK_S = 1.0  # seconds after which a block ends early, once it has `FEWEST_ITERATIONS`
FEWEST_ITERATIONS = 2
SETTLING_ITERATIONS = 2  # first iterations of a block, which are not counted: threads start, caches are cold
ROUNDS, MOST_ROUNDS = 3, 12  # blocks of each setting in a trial, until the fastest one is known
HOPELESS = 1.25  # ratio to the fastest setting beyond which a setting is not tried again
WORTHWHILE = 1.03  # ratio by which more threads, or an overlap, must be faster
CHANGED = 1.2  # ratio of the time per update to that after the last trial, or its inverse, that calls for another one
CHANGED_BLOCKS = 3  # consecutive blocks in which it must have changed
URGENT = 3.0  # such a ratio at which a trial begins without the pause: mostly another program has a core
REPEATED = 20_000  # iterations after a trial at which it is repeated although nothing has changed
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 300.0  # least time between two trials; doubled when a trial changes nothing
MOST_THREADS = 16  # threads beyond which the products of an update get no faster


class Setting(NamedTuple):
    """The object of a trial. Of two that are as fast the one of the lesser `order` is kept."""

    threads: int
    mode: str

    @property
    def order(self) -> tuple[bool, int]:
        """Taking turns comes before an overlap, whose weights are older; then fewer threads come first."""
        return self.mode != "alternate", self.threads


Trial = Generator[Setting, float, Setting]


@dataclass(slots=True)
class Choice:
    """The result of the last trial, for the checkpoint."""

    setting: Setting | None = None  # None before the first trial has ended
    iterations: int = 0  # since then


class NoTuner:
    """The tuner of a learner whose settings are fixed."""

    is_trying = False

    def run_if_due(self) -> None:
        """Does nothing."""


def thread_numbers(num_cores: int) -> tuple[int, ...]:
    """Returns the numbers of threads to try: the powers of two below the number of cores, and that number."""
    most = min(num_cores, MOST_THREADS)
    return tuple(sorted({most, *(2**power for power in range(most.bit_length()) if 2**power < most)}))


def trial(settings: Sequence[Setting]) -> Trial:
    """Yields the setting of the next block, is sent its seconds per update, and returns the setting to keep.

    That is the first one in their `order` that is not slower than the fastest one by more than `WORTHWHILE`. Blocks of
    one round follow each other, so that they are compared in pairs: a machine is faster now and slower then.
    """
    seconds: dict[Setting, list[float]] = {setting: [] for setting in settings}
    left = list(settings)
    for num_rounds in range(1, MOST_ROUNDS + 1):
        for setting in left:
            seconds[setting].append((yield setting))
        shortest = {setting: min(seconds[setting]) for setting in left}  # whatever disturbs a block lengthens it
        left = [setting for setting in left if shortest[setting] <= HOPELESS * min(shortest.values())]
        if num_rounds >= ROUNDS:
            left = _undecided(left, seconds)
        if len(left) == 1:
            break
    fastest = min(left, key=lambda setting: statistics.median(seconds[setting]))
    ratios = {setting: _ratios(seconds[setting], seconds[fastest]) for setting in left}
    as_fast = [setting for setting in left if statistics.median(ratios[setting]) <= WORTHWHILE]
    return min(as_fast, key=lambda setting: setting.order)


def _undecided(left: Sequence[Setting], seconds: Mapping[Setting, Sequence[float]]) -> list[Setting]:
    """Returns the settings that may be the one to keep, by two standard errors of their ratio to the fastest one."""
    fastest = min(left, key=lambda setting: statistics.median(seconds[setting]))
    bounds = {setting: _bounds(seconds[setting], seconds[fastest]) for setting in left}
    sure = min(s.order for s in left if bounds[s][1] <= math.log(WORTHWHILE))  # a later one is not kept
    most = {s: math.log(WORTHWHILE) if s.order < fastest.order else 0.0 for s in left}
    return [s for s in left if s.order <= sure and bounds[s][0] <= most[s]]


def _bounds(ones: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """The logarithm of the ratio of pairs lies between these."""
    logs = [math.log(ratio) for ratio in _ratios(ones, others)]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    return mean - 2.0 * error, mean + 2.0 * error


def _ratios(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(ones, others, strict=True)]


def usual_s(times_s: Sequence[float]) -> float:
    """Returns the mean of iterations without the longest ones, one of twenty: those may evaluate or save.

    Not their median: where a collector takes the core of the learner's second thread now and then, most updates are
    faster with two threads and all of them together slower.
    """
    usual = sorted(times_s)[: len(times_s) - math.ceil(len(times_s) / 20)] or times_s
    return statistics.fmean(usual)


class Block:
    """The iterations of one block: their seconds per update."""

    def __init__(self, start_s: float) -> None:
        self._start_s, self._times_s = start_s, list[float]()

    def add(self, seconds: float, now_s: float) -> float | None:
        """Adds the seconds per update of an iteration; returns what is usual once the block is full."""
        self._times_s.append(seconds)
        count = len(self._times_s) - SETTLING_ITERATIONS
        is_full = count >= BLOCK_ITERATIONS or (count >= FEWEST_ITERATIONS and now_s - self._start_s >= BLOCK_S)
        return usual_s(self._times_s[SETTLING_ITERATIONS:]) if is_full else None


class SpeedTuner:
    """The tuner of a learner that is alone."""

    def __init__(
        self,
        settings: Sequence[Setting],
        apply: Callable[[Setting], None],
        report: Callable[[Setting, str, Mapping[Setting, float]], None],
        num_updates: Callable[[], int],
        choice: Choice,
        now_ns: Callable[[], int] = MonotonicClock.now_ns,
    ) -> None:
        """`report` takes a choice, its reason, and the seconds per update with what was tried.

        `choice` is a checkpoint's, or a trial makes it.
        """
        self._settings, self._apply, self._report = tuple(settings), apply, report
        self._num_updates, self._choice, self._now_ns = num_updates, choice, now_ns
        self._updates, self._last_s = num_updates(), now_ns() / 1e9
        self._reference_s: float | None = None  # seconds per update after the last trial
        self._num_changed, self._pause_s, self._rested_s = 0, FIRST_PAUSE_S, self._last_s
        self._trial: Trial | None = None
        self._block = Block(self._last_s)
        if choice.setting is None:
            self._begin_trial()
        else:
            self._use(choice.setting)

    @property
    def is_trying(self) -> bool:
        """True while a trial goes on."""
        return self._trial is not None

    def run_if_due(self) -> None:
        """Counts an iteration, and changes the setting where that is due."""
        now_s, updates = self._now_ns() / 1e9, self._num_updates()
        made, taken_s = updates - self._updates, now_s - self._last_s
        self._updates, self._last_s = updates, now_s
        if made == 0:
            return
        seconds = self._block.add(taken_s / made, now_s)
        if self._trial is not None:
            if seconds is not None:
                self._continue_trial(self._trial, seconds)
            return
        self._choice.iterations += 1
        if self._choice.iterations >= REPEATED or (seconds is not None and self._has_changed(seconds)):
            self._begin_trial()
        elif seconds is not None:
            self._block = Block(now_s)

    def _begin_trial(self) -> None:
        self._seconds: dict[Setting, list[float]] = {setting: [] for setting in self._settings}  # of its blocks
        self._trial = trial(self._settings)
        self._use(next(self._trial))

    def _continue_trial(self, running: Trial, seconds: float) -> None:
        self._seconds[self._in_use].append(seconds)
        try:
            self._use(running.send(seconds))
        except StopIteration as end:
            self._trial = None
            self._conclude(end.value)

    def _conclude(self, chosen: Setting) -> None:
        """Uses the setting that a trial chose, and reports it if it is another one than before."""
        before = self._choice.setting
        medians = {setting: statistics.median(seconds) for setting, seconds in self._seconds.items()}
        if chosen != before:
            tried = ", ".join(f"{_text(setting)}: {1e3 * s:.1f}" for setting, s in medians.items())
            instead = "" if before is None else f" instead of {_text(before)}"
            self._report(chosen, f"fastest: {_text(chosen)}{instead} (ms per update with {tried})", medians)
        self._pause_s = min(2.0 * self._pause_s, LONGEST_PAUSE_S) if chosen == before else FIRST_PAUSE_S
        self._choice.setting, self._choice.iterations = chosen, 0
        self._reference_s, self._rested_s, self._num_changed = medians[chosen], self._last_s, 0
        self._use(chosen)

    def _has_changed(self, seconds: float) -> bool:
        """True if another trial is due.

        Updates have long been slower or faster than after the last one, and the pause is over or they are much slower.
        """
        if self._reference_s is None:  # the setting is a checkpoint's
            self._reference_s = seconds
        ratio = seconds / self._reference_s
        self._num_changed = self._num_changed + 1 if not 1.0 / CHANGED <= ratio <= CHANGED else 0
        is_pause_over = self._last_s - self._rested_s >= self._pause_s
        return self._num_changed >= CHANGED_BLOCKS and (is_pause_over or ratio >= URGENT)

    def _use(self, setting: Setting) -> None:
        self._in_use = setting
        self._apply(setting)
        self._block = Block(self._last_s)


def _text(setting: Setting) -> str:
    return f"{counted(setting.threads, 'thread')}, {setting.mode}"
