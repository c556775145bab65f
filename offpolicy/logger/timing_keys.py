"""The timing keys of a window: phases, their spread, CPU time, packer, device and evaluator."""

from __future__ import annotations

from itertools import chain, repeat
from operator import sub
from statistics import fmean

import numpy as np

from offpolicy.logger.metrics import CORES_KEY, PIPELINE_KEY, ROLLOUT_KEY
from offpolicy.model.windows import (
    NS_PER_MS,
    NS_PER_S,
    Elapsed,
    collector_windows,
    cores_elapsed,
    elapsed,
    learner_windows,
    packer_elapsed,
    spreads_of,
    tagged_excess_ns,
)
from offpolicy.timing.phases import CollectorPhase, CoreClass, DeviceSpan, EvaluatorPhase, LearnerPhase, PackerPhase
from offpolicy.types import (
    NO_ACCOUNT,
    DeviceTotals,
    LearnerTotals,
    LinkTotals,
    MetricTotals,
    SchedulerStats,
    Snapshot,
    TaggedTime,
)

MS_PER_S = 1000.0
STATISTICS = ("p50", "p95", "p99", "max")
PIPELINE = (LearnerPhase.H2D, LearnerPhase.TRAIN, LearnerPhase.PARAM_SYNC, LearnerPhase.WEIGHT_PUBLISH)
NO_CALLS = LinkTotals(*[0] * len(LinkTotals._fields))
NO_DEVICE_TIME = DeviceTotals(0, 0, 0, 0, 0, iterations=0, launch_bound=0, dropped=0)
NOTHING_LEARNT = LearnerTotals(NO_ACCOUNT, 0, 0, 0.0, MetricTotals((), np.zeros(0), np.zeros(0)))

Numbers = dict[str, float | None]


class Window:
    """Two readings of a run, and what its clocks measured between them; None of a clock without an account."""

    def __init__(self, previous: Snapshot, current: Snapshot) -> None:
        self.previous, self.current = previous, current
        before = chain(previous.learners, repeat(NOTHING_LEARNT))
        self.ranks = list(zip(before, current.learners, strict=False))  # the counters of each rank, before and now
        self.learners = learner_windows(previous, current)  # by rank
        self.learner = self.learners[0] if self.learners else None  # rank 0, which stands for the learner side
        self.working = {rank: clock for rank, clock in enumerate(self.learners) if clock and clock.iterations > 0}
        self.each_collector = [each.elapsed for each in collector_windows(previous, current)]
        self.collectors = sum_of([clock for clock in self.each_collector if clock is not None])
        self.cores = cores_elapsed(previous, current)
        self.wall_s = current.wall_s - previous.wall_s
        calls = zip(
            (each.link for each in current.collectors), (each.link for each in previous.collectors), strict=False
        )
        self.calls = [
            LinkTotals(*map(sub, now, then or NO_CALLS)) for now, then in calls if now
        ]  # of remote collectors


def sum_of(clocks: list[Elapsed]) -> Elapsed | None:
    """Returns the windows of several collectors added up; None for none."""
    if not clocks:
        return None
    spreads = [clock.histogram for clock in clocks if clock.histogram is not None]
    return Elapsed(
        sum(clock.wall_ns for clock in clocks),
        sum(clock.total_ns for clock in clocks),
        sum(clock.iterations for clock in clocks),
        {phase: sum(clock.phases_ns.get(phase, 0) for clock in clocks) for phase in CollectorPhase},
        sum(clock.cpu_ns for clock in clocks),
        SchedulerStats(*map(sum, zip(*(clock.scheduler for clock in clocks), strict=True))),
        TaggedTime(*map(sum, zip(*(clock.tagged for clock in clocks), strict=True))),
        sum(spreads[1:], start=spreads[0]) if spreads else None,
    )


def phase_keys(window: Window, *, has_rollouts: bool) -> Numbers:
    """Returns rank 0's phases per iteration, the collectors' per vector step, their spread, and their CPU time.

    The wall of a rollout is a mean over all collectors; 0 without rollouts.
    """
    record: Numbers = {}
    learner, collector = window.learner, window.collectors
    for side, phases, whole, clock in (
        ("learner", LearnerPhase, "iter", learner),
        ("collector", CollectorPhase, "cycle", collector),
    ):
        if clock is not None and clock.total_ns > 0:
            # A phase can be long because its process was not given a core.
            record[f"cpu/{side}_pct"] = 100.0 * clock.cpu_ns / clock.total_ns
            record[f"cpu/{side}_descheduled_pct"] = 100.0 * clock.scheduler.runnable_ns / clock.total_ns
            record[f"cpu/{side}_preemptions_per_sec"] = clock.scheduler.preemptions * NS_PER_S / clock.total_ns
        if clock is None or clock.iterations == 0:
            continue
        for phase in phases:
            record[f"timing/{side}_{phase}_ms"] = clock.mean_ms(phase)
            if clock.wall_ns > 0:
                record[f"share/{side}_{phase}_pct"] = 100.0 * clock.phases_ns.get(phase, 0) / clock.wall_ns
        for name, spread in spreads_of(clock.histogram, {**clock.phases_ns, whole: clock.wall_ns}).items():
            # Four digits: the percentiles are exact to 3 %. None of phases that never opened.
            record |= {f"spread/{side}_{name}_{each}_ms": float(f"{getattr(spread, each):.4g}") for each in STATISTICS}
            record[f"spread/{side}_count"] = spread.iterations
    if learner is not None and learner.iterations > 0:
        record["perf/iter_ms"] = learner.wall_ns / learner.iterations / NS_PER_MS
        record[PIPELINE_KEY] = sum(learner.mean_ms(phase) for phase in PIPELINE)
    if collector is not None and collector.iterations > 0:
        reset_ns = tagged_excess_ns(collector, CollectorPhase.ENV_STEP)
        record["perf/collector_cycle_ms"] = collector.wall_ns / collector.iterations / NS_PER_MS
        record["timing/collector_reset_ms"] = None if reset_ns is None else reset_ns / collector.iterations / NS_PER_MS
        after, before = (sum(each.rollouts for each in of.collectors) for of in (window.current, window.previous))
        rollout_ms = collector.wall_ns / (after - before) / NS_PER_MS if after > before else None
        record[ROLLOUT_KEY] = rollout_ms if has_rollouts else 0.0
    return record


