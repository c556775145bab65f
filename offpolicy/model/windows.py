"""Windows between two cumulative readings: what each clock of a run measured meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import sub
from typing import NamedTuple

import numpy as np

from offpolicy.timing.histogram import BIN_MIDDLES_NS, Counts
from offpolicy.types import NO_ACCOUNT, Account, CollectorTotals, CoreTotals, SchedulerStats, Snapshot, TaggedTime

FEW_ARRIVALS = 5  # fewest vector steps or iterations of a window; one with fewer is stretched into the past
NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


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

    def mean_ms(self, phase: str) -> float:
        """Mean of `phase` per iteration, of which there must be some; a phase that never opened is 0, not absent."""
        return self.phases_ns.get(phase, 0) / self.iterations / NS_PER_MS


@dataclass(frozen=True, slots=True)
class CollectorWindow:
    """One collector between two readings; `elapsed` is None without an account."""

    elapsed: Elapsed | None
    env_steps: float  # all of the window
    steady_steps: float  # those in `elapsed.wall_ns`; all without an account
    policy_env_steps: float  # those acted by the policy, that is, since learning began


NOTHING_COLLECTED = CollectorTotals(NO_ACCOUNT, env_steps=0, vector_steps=0, policy_lag_sum=0.0, policy_steps=0)


def elapsed(origin: Account, current: Account) -> Elapsed | None:
    """`current - origin`; an empty `origin` is the start of the clock, an empty `current` gives None."""
    if current.is_empty:
        return None
    if current.wall_ns + current.warmup_ns < origin.wall_ns + origin.warmup_ns:
        origin = NO_ACCOUNT  # of a process that has gone
    # Where the warm-up ended inside the window, the account restarted there, and all of it belongs to the window.
    before = origin if origin.warmup_ns == current.warmup_ns else NO_ACCOUNT
    histogram = current.histogram
    if histogram is not None and before.histogram is not None:
        histogram = histogram - before.histogram
    return Elapsed(
        wall_ns=current.wall_ns - before.wall_ns,
        total_ns=current.wall_ns + current.warmup_ns - origin.wall_ns - origin.warmup_ns,
        iterations=current.iterations - before.iterations,
        phases_ns={name: ns - before.phases_ns.get(name, 0) for name, ns in current.phases_ns.items()},
        cpu_ns=current.cpu_ns - origin.cpu_ns,
        scheduler=SchedulerStats(*map(sub, current.scheduler, origin.scheduler)),
        tagged=TaggedTime(*map(sub, current.tagged, before.tagged)),
        histogram=histogram,
    )


def learner_windows(previous: Snapshot | None, current: Snapshot) -> tuple[Elapsed | None, ...]:
    """One window per rank, in their order; None without an account."""
    before = previous.learners if previous is not None else ()
    return tuple(
        elapsed(before[rank].account if rank < len(before) else NO_ACCOUNT, totals.account)
        for rank, totals in enumerate(current.learners)
    )


def packer_elapsed(previous: Snapshot | None, current: Snapshot) -> Elapsed | None:
    """The window of rank 0's packer; None where there is none."""
    if not current.learners:
        return None
    before = previous.learners[0].packer if previous is not None and previous.learners else NO_ACCOUNT
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


def collector_windows(previous: Snapshot | None, current: Snapshot, num_hosts: int = 1) -> tuple[CollectorWindow, ...]:
    """One window per collector, in their order, with the env steps of as many on each of `num_hosts`."""

    def part(env_steps: float, steps: int, vector_steps: int) -> float:
        """The transitions of `steps` out of `vector_steps` vector steps."""
        return env_steps * min(1.0, steps / vector_steps) if vector_steps > 0 else 0.0

    earlier, windows = previous.collectors if previous is not None else (), []
    for index, now in enumerate(current.collectors):
        before = earlier[index] if index < len(earlier) else NOTHING_COLLECTED
        window = elapsed(before.account, now.account)
        env_steps = float(num_hosts * (now.env_steps - before.env_steps))
        vector_steps = now.vector_steps - before.vector_steps
        # Steps of the warm-up are in the counter but not in the account: divided by steady time they would
        # overstate every rate of the window in which the warm-up ends.
        has_warmup = window is not None and before.account.warmup_ns != now.account.warmup_ns
        steady = part(env_steps, window.iterations, vector_steps) if window is not None and has_warmup else env_steps
        policy_env_steps = part(env_steps, now.policy_steps - before.policy_steps, vector_steps)
        windows.append(CollectorWindow(window, env_steps, steady, policy_env_steps))
    return tuple(windows)


def of_iterations(snapshot: Snapshot) -> Snapshot:
    """Returns the snapshot without the time after each side's last iteration: its rates are those of learning."""

    def before_cooldown(account: Account) -> Account:
        after = account.cooldown
        if after is None:
            return account
        return replace(
            account,
            wall_ns=account.wall_ns - sum(after.phases_ns.values()),
            phases_ns={name: ns - after.phases_ns[name] for name, ns in account.phases_ns.items()},
            cpu_ns=account.cpu_ns - after.cpu_ns,
            scheduler=SchedulerStats(*map(sub, account.scheduler, after.scheduler)),
            cooldown=None,
        )

    return replace(
        snapshot,
        learners=tuple(replace(totals, account=before_cooldown(totals.account)) for totals in snapshot.learners),
        collectors=tuple(replace(totals, account=before_cooldown(totals.account)) for totals in snapshot.collectors),
    )


def tagged_excess_ns(window: Elapsed, phase: str) -> float | None:
    """The time by which tagged iterations lengthened `phase` in the window; None where all of them were tagged.

    That is their mean minus that of the others, times their number, never below 0.
    """
    tagged, plain = window.tagged, window.iterations - window.tagged.iterations
    if tagged.iterations == 0:
        return 0.0
    if plain <= 0:
        return None
    plain_mean_ns = (window.phases_ns.get(phase, 0) - tagged.ns) / plain
    return max(0.0, tagged.ns - tagged.iterations * plain_mean_ns)


class Percentiles(NamedTuple):
    """Percentiles of one quantity over the iterations of a window, in ms, each within 3 %."""

    iterations: int
    p50: float
    p95: float
    p99: float
    max: float


def percentiles_of(counts: Sequence[int] | Counts) -> Percentiles | None:
    """Returns the percentiles of one histogram [HISTOGRAM_BINS]; None where nothing was counted."""
    up_to = np.cumsum(counts)
    total = int(up_to[-1])
    if total <= 0:
        return None
    # The rank of the value that so many per cent of the iterations do not exceed.
    ranks = np.ceil(np.array([0.50, 0.95, 0.99, 1.0]) * total)
    return Percentiles(total, *(BIN_MIDDLES_NS[np.searchsorted(up_to, ranks)] / 1e6).tolist())


def spreads_of(counts: Counts | None, phases_ns: Mapping[str, int]) -> dict[str, Percentiles]:
    """Returns the percentiles of each row of `counts` [phases, HISTOGRAM_BINS] by the names of `phases_ns`.

    A phase without any time never opened: it has none. Neither has anything where nothing was counted.
    """
    rows = zip(phases_ns.items(), counts, strict=True) if counts is not None else ()
    return {name: spread for (name, ns), row in rows if ns > 0 and (spread := percentiles_of(row)) is not None}
