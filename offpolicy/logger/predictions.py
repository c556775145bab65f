"""The verdict on a window, and what it predicts: the throughput after a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from offpolicy.config.parsing import merge, nested
from offpolicy.config.schema import RunConfig
from offpolicy.config.sections import MODE_RUNNERS
from offpolicy.errors import ConfigError
from offpolicy.logger.record import RunHeader
from offpolicy.logger.timing_keys import Window, all_calls, device_keys
from offpolicy.model.bottleneck import (
    LEARNER_ADVICE,
    ROLLOUT_ADVICE,
    WARMING_UP,
    Cause,
    Verdict,
    WindowEvidence,
    find_bottleneck,
)
from offpolicy.model.rates import Rates, num_updates
from offpolicy.model.throughput import (
    LEARNER_PAUSES,
    Capacities,
    Cores,
    Pipeline,
    collector_pauses,
    pipeline_of,
    spread_of,
)
from offpolicy.model.windows import tagged_excess_ns
from offpolicy.timing.phases import COLLECTORS_TURN, CollectorPhase, CoreClass
from offpolicy.types import Lateness

# Shorter windows, such as the rest at the end of a run, are not judged: a clock ends with its last iteration, the
# scheduler's counters with the reading, and a few milliseconds of difference would be most of the window.
LEAST_JUDGED_NS = 50_000_000


def possible_advice(
    verdict: Verdict,
    config: Mapping[str, Any],  # Any: nested values
    *,
    has_gpu: bool,
    steps_per_sec: float | None = None,
) -> Verdict:
    """Returns the verdict with the advice that the run of this configuration can take: what is valid, at most three."""

    def is_allowed(key: str, value: str | bool | float) -> bool:
        try:
            RunConfig.from_mapping(merge(config, nested({key: value})))
        except ConfigError:
            return False
        return True

    return verdict.for_run(config, has_gpu=has_gpu, is_allowed=is_allowed, steps_per_sec=steps_per_sec)


def window_verdict(  # noqa: PLR0913  # what a verdict is made of, each needed
    window: Window,
    rates: Rates,
    header: RunHeader,
    shown: Cause | None = None,
    error: float | None = None,
    late: Lateness | None = None,
) -> Verdict | None:
    """Returns the verdict on the window.

    None with timing off, without an update, in a window of some milliseconds, or if a side did not report in it.

    `shown` is the cause to name, with the numbers of this window; None: the window's own. `error` is that of the
    predictions before, as a fraction; None: not known yet. `late` is the straggler.
    """
    learner, collector, cores = window.learner, window.collectors, window.cores
    if learner is None or collector is None:
        return None
    updates = num_updates(window.current)
    if updates == 0 or (learner.wall_ns == 0 and learner.total_ns > 0):
        return WARMING_UP
    if updates == num_updates(window.previous) or learner.wall_ns <= 0 or collector.wall_ns <= 0:
        return None
    if min(learner.total_ns, collector.total_ns) < LEAST_JUDGED_NS:
        return None
    env_step_ns = collector.phases_ns.get(CollectorPhase.ENV_STEP, 0)
    reset_ns = tagged_excess_ns(collector, CollectorPhase.ENV_STEP) or 0.0
    waits = [
        sum(clock.phases_ns.get(each, 0) for each in COLLECTORS_TURN) / clock.wall_ns
        for clock in window.working.values()
    ]
    overlap_gain = 1.0  # unknown
    if header.mode == "alternate" and (now := window_pipeline(window, rates, header)) is not None:
        overlap_gain = replace(now, mode="overlap", measured_mode=now.mode).steps_per_sec / now.steps_per_sec
    # Threads of this host's collectors and of its learners, beside its cores.
    of_collectors = header.num_collectors * header.collector_threads
    of_learners = header.learner_threads * header.world_size // header.num_hosts
    num_cores = 0 if cores is None else round(sum(cores.classes_ns.values()) / cores.wall_ns)
    calls, is_remote = all_calls(window), bool(window.calls)
    evidence = WindowEvidence(
        longest_wait=max(waits, default=0.0),
        straggler=late if late is not None and late.rank > 0 else None,  # rank 0 does not wait for itself
        learner_advice=ROLLOUT_ADVICE if header.has_rollouts else LEARNER_ADVICE,
        learner_descheduled=learner.scheduler.runnable_ns / learner.total_ns,
        collector_descheduled=collector.scheduler.runnable_ns / collector.total_ns,
        transfer=calls.transfer_ns / on_way_ns if (on_way_ns := calls.transfer_ns + calls.overhead_ns) > 0 else 0.0,
        resets=reset_ns / env_step_ns if env_step_ns > 0 else 0.0,
        launch_bound=device_keys(window).get("device/launch_bound") or 0.0,
        may_try_threads=len(window.ranks) == 1
        and window.current.learners[0].device is None
        and (header.learner_threads > 1 or cores is None or cores.capacity_ns > cores.wall_ns),
        may_try_modes=header.runner in MODE_RUNNERS,
        can_lower_collectors=not is_remote
        and cores is not None
        and of_collectors > 1
        and of_collectors + of_learners > num_cores,
        idle_cores=None if cores is None or is_remote else cores.classes_ns[CoreClass.IDLE] / cores.wall_ns,
        overlap_gain=overlap_gain,
        prediction_error=error or 0.0,
    )
    return find_bottleneck(learner.phases_ns, collector.phases_ns, rates, header.mode, evidence, shown)


def window_pipeline(window: Window, rates: Rates, header: RunHeader) -> Pipeline | None:
    """Returns what both sides spent on an env step in the window; None where one of them did nothing."""
    learner, collector = window.learner, window.collectors
    if learner is None or collector is None or not rates.collector_capacity or not rates.learner_capacity:
        return None
    measured = Capacities(rates.collector_capacity, rates.learner_capacity)
    num_collectors = header.num_collectors * header.num_hosts
    per_vector_step = max(1, learner.iterations) * header.num_collectors / max(1, collector.iterations)
    try:
        now = pipeline_of(collector.phases_ns, learner.phases_ns, measured, num_collectors, header.mode)
    except ValueError:
        return None
    return replace(
        now,
        threads=tuple(header.tried_update_s),
        env_step_factors=dict(header.env_step_factors),
        cores=_cores(window, rates, header),
        collector_spread=spread_of(collector, collector_pauses(header.mode), 1.0 / per_vector_step),
        learner_spread=spread_of(learner, LEARNER_PAUSES, per_vector_step),
    )


def _cores(window: Window, rates: Rates, header: RunHeader) -> Cores | None:
    """Returns the cores of this host without what other programs used in the window.

    None with timing off, and where the collectors have the cores of other hosts.
    """
    cores = window.cores
    if cores is None or cores.wall_ns <= 0 or not header.learner_threads or window.calls:
        return None
    # Next to a device the threads of the learner wait.
    threads = header.learner_threads if window.current.learners[0].device is None else 1
    tried_s, extra_s = header.tried_update_s, dict[int, float]()
    if threads in tried_s:
        extra_s = {number: (s - tried_s[threads]) * (rates.utd or 0.0) for number, s in tried_s.items()}
    count = (cores.capacity_ns - cores.classes_ns[CoreClass.OTHERS]) / cores.wall_ns
    return Cores(count, threads, max(1, header.world_size // header.num_hosts), extra_s, header.num_hosts)
