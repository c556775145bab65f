"""Rates from cumulative counters: what ran, what each side could do alone, and what the two should do together.

Every function is pure and subtracts two cumulative readings; nothing is smoothed. `None` means that the window
holds no data for the rate, which is not the same as zero. Windows are the accounts' own steady time, because a
counter and the wall it is divided by must come from the same report; without accounts, the supervisor's clock.

A report is made at the end of a vector step or of an iteration, so a window counts what arrived after its first report
by the time between its two: exact for regular arrivals, however few (`RateWindow` sees to it that there are some).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from offpolicy.timing.histogram import Counts
from offpolicy.timing.phases import COLLECTOR_PAUSES, FOR_COLLECTORS, LEARNER_PERIODIC, LEARNER_WAITS, CollectorPhase
from offpolicy.timing.thread_states import Shares, States, shares_of
from offpolicy.timing.throughput import Cost, cost, seconds_per_step, slices_of
from offpolicy.types import (
    Account,
    CollectorTotals,
    CoreTotals,
    Float64,
    SchedulerStats,
    SlowTime,
    Snapshot,
    TaggedTime,
)

FEW_ARRIVALS = 5  # fewest vector steps or iterations of a window; one with fewer is stretched into the past
WELL_KNOWN = 0.1  # largest error, as a fraction of a phase's time, at which the part of resets in it is stated
NS_PER_US = 1_000
NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


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


@dataclass(frozen=True, slots=True)
class Elapsed:
    """One clock between two readings; `wall_ns` and `phases_ns` without the warm-up, `total_ns` with it."""

    wall_ns: int
    total_ns: int
    iterations: int
    phases_ns: Mapping[str, int]
    cpu_ns: int
    scheduler: SchedulerStats = SchedulerStats()
    tagged: TaggedTime = TaggedTime()
    histogram: Counts | None = field(default=None, compare=False)  # [phases + 1, bins]
    states: States | None = field(default=None, compare=False)  # [phases, 3] of the sampled iterations
    slow: SlowTime | None = None

    def mean_ms(self, phase: str) -> float:
        """Mean of `phase` per iteration, of which there must be some; a phase that never opened is 0, not absent."""
        return self.phases_ns.get(phase, 0) / self.iterations / NS_PER_MS

    def shares(self, phase: str) -> Shares | None:
        """What the thread did in `phase`, in sampled iterations; None where hardly anything of it was sampled."""
        return None if self.states is None else shares_of(self.states[list(self.phases_ns).index(phase)])


@dataclass(frozen=True, slots=True)
class CollectorWindow:
    """One collector between two readings; `elapsed` is None when timing is off."""

    elapsed: Elapsed | None
    env_steps: float  # all of the window
    steady_steps: float  # those in `elapsed.wall_ns`; all when timing is off
    policy_env_steps: float  # those acted by the policy, that is, since learning began


START_OF_CLOCK = Account(wall_ns=0, warmup_ns=0, iterations=0, phases_ns={}, cpu_ns=0)
NOTHING_COLLECTED = CollectorTotals(account=None, env_steps=0, vector_steps=0, policy_lag_sum=0.0, policy_steps=0)


def elapsed(previous: Account | None, current: Account | None) -> Elapsed | None:
    """`current - previous`; a missing `previous` is the start of the clock, a missing `current` gives None."""
    if current is None:
        return None
    origin = previous or START_OF_CLOCK
    # Where the warm-up ended inside the window, the account restarted there, and all of it belongs to the window.
    before = origin if origin.warmup_ns == current.warmup_ns else START_OF_CLOCK
    histogram = current.histogram
    if histogram is not None and before.histogram is not None:
        histogram = histogram - before.histogram
    states = current.states
    if states is not None and before.states is not None:
        states = states - before.states
    return Elapsed(
        wall_ns=current.wall_ns - before.wall_ns,
        total_ns=current.wall_ns + current.warmup_ns - origin.wall_ns - origin.warmup_ns,
        iterations=current.iterations - before.iterations,
        phases_ns={name: ns - before.phases_ns.get(name, 0) for name, ns in current.phases_ns.items()},
        cpu_ns=current.cpu_ns - origin.cpu_ns,
        scheduler=SchedulerStats(*(now - then for now, then in zip(current.scheduler, origin.scheduler, strict=True))),
        tagged=TaggedTime(*(now - then for now, then in zip(current.tagged, before.tagged, strict=True))),
        histogram=histogram,
        states=states,
        slow=_slow(before.slow, current.slow),
    )


def _slow(before: SlowTime | None, current: SlowTime | None) -> SlowTime | None:
    if before is None or current is None:
        return current
    phases_ns = {name: ns - before.phases_ns[name] for name, ns in current.phases_ns.items()}
    return SlowTime(current.iterations - before.iterations, phases_ns)


def slow_excess_ms(slow: SlowTime | None, iterations: int, phases_ns: Mapping[str, int]) -> dict[str, float]:
    """Returns what each phase takes longer in a slow iteration than in one of all; empty without slow ones."""
    if slow is None or slow.iterations == 0 or iterations == 0:
        return {}
    return {
        name: (ns / slow.iterations - phases_ns[name] / iterations) / NS_PER_MS for name, ns in slow.phases_ns.items()
    }


def learner_windows(previous: Snapshot | None, current: Snapshot) -> tuple[Elapsed | None, ...]:
    """One window per rank, in their order; None where timing is off."""
    before = previous.learners if previous is not None else ()
    return tuple(
        elapsed(before[rank].account if rank < len(before) else None, totals.account)
        for rank, totals in enumerate(current.learners)
    )


def learner_elapsed(previous: Snapshot | None, current: Snapshot) -> Elapsed | None:
    """The window of rank 0, whose clock stands for the learner side."""
    windows = learner_windows(previous, current)
    return windows[0] if windows else None


def packer_elapsed(previous: Snapshot | None, current: Snapshot) -> Elapsed | None:
    """The window of rank 0's packer; None where there is none."""
    if not current.learners:
        return None
    before = previous.learners[0].packer if previous is not None and previous.learners else None
    return elapsed(before, current.learners[0].packer)