def core_keys(window: Window, num_hosts: int) -> Numbers:
    """Returns what the cores of this host did per second, and the CPU time of the run per env step."""
    cores = window.cores
    if cores is None:
        return {}
    record: Numbers = {f"cores/{row}_ms_per_s": MS_PER_S * cores.classes_ns[row] / cores.wall_ns for row in CoreClass}
    record[CORES_KEY] = cores.capacity_ns / cores.wall_ns
    return record | {"perf/cpu_ms_per_env_step": cpu_ms_per_env_step(window, num_hosts)}


def cpu_ms_per_env_step(window: Window, num_hosts: int) -> float | None:
    """Returns the CPU time of all processes of the run per env step; None without either in the window."""
    cores, env_steps = window.cores, window.current.env_steps - window.previous.env_steps
    if cores is None or env_steps <= 0:
        return None
    ours_ns = cores.capacity_ns - cores.classes_ns[CoreClass.OTHERS] - cores.classes_ns[CoreClass.IDLE]
    return num_hosts * ours_ns / NS_PER_MS / env_steps


def prefetch_keys(window: Window) -> Numbers:
    """Returns means per batch of rank 0's packer; zeros without a packer, so that all runners have one schema."""
    packer = packer_elapsed(window.previous, window.current)
    if 0 not in window.working or (packer is not None and packer.iterations == 0):
        return {}
    return {f"prefetch/{phase}_ms": 0.0 if packer is None else packer.mean_ms(phase) for phase in PackerPhase}


def device_keys(window: Window) -> Numbers:
    """Returns device times of rank 0, and the update's over several ranks; no keys without a device timer.

    A device counts as busy from the first to the last operation of a span, gaps included. Hidden copies overlap with
    updates, which count already. Ranks without an iteration in the window are left out.
    """
    done = {
        rank: DeviceTotals(*map(sub, after.device, before.device or NO_DEVICE_TIME))
        for rank, (before, after) in enumerate(window.ranks)
        if after.device is not None and rank in window.working
    }
    record: Numbers = {}
    if 0 in done:
        totals, clock = done[0], window.working[0]
        spans_ns = {span: totals._asdict()[f"{span}_ns"] for span in DeviceSpan}
        record = {f"device/{span}_ms": ns / clock.iterations / NS_PER_MS for span, ns in spans_ns.items()}
        record["device/busy_share"] = (
            sum(ns for span, ns in spans_ns.items() if span is not DeviceSpan.H2D_HIDDEN) / clock.wall_ns
        )
        record["device/launch_bound"] = totals.launch_bound / totals.iterations if totals.iterations else None
        record["device/dropped"] = totals.dropped
    if done and len(window.ranks) > 1:
        train_ms = {rank: each.train_ns / window.working[rank].iterations / NS_PER_MS for rank, each in done.items()}
        record["rank/device_train_min_ms"] = min(train_ms.values())
        record["rank/device_train_mean_ms"] = fmean(train_ms.values())
        record["rank/device_train_max_ms"] = max(train_ms.values())
        record["rank/device_slowest"] = max(train_ms, key=lambda rank: train_ms[rank])
    return record


def all_calls(window: Window) -> LinkTotals:
    """Returns what the calls of all remote collectors have cost in the window."""
    return LinkTotals(*map(sum, zip(NO_CALLS, *window.calls, strict=True)))


def link_keys(totals: LinkTotals, wall_s: float) -> Numbers:
    """Returns the means per call of one collector or of all together, without `link/`; none where no reply came."""
    if not totals.calls or wall_s <= 0:
        return {}
    means = {name: value / totals.calls for name, value in totals._asdict().items()}
    record: Numbers = {f"{name[:-3]}_ms": ns / NS_PER_MS for name, ns in means.items() if name.endswith("_ns")}
    record |= {"calls_per_sec": totals.calls / wall_s, "bytes_per_sec": totals.bytes / wall_s}
    return record | {"lag_rows": means["env_steps"], "lag_versions": means["lag_versions"]}


def link_series(window: Window) -> Numbers:
    """Returns the keys of every remote collector."""
    return {
        f"link/{index}/{name}": value
        for index, each in enumerate(window.calls)
        for name, value in link_keys(each, window.wall_s).items()
    }


def evaluator_keys(window: Window) -> Numbers:
    """Returns counters, phases and CPU time of the evaluator's process; no keys where rank 0 evaluates.

    Phases are in ms per second of its wall: the evaluator is idle most of the time, so a mean per evaluation or per
    step would have no value in most windows.
    """
    totals, earlier = window.current.evaluator, window.previous.evaluator
    if totals is None:
        return {}
    record: Numbers = {"evaluator/episodes": float(totals.episodes), "evaluator/skipped": float(totals.skipped)}
    clock = elapsed(NO_ACCOUNT if earlier is None else earlier.account, totals.account)
    if clock is not None and clock.wall_ns > 0:
        for phase in EvaluatorPhase:
            record[f"evaluator/{phase}_ms"] = MS_PER_S * clock.phases_ns.get(phase, 0) / clock.wall_ns
        record["cpu/evaluator_pct"] = 100.0 * clock.cpu_ns / clock.total_ns
    return record
