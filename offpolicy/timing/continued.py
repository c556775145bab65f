"""The account of a process that took over from one that died: what both did, and the time between them."""

from __future__ import annotations

from dataclasses import replace
from operator import add

from offpolicy.types import Account, SchedulerStats, SlowTime, TaggedTime


def continued(before: Account | None, now: Account | None) -> Account | None:
    """Returns the account of both. `before` is the last report of the one that died; the clock of `now` opened there.

    Phases, iterations and CPU time add up. The warm-up of `now` is `other` of the whole, unless `before` had not ended
    its own: `warmup_ns` never changes in the middle, or windows would take the whole account to have begun there.
    """
    if before is None or now is None:
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
        slow=_both(before.slow, now.slow),
        states=None if before.states is None or now.states is None else before.states + now.states,
    )


def _both(before: SlowTime | None, now: SlowTime | None) -> SlowTime | None:
    if before is None or now is None:
        return before or now
    phases_ns = {name: ns + now.phases_ns[name] for name, ns in before.phases_ns.items()}
    return SlowTime(before.iterations + now.iterations, phases_ns)
