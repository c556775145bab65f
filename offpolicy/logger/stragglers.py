"""What the windows of all learner ranks say together: least, mean and most of each phase, and who is late.

Rank 0 alone cannot tell: where it is the slow one, it waits for nobody and its own account looks healthy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median_low

from offpolicy.logger.metrics import rank_key
from offpolicy.timing.phases import LearnerPhase
from offpolicy.timing.rates import NS_PER_MS, Elapsed, learner_active_ns

SLOW = 1.5  # times the median of the ranks: from there on a rank holds the others up
SPELL_S = 60.0  # for so long, before a person is told


def working_ranks(windows: Sequence[Elapsed | None]) -> Mapping[int, Elapsed]:
    """The windows with an iteration in them, by rank."""
    return {rank: window for rank, window in enumerate(windows) if window is not None and window.iterations > 0}


def rank_keys(windows: Sequence[Elapsed | None]) -> dict[str, float]:
    """The `rank/` keys of one window per rank; none when timing is off.

    Ranks without an iteration in the window are left out; where there is no other, only `rank/num` is known.
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
    """The rank that the others wait for; None where no rank has an iteration in the window."""
    working = working_ranks(windows).items()
    return least_waiting({rank: window.mean_ms(LearnerPhase.RANK_BARRIER) for rank, window in working})


def least_waiting(waits: Mapping[int, float]) -> int | None:
    """Of waits by rank, the rank with the shortest: the others wait for it. Of equals the lowest; None of none."""
    return min(waits, key=lambda rank: (waits[rank], rank), default=None)


class StragglerWatch:
    """Tells, once per spell, of a rank that has held the others up in every window of a minute."""

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}
        self._told: set[int] = set()

    def observe(self, windows: Sequence[Elapsed | None], wall_s: float) -> list[str]:
        """The warnings due after one window per rank that ended at `wall_s`.

        A window without an iteration of a rank says nothing about it: it neither begins nor ends a spell.
        """
        own_ms = {rank: _own_ms(window) for rank, window in working_ranks(windows).items()}
        if len(own_ms) < 2:  # one alone holds nobody up
            return []
        # The low median: between two ranks the plain one is their mean, which the slower never exceeds by half
        # unless it takes three times as long as the other.
        median_ms = median_low(own_ms.values())
        warnings = [self._judge(rank, ms, median_ms, wall_s) for rank, ms in own_ms.items()]
        return [warning for warning in warnings if warning]

    def _judge(self, rank: int, own_ms: float, median_ms: float, wall_s: float) -> str:
        """The warning about this rank, or ''."""
        if own_ms <= SLOW * median_ms:
            self._since_s.pop(rank, None)
            self._told.discard(rank)
            return ""
        slow_s = wall_s - self._since_s.setdefault(rank, wall_s)
        if slow_s < SPELL_S or rank in self._told:
            return ""
        self._told.add(rank)
        return (
            f"warning: learner rank {rank} has been slow for {slow_s:.0f} s:"
            f" {own_ms:.1f} ms of its own per iteration, the median rank takes {median_ms:.1f} ms"
        )


def _own_ms(window: Elapsed) -> float:
    """Mean time per iteration of a rank's own work: no waits, no evaluation and checkpoints, which are rank 0's."""
    return learner_active_ns(window.phases_ns) / window.iterations / NS_PER_MS
