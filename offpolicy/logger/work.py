"""How much of the machine the networks use, on either side, and what is left to the environments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offpolicy.timing.phases import CollectorPhase
from offpolicy.timing.rates import NS_PER_S, Elapsed, Rates, collector_active_ns

if TYPE_CHECKING:
    from offpolicy.logger.record import RunHeader


def learner_work(rates: Rates, header: RunHeader) -> dict[str, float]:
    """Operations per active second of a learner, also as a share of what its machine attains where that is known."""
    if not rates.learner_active_s or not header.flops_per_update:
        return {}
    done = header.flops_per_update / rates.learner_active_s
    best = header.attainable_flops_per_sec
    return {"perf/flops_per_sec": done} | ({"perf/flops_of_attainable": done / best} if best else {})


def collector_work(collectors: Elapsed | None, header: RunHeader) -> dict[str, float]:
    """Operations per second of choosing actions, and the environments' share of the collectors' work.

    `collectors` are all of them added up. A vector step decides for every environment, those just reset among them.
    """
    if collectors is None:
        return {}
    record: dict[str, float] = {}
    deciding_ns = collectors.phases_ns.get(CollectorPhase.ACTION_SELECT, 0)
    if deciding_ns > 0 and header.flops_per_decision:
        decided = header.flops_per_decision * header.num_envs * collectors.iterations
        record["perf/collector_flops_per_sec"] = decided * NS_PER_S / deciding_ns
    active_ns = collector_active_ns(collectors.phases_ns)
    if active_ns > 0:
        record["perf/env_step_share"] = collectors.phases_ns.get(CollectorPhase.ENV_STEP, 0) / active_ns
    return record
