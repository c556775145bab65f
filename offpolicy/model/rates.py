"""Rates from cumulative counters: what ran, what each side could do alone, and what the two should do together.

Two cumulative readings are subtracted and nothing is smoothed. `None` means that the window holds no data for the rate,
which is not the same as zero. A counter and the wall it is divided by come from the same report, of steady time;
without accounts they are the supervisor's.

A report is made at the end of a vector step or of an iteration, so a window counts what arrived after its first report
by the time between its two: exact for regular arrivals, however few (`RateWindow` sees to it that there are some).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from offpolicy.model.throughput import collector_active_ns, learner_side_ns, predicted_steps_per_sec
from offpolicy.model.windows import (
    FEW_ARRIVALS,
    NS_PER_S,
    CollectorWindow,
    Elapsed,
    collector_windows,
    learner_windows,
)
from offpolicy.types import NO_ACCOUNT, Snapshot


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of one window, of the whole run; None where the window holds no data."""

    steps_per_sec: float | None  # thru: env steps per second of wall
    updates_per_sec: float | None
    collector_capacity: float | None  # I: env steps per active second, summed over collectors
    learner_active_s: float | None  # active seconds per update
    learner_capacity: float | None  # T: env steps per second that the learner could absorb
    utd: float | None  # updates per env step since learning began, achieved
    predicted_steps_per_sec: float | None  # from I, T and the collection mode


def compute_rates(
    previous: Snapshot | None, current: Snapshot, mode: str, num_hosts: int = 1, *, is_read_at_once: bool = True
) -> Rates:
    """The rates between two snapshots; `previous` None is the start of the counters and of the clocks.

    A snapshot holds the collectors of one of `num_hosts`; the others run as many at the same pace. `is_read_at_once`:
    both sides were read at the same boundary, as at a run's end.
    """
    collectors, ranks = collector_windows(previous, current, num_hosts), learner_windows(previous, current)
    learner = ranks[0] if ranks else None
    # The updates of the window, and those of them in the steady time of rank 0's account; all without an account.
    before = num_updates(previous) if previous is not None else 0
    updates = steady_updates = num_updates(current) - before
    earlier = previous.learners[0].account if previous is not None and previous.learners else NO_ACCOUNT
    if current.learners and earlier.warmup_ns != current.learners[0].account.warmup_ns:
        steady_updates = num_updates(current) - max(before, current.learners[0].warmup_updates)
    wall_s = current.wall_s - (previous.wall_s if previous is not None else 0.0)
    utd = _ratio(updates, sum(window.policy_env_steps for window in collectors))
    if utd is not None and not is_read_at_once:
        utd = _utd_by_clocks(utd, steady_updates, learner, collectors)
    active_s = _ratio(learner_side_ns(ranks) / NS_PER_S, steady_updates)
    absorbed = 1.0 / (active_s * utd) if active_s and utd else None
    steady = [(window, window.elapsed) for window in collectors if window.elapsed is not None]
    # Each on its own clock, or else on the supervisor's, with the env steps read at that moment: a collector may have
    # reported seconds before the learner did.
    timed = [window.steady_steps * NS_PER_S / done.wall_ns for window, done in steady if done.wall_ns > 0]
    env_steps = current.env_steps - (previous.env_steps if previous is not None else 0)
    active = [(window.steady_steps, collector_active_ns(done.phases_ns, mode)) for window, done in steady]
    has_rollouts = any(totals.rollouts for totals in current.collectors)  # each rank has its own collectors
    num_groups = max(len(current.learners) // num_hosts, 1) if has_rollouts else 1
    return Rates(
        steps_per_sec=(sum(timed) or None) if timed else _ratio(env_steps, wall_s) if collectors else None,
        updates_per_sec=_ratio(steady_updates, learner.wall_ns / NS_PER_S if learner is not None else wall_s),
        collector_capacity=sum(steps * NS_PER_S / ns for steps, ns in active if ns > 0) or None,
        learner_active_s=active_s,
        learner_capacity=absorbed,
        utd=utd,
        predicted_steps_per_sec=predicted_steps_per_sec(mode, learner, collectors, absorbed, num_groups),
    )


def _utd_by_clocks(
    counted: float, steady_updates: int, learner: Elapsed | None, collectors: Sequence[CollectorWindow]
) -> float:
    """Updates per env step where the sides report at different moments, by the `counted` ones.

    Between the reports of one side the other may have done one thing more or less, so counts tell the ratio to one
    arrival of each. Within that, each side's own rate tells it; not beyond, as where a pause is in one window only.
    """
    timed = [(window.policy_env_steps, window.elapsed) for window in collectors if window.elapsed is not None]
    if learner is None or not timed or min(side.iterations for side in (learner, *(done for _, done in timed))) < 1:
        return counted
    per_ns = sum(_ratio(steps, done.wall_ns) or 0.0 for steps, done in timed)
    clocked = _ratio(_ratio(steady_updates, learner.wall_ns) or 0.0, per_ns) or counted
    unsure = 1.0 / learner.iterations + max(1.0 / done.iterations for _, done in timed)
    return min(max(clocked, counted * (1.0 - unsure)), counted * (1.0 + unsure))


def num_updates(snapshot: Snapshot) -> int:
    """Updates of the shared networks: ranks update together, so rank 0 counts for all."""
    return snapshot.learners[0].updates if snapshot.learners else 0


def policy_steps(snapshot: Snapshot) -> int:
    """Vector steps acted by the policy, over all collectors."""
    return sum(totals.policy_steps for totals in snapshot.collectors)


def _ratio(numerator: float, denominator: float) -> float | None:
    """None where either number is 0: no rate is known, and zero would be a claim."""
    return numerator / denominator if numerator > 0 and denominator > 0 else None


class RateWindow:
    """Stretches the window of the rates into the past until each side has arrived `FEW_ARRIVALS` times in it.

    A side that is slow, or held up by the other one, keeps its capacity: what it was when it last did something.
    """

    def __init__(self) -> None:
        self._kept: deque[Snapshot] = deque()  # the first one is the farthest start of a window

    def start_from(self, origin: Snapshot) -> None:
        """Measures from here: a resumed run does not count the steps before."""
        self._kept = deque([origin])

    def rates(self, current: Snapshot, mode: str, num_hosts: int) -> Rates:
        """The rates up to `current`, which is kept; without thru where no collector has reported since the last one."""
        while len(self._kept) > 1:
            windows = (window.elapsed for window in collector_windows(self._kept[1], current))
            sides = (*learner_windows(self._kept[1], current)[:1], *windows)
            if not all(side is None or side.iterations >= FEW_ARRIVALS for side in sides):
                break
            self._kept.popleft()
        before, last = (self._kept[0], self._kept[-1]) if self._kept else (None, None)
        rates = compute_rates(before, current, mode, num_hosts, is_read_at_once=False)
        self._kept.append(current)
        has_collected = any(window.env_steps > 0 for window in collector_windows(last, current))
        return rates if has_collected else replace(rates, steps_per_sec=None)
