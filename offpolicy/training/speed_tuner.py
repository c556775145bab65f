"""Chooses the CPU threads of the learner (`threads.learner=auto`) and the mode (`collect.mode=auto`) while it trains.

Which setting is fastest depends on the size of the networks, on the cores of the machine and on the other programs that
run on them: with more threads than free cores an update takes many times as long, because OpenMP's threads wait for the
one that has no core. So each setting is tried once, in the iterations after the warm-up, and the fastest one stays.

An algorithm's results depend on the number of threads in their last bits. A checkpoint therefore holds the setting that
was chosen, and blocks are counted in iterations where these are short.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import NamedTuple

from offpolicy.output import counted
from offpolicy.timing.clock import MonotonicClock

ROUNDS = 5  # blocks of each setting; those of one round follow each other: a machine is faster now and slower then
BLOCK_ITERATIONS = 40  # iterations of a block
BLOCK_S = 1.0  # seconds after which a block ends early, once it has `FEWEST_ITERATIONS`
FEWEST_ITERATIONS = 2
SETTLING_ITERATIONS = 2  # first iterations of a block, which are not counted: threads start, caches are cold
WORTHWHILE = 1.03  # ratio by which more threads, or an overlap, must be faster
MOST_THREADS = 16  # threads beyond which the products of an update get no faster
NS_PER_S = 1e9


class Setting(NamedTuple):
    """The object of a trial. Of two that are as fast the one of the lesser `order` is kept."""

    threads: int
    mode: str

    @property
    def order(self) -> tuple[bool, int]:
        """Taking turns comes before an overlap, whose weights are older; then fewer threads come first."""
        return self.mode != "alternate", self.threads

    def __str__(self) -> str:
        return f"{counted(self.threads, 'thread')}, {self.mode}"


def thread_numbers(num_cores: int) -> tuple[int, ...]:
    """Returns the numbers of threads to try: the powers of two below the number of cores, and that number."""
    most = min(num_cores, MOST_THREADS)
    return tuple(sorted({most, *(2**power for power in range(most.bit_length()) if 2**power < most)}))


class SpeedTuner:
    """The trial of some settings: of fewer than two there is none."""

    def __init__(
        self,
        settings: Sequence[Setting],
        apply: Callable[[Setting], None],
        report: Callable[[Setting, str, Mapping[Setting, float]], None],
        num_updates: Callable[[], int],
        settled: Callable[[], bool] = lambda: True,
        now_ns: Callable[[], int] = MonotonicClock.now_ns,
    ) -> None:
        """`report` takes the choice, its reason, and the seconds per update with each setting.

        `settled` is called after every iteration from the end of the trial on, until it returns True.
        """
        self._settings, self._apply, self._report = settings, apply, report
        self._num_updates, self._settled, self._now_ns = num_updates, settled, now_ns
        self._steps = self._run()

    def run_if_due(self) -> None:
        """Counts an iteration, and changes the setting while the trial goes on."""
        next(self._steps, None)

    def _run(self) -> Iterator[None]:
        if len(self._settings) > 1:
            yield from self._try_all()
        while not self._settled():
            yield

    def _try_all(self) -> Iterator[None]:
        """Tries the settings, uses the fastest one and reports it. Is resumed after every iteration."""
        blocks: dict[Setting, list[float]] = {setting: [] for setting in self._settings}
        for _ in range(ROUNDS):
            for setting, seconds in blocks.items():
                self._apply(setting)
                for _ in range(SETTLING_ITERATIONS):
                    yield
                seconds.append((yield from self._block()))
        medians = {setting: statistics.median(seconds) for setting, seconds in blocks.items()}
        as_fast = [setting for setting, s in medians.items() if s <= WORTHWHILE * min(medians.values())]
        chosen = min(as_fast, key=lambda setting: setting.order)
        self._apply(chosen)
        tried = ", ".join(f"{setting}: {1e3 * s:.1f}" for setting, s in medians.items())
        self._report(chosen, f"fastest: {chosen} (ms per update with {tried})", medians)

    def _block(self) -> Generator[None, None, float]:
        """Returns the seconds per update of a block of iterations, without the longest ones, one of twenty.

        Those may evaluate or save. Not the median: where a collector takes the core of the learner's second thread now
        and then, most updates are faster with two threads and all of them together slower.
        """
        times_s: list[float] = []
        start_ns = now_ns = self._now_ns()
        while len(times_s) < FEWEST_ITERATIONS or (
            len(times_s) < BLOCK_ITERATIONS and now_ns - start_ns < BLOCK_S * NS_PER_S
        ):
            last_ns, updates = now_ns, self._num_updates()
            yield
            now_ns, made = self._now_ns(), self._num_updates() - updates
            if made:
                times_s.append((now_ns - last_ns) / made / NS_PER_S)
        return statistics.fmean(sorted(times_s)[: len(times_s) - math.ceil(len(times_s) / 20)])
