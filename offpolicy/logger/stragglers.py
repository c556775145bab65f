"""Statistics over the windows of all learner ranks: least, mean and most of each phase, and the straggler.

The account of rank 0 alone does not show them: if rank 0 is the slow one, it waits for no other rank.
"""

from __future__ import annotations

import math
from collections import deque
from operator import sub
from statistics import fmean, median_low

from offpolicy.logger.metrics import RANK_STATISTICS
from offpolicy.logger.timing_keys import Window
from offpolicy.model.windows import NS_PER_MS, Elapsed
from offpolicy.timing.phases import LEARNER_OWN_WORK, LearnerPhase
from offpolicy.types import Lateness, LateTotals, Snapshot

LATE_OF_WORK = 0.02  # least lateness of a straggler, as a share of its own work
LATE_OF_WALL = 0.01  # the same, as a share of its iteration
LATE_ITERATIONS = 0.7  # least share of the iterations in which a straggler is late: of equal ranks it is a half
STILL_LATE = 0.6  # the same, for the rank that is named already
ENOUGH = 50  # iterations from which on the margin is that of their work
ALIKE = 4  # neighbouring iterations that are late together: what slows a core lasts longer than one of them
ENOUGH_TO_MISS_ONE = 8  # iterations from which on a straggler may be on time in one of them
SIGMAS = 3.0  # standard deviations of that share by which a straggler exceeds a half
WINDOW_S = 10.0  # seconds that are judged together, as far as they are known
SLOW = 1.5  # factor of the median of the ranks above which a rank is slow
WARN_AFTER_S = 60.0  # seconds in which a rank is slow in every window before there is a warning


def own_work_ns(clock: Elapsed) -> int:
    """Returns the time of a rank's own work: no waits, no exchange, nothing that only rank 0 does."""
    return sum(clock.phases_ns.get(phase, 0) for phase in LEARNER_OWN_WORK)


def rank_keys(window: Window, late: Lateness | None = None) -> dict[str, float]:
    """Returns the `rank/` keys of one window per rank; none with timing off. `late` is the straggler.

    Ranks without an iteration in the window are left out; if no rank has one, only `rank/num` is known.
    """
    if all(clock is None for clock in window.learners):
        return {}
    record: dict[str, float] = {"rank/num": len(window.working)}
    if window.working:
        for phase in LearnerPhase:
            means_ms = [clock.mean_ms(phase) for clock in window.working.values()]
            of_ranks = min(means_ms), fmean(means_ms), max(means_ms)
            record |= {f"rank/{phase}_{name}_ms": ms for name, ms in zip(RANK_STATISTICS, of_ranks, strict=True)}
        latest = max(lateness(window), key=lambda each: each.ms)
        record |= {"rank/late_ms": latest.ms, "rank/late_share": latest.share}
    return record if late is None else record | {"rank/straggler": late.rank}


def rank_series(window: Window) -> dict[str, float]:
    """Returns the window of each of several ranks: phases, wall, lateness and CPU time. Empty for one rank."""
    record: dict[str, float] = {}
    for late in lateness(window) if len(window.ranks) > 1 else ():  # what one rank does is in the record already
        clock = window.working[late.rank]
        numbers = {f"{phase}_ms": clock.mean_ms(phase) for phase in LearnerPhase}
        numbers |= {"iter_ms": clock.wall_ns / clock.iterations / NS_PER_MS, "late_ms": late.ms}
        numbers |= {"late_share": late.share, "cpu_pct": 100.0 * clock.cpu_ns / clock.total_ns}
        record |= {f"rank/{late.rank}/{name}": value for name, value in numbers.items()}
    return record


def counts_of(window: Window) -> dict[int, LateTotals]:
    """Returns the counts of each rank with an iteration in the window."""
    changes = [LateTotals(*map(sub, after.late, before.late)) for before, after in window.ranks]
    return {rank: changes[rank] for rank in window.working}


