"""Snapshots with accounts of chosen phases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from offpolicy.types import Account, CollectorTotals, Cooldown, LearnerTotals, MetricTotals, SchedulerStats, Snapshot

S = 1_000_000_000
NO_METRICS = MetricTotals((), np.zeros(0), np.zeros(0))


def account(wall_s: float, warmup_s: float = 1.0, iterations: int = 0, **phases_s: float) -> Account:
    phases = {name: int(seconds * S) for name, seconds in phases_s.items()}
    phases["other"] = int(wall_s * S) - sum(phases.values())
    return Account(int(wall_s * S), int(warmup_s * S), iterations, phases, cpu_ns=0)


def cooled(timed: Account, **phases_s: float) -> Account:
    """The account with a cooldown of these phases, which are part of it."""
    phases = {name: int(phases_s.get(name, 0.0) * S) for name in timed.phases_ns}
    return replace(timed, cooldown=Cooldown(phases, 0, SchedulerStats()))


def collector(timed: Account, steps: int, policy_steps: int | None = None) -> CollectorTotals:
    return CollectorTotals(timed, steps, steps, 0.0, steps if policy_steps is None else policy_steps)


def snapshot(
    wall_s: float, learner: Account, updates: int, *collectors: CollectorTotals, env_steps: int | None = None
) -> Snapshot:
    """`env_steps`: the supervisor's counter; None: the collectors' reports are of this moment."""
    totals = LearnerTotals(learner, updates, 0, 0.0, NO_METRICS)
    steps = sum(each.env_steps for each in collectors) if env_steps is None else env_steps
    return Snapshot(wall_s, steps, updates, (totals,), collectors, 0, 1, 0.0)