def cores_elapsed(previous: Snapshot | None, current: Snapshot) -> CoreTotals | None:
    """What the host's cores did between two readings; None without a reading in the window."""
    after, before = current.cores, previous.cores if previous is not None else None
    if after is None or before is None:
        return after
    if after.wall_ns <= before.wall_ns:
        return None
    return CoreTotals(
        after.wall_ns - before.wall_ns,
        after.capacity_ns - before.capacity_ns,
        {row: ns - before.classes_ns[row] for row, ns in after.classes_ns.items()},
    )


def collector_windows(previous: Snapshot | None, current: Snapshot) -> tuple[CollectorWindow, ...]:
    """One window per collector, in their order."""
    before = previous.collectors if previous is not None else ()
    return tuple(
        _collector_window(before[index] if index < len(before) else NOTHING_COLLECTED, totals)
        for index, totals in enumerate(current.collectors)
    )


def _collector_window(before: CollectorTotals, current: CollectorTotals) -> CollectorWindow:
    earlier, account = before.account, current.account
    window = elapsed(earlier, account)
    env_steps = float(current.env_steps - before.env_steps)
    vector_steps = current.vector_steps - before.vector_steps
    policy_steps = current.policy_steps - before.policy_steps
    steady_steps = env_steps
    if window is not None and account is not None and (earlier is None or earlier.warmup_ns != account.warmup_ns):
        # Steps of the warm-up are in the counter but not in the account: divided by steady time they would
        # overstate every rate of the window in which the warm-up ends.
        steady_steps = _part(env_steps, window.iterations, vector_steps)
    return CollectorWindow(window, env_steps, steady_steps, _part(env_steps, policy_steps, vector_steps))


def _part(env_steps: float, steps: int, vector_steps: int) -> float:
    """The transitions of `steps` out of `vector_steps` vector steps."""
    return env_steps * min(1.0, steps / vector_steps) if vector_steps > 0 else 0.0


def collector_pauses(mode: str) -> tuple[CollectorPhase, ...]:
    """The collector's phases without work on env steps: its wait for the learner, and snapshots for checkpoints.

    In turns also its handshake: the learner that it wakes is at work, and may take its core, before it returns.
    """
    return (*COLLECTOR_PAUSES, CollectorPhase.HANDSHAKE) if mode == "alternate" else COLLECTOR_PAUSES