def lateness(window: Window) -> list[Lateness]:
    """Returns by how much each rank with an iteration in the window works longer than the median rank."""
    counts = counts_of(window)
    late_ms = {rank: counts[rank].late_ns / clock.iterations / NS_PER_MS for rank, clock in window.working.items()}
    usual_ms = median_low(late_ms.values()) if late_ms else 0.0
    return [
        Lateness(rank, max(0.0, ms - usual_ms), counts[rank].late / max(counts[rank].iterations, 1))
        for rank, ms in late_ms.items()
    ]


def straggler(window: Window, named: int | None = None) -> Lateness | None:
    """Returns the rank that the others wait for; None where none is later than equal ranks may be by chance.

    Its lateness, without rare pauses, is more than 2 % of its work and 1 % of its wall, and it is late in more
    iterations than chance makes of a half: by three standard deviations, where four neighbours count as one, and in
    70 % at least; of eight or more, all but one suffice. Of fewer than 50 iterations the margin grows with the noise of
    their mean. Of the rank `named` so far less is asked.
    """
    counts = counts_of(window)
    late = max(lateness(window), key=lambda each: counts[each.rank].capped_ns, default=None)
    if late is None:
        return None
    clock = window.working[late.rank]
    usual_ns = median_low(each.capped_ns for each in counts.values())
    num_counted = max(counts[late.rank].iterations, 1)
    few = max(1.0, (ENOUGH / num_counted) ** 0.5)
    margin_ns = max(few * LATE_OF_WORK * own_work_ns(clock), LATE_OF_WALL * clock.wall_ns)
    most = 1.0 - 1.0 / num_counted if num_counted >= ENOUGH_TO_MISS_ONE else 1.0
    share = max(LATE_ITERATIONS, min(0.5 + SIGMAS * 0.5 / (num_counted / ALIKE) ** 0.5, most))
    if late.rank == named:
        margin_ns, share = margin_ns / 2, STILL_LATE
    return late if late.share >= share and counts[late.rank].capped_ns - usual_ns > margin_ns else None


class StragglerWatch:
    """Names the straggler of the last ten seconds, and warns of a rank that is slow for a minute.

    Within a second or two one of equal ranks is the slower one, because of what else its core has to do. So a straggler
    is kept until it is hardly late any more.
    """

    def __init__(self) -> None:
        self._ends: deque[Snapshot] = deque()  # of the windows before this one, the newest last
        self._named: int | None = None
        self._slow_since_s: dict[int, float] = {}  # by rank; infinite once it has caused a warning

    def straggler(self, window: Window) -> Lateness | None:
        """Returns the straggler at the end of the window, None where there is none."""
        # A record that takes the place of the last one begins where that one began, which is known already.
        if not self._ends or window.previous.wall_s > self._ends[-1].wall_s:
            self._ends.append(window.previous)
        while len(self._ends) > 1 and self._ends[1].wall_s <= window.current.wall_s - WINDOW_S:
            self._ends.popleft()
        late = straggler(Window(self._ends[0], window.current), self._named)
        self._named = None if late is None else late.rank
        return late

    def warnings(self, window: Window) -> list[str]:
        """Returns a warning of each rank that has been slow in every window of a minute; again after it has recovered.

        A rank without an iteration in its window stays slow, or not slow, as it was.
        """
        work_ms = {rank: own_work_ns(clock) / clock.iterations / NS_PER_MS for rank, clock in window.working.items()}
        if len(work_ms) < 2:  # one rank alone delays no other
            return []
        # The low median: between two ranks the plain one is their mean, which the slower never exceeds by half
        # unless it takes three times as long as the other.
        median_ms, wall_s = median_low(work_ms.values()), window.current.wall_s
        warnings: list[str] = []
        for rank, ms in work_ms.items():
            if ms <= SLOW * median_ms:
                self._slow_since_s.pop(rank, None)
            elif (slow_s := wall_s - self._slow_since_s.setdefault(rank, wall_s)) >= WARN_AFTER_S:
                self._slow_since_s[rank] = math.inf
                warnings.append(
                    f"warning: learner rank {rank} has been slow for {slow_s:.0f} s:"
                    f" {ms:.1f} ms of own work per iteration, the median rank takes {median_ms:.1f} ms"
                )
        return warnings
