"""Statistics over the windows of all learner ranks: least, mean and most of each phase, and the straggler.

The account of rank 0 alone does not show them: if rank 0 is the slow one, it waits for no other rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median_low

from offpolicy.logger.metrics import rank_key
from offpolicy.timing.phases import LearnerPhase
from offpolicy.timing.rates import NS_PER_MS, Elapsed, learner_active_ns

SLOW = 1.5  # factor of the median of the ranks above which a rank is slow
WARN_AFTER_S = 60.0  # seconds in which a rank is slow in every window before there is a warning


def working_ranks(windows: Sequence[Elapsed | None]) -> Mapping[int, Elapsed]:
    """Returns the windows with an iteration in them, by rank."""
    return {rank: window for rank, window in enumerate(windows) if window is not None and window.iterations > 0}


def rank_keys(windows: Sequence[Elapsed | None]) -> dict[str, float]:
    """Returns the `rank/` keys of one window per rank; none with timing off.

    Ranks without an iteration in the window are left out; if no rank has one, only `rank/num` is known.
    """
    if all(window is None for window in windows):
        return {}
    working = working_ranks(windows)
    record: dict[str, float] = {}
    for phase in LearnerPhase if working else ():
        means_ms = [window.mean_ms(phase) for window in working.values()]
        record[rank_key(phase, "min")] = min(means_ms)
        record[rank_key(phase, "mean")] = fmean(means_ms)
        record[rank_key(phase, "max")] = max(means_ms)
    late = straggler(windows)
    return record | ({} if late is None else {"rank/straggler": late}) | {"rank/num": len(working)}


def straggler(windows: Sequence[Elapsed | None]) -> int | None:
    """Returns the rank that the others wait for; None where no rank has an iteration in the window."""
    working = working_ranks(windows).items()
    return least_waiting({rank: window.mean_ms(LearnerPhase.RANK_BARRIER) for rank, window in working})


def least_waiting(waits: Mapping[int, float]) -> int | None:
    """Returns the rank with the shortest wait: the others wait for it. Of equals the lowest; None without ranks."""
    return min(waits, key=lambda rank: (waits[rank], rank), default=None)


class StragglerWatch:
    """Warns once of a rank that has been slow in every window of a minute; again only after it has recovered."""

    def __init__(self) -> None:
        self._slow_since_s: dict[int, float] = {}
        self._warned: set[int] = set()

    def observe(self, windows: Sequence[Elapsed | None], wall_s: float) -> list[str]:
        """Returns the warnings due after one window per rank that ended at `wall_s`.

        A rank without an iteration in its window stays slow, or not slow, as it was.
        """
        # Work alone: no waits, no evaluation and checkpoints, which only rank 0 has.
        work_ms = {
            rank: learner_active_ns(window.phases_ns) / window.iterations / NS_PER_MS
            for rank, window in working_ranks(windows).items()
        }
        if len(work_ms) < 2:  # one rank alone delays no other
            return []
        # The low median: between two ranks the plain one is their mean, which the slower never exceeds by half
        # unless it takes three times as long as the other.
        median_ms = median_low(work_ms.values())
        warnings: list[str] = []
        for rank, ms in work_ms.items():
            if ms <= SLOW * median_ms:
                self._slow_since_s.pop(rank, None)
                self._warned.discard(rank)
                continue
            slow_s = wall_s - self._slow_since_s.setdefault(rank, wall_s)
            if slow_s >= WARN_AFTER_S and rank not in self._warned:
                self._warned.add(rank)
                warnings.append(
                    f"warning: learner rank {rank} has been slow for {slow_s:.0f} s:"
                    f" {ms:.1f} ms of its own per iteration, the median rank takes {median_ms:.1f} ms"
                )
        return warnings