def collector_active_ns(phases_ns: Mapping[str, int], mode: str) -> int:
    """The collector's work on env steps."""
    pauses = collector_pauses(mode)
    return sum(ns for name, ns in phases_ns.items() if name not in pauses)


def learner_active_ns(phases_ns: Mapping[str, int]) -> int:
    """The learner's work on updates: neither waits nor evaluation and checkpoints."""
    return sum(ns for name, ns in phases_ns.items() if name not in LEARNER_WAITS and name not in LEARNER_PERIODIC)


def learner_side_ns(ranks: Sequence[Elapsed | None]) -> float:
    """The time that the learners need for their updates, with their waits for each other and for packed batches.

    That is the wall of rank 0 without evaluation and checkpoints, and without waiting for collectors: if one of the
    ranks waits for its collectors, the others wait for it.
    """
    timed = [window for window in ranks if window is not None and window.wall_ns > 0]
    if not timed:
        return 0.0
    first = timed[0]
    periodic_ns = sum(first.phases_ns.get(phase, 0) for phase in LEARNER_PERIODIC)
    waits = [sum(window.phases_ns.get(phase, 0) for phase in FOR_COLLECTORS) / window.wall_ns for window in timed]
    return first.wall_ns * (1.0 - max(waits)) - periodic_ns


def predict_steps_per_sec(collector: float | None, learner: float | None, mode: str) -> float | None:
    """Env steps per second of the two sides together: turns add up (alternate), overlapped work is bound by the slower.

    `collector` and `learner` are I and T. Raises KeyError on an unknown mode.
    """
    if not collector or not learner:
        return None
    overlapped, in_turns = min(collector, learner), 1.0 / (1.0 / collector + 1.0 / learner)
    return {"overlap": overlapped, "free": overlapped, "alternate": in_turns}[mode]


def of_iterations(snapshot: Snapshot) -> Snapshot:
    """Returns the snapshot without the time after each side's last iteration: its rates are those of learning."""
    return replace(
        snapshot,
        learners=tuple(replace(totals, account=_before_cooldown(totals.account)) for totals in snapshot.learners),
        collectors=tuple(replace(totals, account=_before_cooldown(totals.account)) for totals in snapshot.collectors),
    )


def _before_cooldown(account: Account | None) -> Account | None:
    if account is None or account.cooldown is None:
        return account
    after = account.cooldown
    scheduler = SchedulerStats(*(end - gain for end, gain in zip(account.scheduler, after.scheduler, strict=True)))
    return replace(
        account,
        wall_ns=account.wall_ns - sum(after.phases_ns.values()),
        phases_ns={name: ns - after.phases_ns[name] for name, ns in account.phases_ns.items()},
        cpu_ns=account.cpu_ns - after.cpu_ns,
        scheduler=scheduler,
        cooldown=None,
    )


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
    utd = utd_of(updates, steady_updates, learner, collectors)
    active_s = _ratio(learner_side_ns(learner_windows(previous, current)) / NS_PER_S, steady_updates)
    capacity = _collector_capacity(collectors, mode)
    absorbed = 1.0 / (active_s * utd) if active_s and utd else None
    return Rates(
        steps_per_sec=_steps_per_sec(collectors, wall_s),
        updates_per_sec=_ratio(steady_updates, learner.wall_ns / NS_PER_S if learner is not None else wall_s),
        collector_capacity=capacity,
        learner_active_s=active_s,
        learner_capacity=absorbed,
        utd=utd,
        predicted_steps_per_sec=_predicted(mode, learner, collectors, absorbed),
    )


def _predicted(
    mode: str, learner: Elapsed | None, collectors: Sequence[CollectorWindow], absorbed: float | None
) -> float | None:
    """Env steps per second of both sides together, each as it was in the window."""
    costs = [_collector_cost(window, mode, len(collectors), learner) for window in collectors]
    known = [each for each in costs if each is not None]
    if learner is None or not absorbed or not known:
        return None
    cycles = statistics.fmean(window.elapsed.iterations for window in collectors if window.elapsed is not None)
    own_ns, slices_ns = (
        learner_active_ns(learner.phases_ns),
        longest_slices(learner, (*LEARNER_WAITS, *LEARNER_PERIODIC)),
    )
    per_cycle = learner.iterations / cycles if cycles > 0 else 1.0
    side = cost(1.0 / absorbed, slices_ns, own_ns / max(1, learner.iterations), per_cycle)
    return 1.0 / seconds_per_step(mode, side, known)


