"""The account of a process that took over from one that died: what both did, and the time between them."""

from __future__ import annotations

from dataclasses import replace
from operator import add

from offpolicy.types import (
    Account,
    ArrivalTotals,
    DeviceTotals,
    LearnerTotals,
    MetricTotals,
    SchedulerStats,
    TaggedTime,
)


def continued(before: Account, now: Account) -> Account:
    """Returns the account of both. `before` is the last report of the one that died; the clock of `now` opened there.

    Phases, iterations and CPU time add up. The warm-up of `now` is `other` of the whole, unless `before` had not ended
    its own: `warmup_ns` never changes in the middle, or windows would take the whole account to have begun there.
    """
    if before.is_empty or now.is_empty:
        return now
    cpu_ns = before.cpu_ns + now.cpu_ns
    scheduler = SchedulerStats(*map(add, before.scheduler, now.scheduler))
    if before.wall_ns == 0:
        return replace(now, warmup_ns=before.warmup_ns + now.warmup_ns, cpu_ns=cpu_ns, scheduler=scheduler)
    phases_ns = {name: ns + now.phases_ns[name] for name, ns in before.phases_ns.items()}
    phases_ns["other"] += now.warmup_ns
    return replace(
        now,
        wall_ns=before.wall_ns + now.warmup_ns + now.wall_ns,
        warmup_ns=before.warmup_ns,
        iterations=before.iterations + now.iterations,
        phases_ns=phases_ns,
        cpu_ns=cpu_ns,
        scheduler=scheduler,
        tagged=TaggedTime(*map(add, before.tagged, now.tagged)),
        histogram=None if before.histogram is None or now.histogram is None else before.histogram + now.histogram,
    )


def continued_learner(before: LearnerTotals, now: LearnerTotals, start: MetricTotals) -> LearnerTotals:
    """Returns the counters of a learner rank that began again: what both have done, the updates made twice counted so.

    `updates` are those that the networks have had. `start` are the metrics that `now` began with, from its checkpoint:
    they are in `before` already. The clock of `now` opened after the last report of `before`; the time between is the
    warm-up's.
    """
    metrics = now.metrics
    return replace(
        now,
        account=continued(before.account, _since(before.reported_ns, now)),
        packer=continued(before.packer, now.packer),
        samples=before.samples + now.samples,
        sample_age_sum=before.sample_age_sum + now.sample_age_sum,
        metrics=MetricTotals(
            metrics.names,
            before.metrics.sums + metrics.sums - start.sums,
            before.metrics.counts + metrics.counts - start.counts,
        ),
        device=now.device if before.device is None or now.device is None else _device(before.device, now.device),
        arrivals=_arrivals(before.arrivals, now.arrivals),
        warmup_updates=before.warmup_updates or now.warmup_updates,
    )


def _since(reported_ns: int, now: LearnerTotals) -> Account:
    """Returns the account of `now`, its warm-up begun at an earlier instant."""
    account = now.account
    if account.is_empty:
        return account
    opened_ns = now.reported_ns - account.wall_ns - account.warmup_ns
    return replace(account, warmup_ns=account.warmup_ns + max(opened_ns - reported_ns, 0))


def _device(before: DeviceTotals, now: DeviceTotals) -> DeviceTotals:
    return DeviceTotals(*map(add, before, now))


def _arrivals(before: ArrivalTotals, now: ArrivalTotals) -> ArrivalTotals:
    """Returns the sums; the bound of the clocks' error is that of `now`."""
    return ArrivalTotals(*map(add, before, now))._replace(clock_error_ns=now.clock_error_ns)
