"""Rates from cumulative counters: what ran, what each side could do alone, and what the two should do together.

Every function is pure and subtracts two cumulative readings; nothing is smoothed. `None` means that the window
holds no data for the rate, which is not the same as zero. Windows are the accounts' own steady time, because a
counter and the wall it is divided by must come from the same report; without accounts, the supervisor's clock and
counter.

A report is made at the end of a vector step or of an iteration, so a window counts what arrived after its first report
by the time between its two: exact for regular arrivals, however few (`RateWindow` sees to it that there are some).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from offpolicy.model.throughput import collector_active_ns, learner_side_ns, predicted_steps_per_sec
from offpolicy.model.windows import (
    FEW_ARRIVALS,
    NS_PER_S,
    CollectorWindow,
    Elapsed,
    collector_windows,
    learner_elapsed,
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


UtdOf = Callable[[int, int, Elapsed | None, Sequence[CollectorWindow]], float | None]


def compute_rates(previous: Snapshot | None, current: Snapshot, mode: str, num_hosts: int = 1) -> Rates:
    """The rates between two snapshots; `previous` None is the start of the counters and of the clocks.

    A snapshot holds the collectors of one host. The others run the same number of them at the same pace, so the rates
    of the whole run are those of this host times `num_hosts`.
    """
    return _rates(previous, current, mode, num_hosts, _utd_by_counts)


def _rates(previous: Snapshot | None, current: Snapshot, mode: str, num_hosts: int, utd_of: UtdOf) -> Rates:
    collectors = tuple(_on_all_hosts(window, num_hosts) for window in collector_windows(previous, current))
    learner = learner_elapsed(previous, current)
    updates, steady_updates = _updates(previous, current)
    wall_s = current.wall_s - (previous.wall_s if previous is not None else 0.0)
    env_steps = current.env_steps - (previous.env_steps if previous is not None else 0)
    utd = utd_of(updates, steady_updates, learner, collectors)
    active_s = _ratio(learner_side_ns(learner_windows(previous, current)) / NS_PER_S, steady_updates)
    capacity = _collector_capacity(collectors, mode)
    absorbed = 1.0 / (active_s * utd) if active_s and utd else None
    has_rollouts = any(totals.rollouts for totals in current.collectors)  # each rank has collectors of its own
    num_groups = max(len(current.learners) // num_hosts, 1) if has_rollouts else 1
    return Rates(
        steps_per_sec=_steps_per_sec(collectors, env_steps, wall_s),
        updates_per_sec=_ratio(steady_updates, learner.wall_ns / NS_PER_S if learner is not None else wall_s),
        collector_capacity=capacity,
        learner_active_s=active_s,
        learner_capacity=absorbed,
        utd=utd,
        predicted_steps_per_sec=predicted_steps_per_sec(mode, learner, collectors, absorbed, num_groups),
    )


def _updates(previous: Snapshot | None, current: Snapshot) -> tuple[int, int]:
    """The updates of a window, and those of them in the steady time of rank 0's account; all without an account."""
    before = num_updates(previous) if previous is not None else 0
    updates = num_updates(current) - before
    earlier = previous.learners[0].account if previous is not None and previous.learners else NO_ACCOUNT
    if not current.learners or earlier.warmup_ns == current.learners[0].account.warmup_ns:
        return updates, updates
    return updates, num_updates(current) - max(before, current.learners[0].warmup_updates)


def _utd_by_counts(
    updates: int, steady_updates: int, learner: Elapsed | None, collectors: Sequence[CollectorWindow]
) -> float | None:
    """Updates per env step of the policy: exact where both sides were read at the same boundary, as at a run's end."""
    return _ratio(updates, sum(window.policy_env_steps for window in collectors))


def _utd_by_clocks(
    updates: int, steady_updates: int, learner: Elapsed | None, collectors: Sequence[CollectorWindow]
) -> float | None:
    """The same where the sides report at different moments.

    Between the reports of one side the other may have done one thing more or less, so counts tell the ratio to one
    arrival of each. Within that, each side's own rate tells it; not beyond, as where a pause is in one window only.
    """
    counted = _utd_by_counts(updates, steady_updates, learner, collectors)
    timed = [window.elapsed for window in collectors if window.elapsed is not None]
    if counted is None or learner is None or not timed or min(side.iterations for side in (learner, *timed)) < 1:
        return counted
    walls_ns = [window.elapsed.wall_ns if window.elapsed is not None else 0 for window in collectors]
    per_ns = sum(_ratio(window.policy_env_steps, ns) or 0.0 for window, ns in zip(collectors, walls_ns, strict=True))
    clocked = _ratio(_ratio(steady_updates, learner.wall_ns) or 0.0, per_ns) or counted
    unsure = 1.0 / learner.iterations + max(1.0 / side.iterations for side in timed)
    return min(max(clocked, counted * (1.0 - unsure)), counted * (1.0 + unsure))


def _on_all_hosts(window: CollectorWindow, num_hosts: int) -> CollectorWindow:
    return replace(
        window,
        env_steps=window.env_steps * num_hosts,
        steady_steps=window.steady_steps * num_hosts,
        policy_env_steps=window.policy_env_steps * num_hosts,
    )


def num_updates(snapshot: Snapshot) -> int:
    """Updates of the shared networks: ranks update together, so rank 0 counts for all."""
    return snapshot.learners[0].updates if snapshot.learners else 0


def policy_steps(snapshot: Snapshot) -> int:
    """Vector steps acted by the policy, over all collectors."""
    return sum(totals.policy_steps for totals in snapshot.collectors)


def _steps_per_sec(collectors: tuple[CollectorWindow, ...], env_steps: int, wall_s: float) -> float | None:
    """Summed over collectors, each on its own clock; on the supervisor's when no account has steady time.

    Then with the `env_steps` read at that moment: a collector may have reported seconds before the learner did.
    """
    steady = [
        (window.steady_steps, window.elapsed.wall_ns)
        for window in collectors
        if window.elapsed is not None and window.elapsed.wall_ns > 0
    ]
    if not steady:
        return _ratio(env_steps, wall_s) if collectors else None
    return sum(steps * NS_PER_S / wall_ns for steps, wall_ns in steady) or None


def _collector_capacity(collectors: tuple[CollectorWindow, ...], mode: str) -> float | None:
    total = 0.0
    for window in collectors:
        active_ns = collector_active_ns(window.elapsed.phases_ns, mode) if window.elapsed is not None else 0
        total += window.steady_steps * NS_PER_S / active_ns if active_ns > 0 else 0.0
    return total or None


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
            sides = (learner_elapsed(self._kept[1], current), *windows)
            if not all(side is None or side.iterations >= FEW_ARRIVALS for side in sides):
                break
            self._kept.popleft()
        before, last = (self._kept[0], self._kept[-1]) if self._kept else (None, None)
        rates = _rates(before, current, mode, num_hosts, _utd_by_clocks)
        self._kept.append(current)
        has_collected = any(window.env_steps > 0 for window in collector_windows(last, current))
        return rates if has_collected else replace(rates, steps_per_sec=None)