def _collector_cost(window: CollectorWindow, mode: str, num_collectors: int, learner: Elapsed | None) -> Cost | None:
    """What the steps of one of the collectors cost per env step of the run; None where it did nothing."""
    done = window.elapsed
    active_ns = collector_active_ns(done.phases_ns, mode) if done is not None else 0
    if done is None or active_ns <= 0 or window.steady_steps <= 0:
        return None
    summed = done.iterations / learner.iterations if learner is not None and learner.iterations else 1.0
    slices_ns = longest_slices(done, collector_pauses(mode))
    return cost(
        active_ns / NS_PER_S / window.steady_steps / num_collectors, slices_ns, active_ns / done.iterations, summed
    )


def longest_slices(window: Elapsed, without: Sequence[str]) -> Float64 | None:
    """How the longest phase of a side varied; None where that is not known."""
    if window.histogram is None:
        return None
    rows = [(ns, row) for row, (name, ns) in enumerate(window.phases_ns.items()) if name not in without]
    counts = window.histogram[max(rows)[1]]
    return slices_of(counts) if counts.any() else None


def _updates(previous: Snapshot | None, current: Snapshot) -> tuple[int, int]:
    """The updates of a window, and those of them in the steady time of rank 0's account; all when timing is off."""
    before = num_updates(previous) if previous is not None else 0
    updates = num_updates(current) - before
    if not current.learners or (account := current.learners[0].account) is None:
        return updates, updates
    earlier = previous.learners[0].account if previous is not None and previous.learners else None
    if earlier is not None and earlier.warmup_ns == account.warmup_ns:
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


def tagged_excess_ns(window: Elapsed, phase: str) -> float | None:
    """The time by which tagged iterations lengthened `phase` in the window; None if that is not known.

    That is their mean minus that of the others, times their number, never below 0. Where there are no others, what
    a unit of weight takes says it, if the weights differ enough to tell.
    """
    tagged, plain = window.tagged, window.iterations - window.tagged.iterations
    if tagged.iterations == 0:
        return 0.0
    if plain <= 0:
        return _excess_by_weight_ns(tagged)
    plain_mean_ns = (window.phases_ns.get(phase, 0) - tagged.ns) / plain
    return max(0.0, tagged.ns - tagged.iterations * plain_mean_ns)


def _excess_by_weight_ns(tagged: TaggedTime) -> float | None:
    """The weights times the slope of the least-squares line of time by weight.

    None where two standard errors of it are more than `WELL_KNOWN` of the time.
    """
    count, taken_us = tagged.iterations, tagged.ns / NS_PER_US
    spread = tagged.weight_sq - tagged.weight**2 / count
    if count < FEW_ARRIVALS or spread <= 0.0:
        return None
    together = tagged.weight_us - tagged.weight * taken_us / count
    slope = together / spread
    unexplained = max(0.0, tagged.us_sq - taken_us**2 / count - slope * together)
    error = math.sqrt(unexplained / (count - 2) / spread)
    if 2.0 * error * tagged.weight > WELL_KNOWN * taken_us:
        return None
    return min(max(0.0, slope * tagged.weight), taken_us) * NS_PER_US


def policy_steps(snapshot: Snapshot) -> int:
    """Vector steps acted by the policy, over all collectors."""
    return sum(totals.policy_steps for totals in snapshot.collectors)


def _steps_per_sec(collectors: tuple[CollectorWindow, ...], wall_s: float) -> float | None:
    """Summed over collectors, each on its own clock; on the supervisor's when no account has steady time."""
    steady = [
        (window.steady_steps, window.elapsed.wall_ns)
        for window in collectors
        if window.elapsed is not None and window.elapsed.wall_ns > 0
    ]
    if not steady:
        return _ratio(sum(window.env_steps for window in collectors), wall_s)
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
