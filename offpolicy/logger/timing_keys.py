"""The timing keys of a window: phases, their spread, CPU time, packer, device and evaluator."""

from __future__ import annotations

from statistics import fmean

from offpolicy.logger.metrics import CORES_KEY, PIPELINE_KEY, ROLLOUT_KEY
from offpolicy.model.windows import (
    NS_PER_MS,
    NS_PER_S,
    Elapsed,
    collector_windows,
    cores_elapsed,
    elapsed,
    learner_elapsed,
    learner_windows,
    packer_elapsed,
    spreads_of,
    tagged_excess_ns,
)
from offpolicy.timing.phases import CollectorPhase, CoreClass, DeviceSpan, EvaluatorPhase, LearnerPhase, PackerPhase
from offpolicy.types import NO_ACCOUNT, DeviceTotals, SchedulerStats, Snapshot, TaggedTime

MS_PER_S = 1000.0
STATISTICS = ("p50", "p95", "p99", "max")
PIPELINE = (LearnerPhase.H2D, LearnerPhase.TRAIN, LearnerPhase.PARAM_SYNC, LearnerPhase.WEIGHT_PUBLISH)
NO_DEVICE_TIME = DeviceTotals(0, 0, 0, 0, iterations=0, launch_bound=0, dropped=0)

Numbers = dict[str, float | None]


def collectors_elapsed(previous: Snapshot, current: Snapshot) -> Elapsed | None:
    """Returns the windows of all collectors added up; None without an account."""
    windows = [window.elapsed for window in collector_windows(previous, current) if window.elapsed is not None]
    if not windows:
        return None
    spreads = [window.histogram for window in windows if window.histogram is not None]
    return Elapsed(
        sum(window.wall_ns for window in windows),
        sum(window.total_ns for window in windows),
        sum(window.iterations for window in windows),
        {phase: sum(window.phases_ns.get(phase, 0) for window in windows) for phase in CollectorPhase},
        sum(window.cpu_ns for window in windows),
        SchedulerStats(*(sum(parts) for parts in zip(*(window.scheduler for window in windows), strict=True))),
        TaggedTime(*(sum(parts) for parts in zip(*(window.tagged for window in windows), strict=True))),
        sum(spreads[1:], start=spreads[0]) if spreads else None,
    )


def phase_keys(learner: Elapsed | None, collector: Elapsed | None, rollout_ms: float | None) -> Numbers:
    """Returns rank 0's phases per iteration, the collectors' per vector step, their spread, and their CPU time.

    `rollout_ms` is the mean wall of a rollout.
    """
    record: Numbers = {}
    for side, phases, whole, window in (
        ("learner", LearnerPhase, "iter", learner),
        ("collector", CollectorPhase, "cycle", collector),
    ):
        if window is not None and window.total_ns > 0:
            # A phase can be long because its process was not given a core.
            record[f"cpu/{side}_pct"] = 100.0 * window.cpu_ns / window.total_ns
            record[f"cpu/{side}_descheduled_pct"] = 100.0 * window.scheduler.runnable_ns / window.total_ns
            record[f"cpu/{side}_preemptions_per_sec"] = window.scheduler.preemptions * NS_PER_S / window.total_ns
        if window is None or window.iterations == 0:
            continue
        record |= {f"timing/{side}_{phase}_ms": window.mean_ms(phase) for phase in phases}
        for phase, spread in spreads_of(window.histogram, {**window.phases_ns, whole: window.wall_ns}).items():
            # Four digits: the percentiles are exact to 3 %. None of phases that never opened.
            numbers = {name: float(f"{getattr(spread, name):.4g}") for name in STATISTICS}
            record |= {f"spread/{side}_{phase}_{name}_ms": value for name, value in numbers.items()}
            record[f"spread/{side}_count"] = spread.iterations
        if window.wall_ns > 0:
            shares = {phase: window.phases_ns.get(phase, 0) / window.wall_ns for phase in phases}
            record |= {f"share/{side}_{phase}_pct": 100.0 * share for phase, share in shares.items()}
    if learner is not None and learner.iterations > 0:
        record["perf/iter_ms"] = learner.wall_ns / learner.iterations / NS_PER_MS
        record[PIPELINE_KEY] = sum(learner.mean_ms(phase) for phase in PIPELINE)
    if collector is not None and collector.iterations > 0:
        reset_ns = tagged_excess_ns(collector, CollectorPhase.ENV_STEP)
        record["perf/collector_cycle_ms"] = collector.wall_ns / collector.iterations / NS_PER_MS
        record["timing/collector_reset_ms"] = None if reset_ns is None else reset_ns / collector.iterations / NS_PER_MS
        record[ROLLOUT_KEY] = rollout_ms
    return record


def core_keys(previous: Snapshot, current: Snapshot, num_hosts: int) -> Numbers:
    """Returns what the cores of this host did per second, and the CPU time of the run per env step."""
    window = cores_elapsed(previous, current)
    if window is None:
        return {}
    record: Numbers = {f"cores/{row}_ms_per_s": MS_PER_S * window.classes_ns[row] / window.wall_ns for row in CoreClass}
    record[CORES_KEY] = window.capacity_ns / window.wall_ns
    record["perf/cpu_ms_per_env_step"] = cpu_ms_per_env_step(previous, current, num_hosts)
    return record


def cpu_ms_per_env_step(previous: Snapshot, current: Snapshot, num_hosts: int) -> float | None:
    """Returns the CPU time of all processes of the run per env step; None without either in the window."""
    window, env_steps = cores_elapsed(previous, current), current.env_steps - previous.env_steps
    if window is None or env_steps <= 0:
        return None
    ours_ns = window.capacity_ns - window.classes_ns[CoreClass.OTHERS] - window.classes_ns[CoreClass.IDLE]
    return num_hosts * ours_ns / NS_PER_MS / env_steps


def prefetch_keys(previous: Snapshot, current: Snapshot) -> Numbers:
    """Returns means per batch of rank 0's packer; zeros without a packer, so that all runners have one schema."""
    learner, packer = learner_elapsed(previous, current), packer_elapsed(previous, current)
    if learner is None or learner.iterations == 0 or (packer is not None and packer.iterations == 0):
        return {}
    return {f"prefetch/{phase}_ms": 0.0 if packer is None else packer.mean_ms(phase) for phase in PackerPhase}


def device_keys(previous: Snapshot, current: Snapshot) -> Numbers:
    """Returns device times of rank 0; no keys without a device timer, or without an iteration in the window.

    A device counts as busy from the first to the last operation of a span, gaps included. Hidden copies overlap with
    updates, which count already.
    """
    windows = device_windows(previous, current)
    if 0 not in windows:
        return {}
    window, done = windows[0]
    spans_ns = {
        DeviceSpan.SAMPLE: done.sample_ns,
        DeviceSpan.TRAIN: done.train_ns,
        DeviceSpan.H2D: done.h2d_ns,
        DeviceSpan.H2D_HIDDEN: done.h2d_hidden_ns,
    }
    record: Numbers = {f"device/{span}_ms": ns / window.iterations / NS_PER_MS for span, ns in spans_ns.items()}
    record["device/busy_share"] = (sum(spans_ns.values()) - done.h2d_hidden_ns) / window.wall_ns
    if done.iterations > 0:
        record["device/launch_bound"] = done.launch_bound / done.iterations
    return record | {"device/dropped": done.dropped}


def device_rank_keys(previous: Snapshot, current: Snapshot) -> Numbers:
    """Returns the update's device time over several ranks, and the rank with the most; no keys without a timer."""
    train_ms = {
        rank: done.train_ns / window.iterations / NS_PER_MS
        for rank, (window, done) in device_windows(previous, current).items()
    }
    if len(current.learners) == 1 or not train_ms:
        return {}
    return {
        "rank/device_train_min_ms": min(train_ms.values()),
        "rank/device_train_mean_ms": fmean(train_ms.values()),
        "rank/device_train_max_ms": max(train_ms.values()),
        "rank/device_slowest": max(train_ms, key=lambda rank: train_ms[rank]),
    }


def device_windows(previous: Snapshot, current: Snapshot) -> dict[int, tuple[Elapsed, DeviceTotals]]:
    """Returns by rank the window and what the device did in it, where there is a device timer and an iteration."""
    found = {}
    for rank, window in enumerate(learner_windows(previous, current)):
        after = current.learners[rank].device
        if window is not None and after is not None and window.iterations > 0 and window.wall_ns > 0:
            before = previous.learners[rank].device if rank < len(previous.learners) else None
            since = before or NO_DEVICE_TIME
            found[rank] = window, DeviceTotals(*(now - then for now, then in zip(after, since, strict=True)))
    return found


def evaluator_keys(previous: Snapshot, current: Snapshot) -> Numbers:
    """Returns counters, phases and CPU time of the evaluator's process; no keys where rank 0 evaluates.

    Phases are in ms per second of its wall: the evaluator is idle most of the time, so a mean per evaluation or per
    step would have no value in most windows.
    """
    totals = current.evaluator
    if totals is None:
        return {}
    counters: Numbers = {"evaluator/episodes": float(totals.episodes), "evaluator/skipped": float(totals.skipped)}
    before = previous.evaluator.account if previous.evaluator is not None else NO_ACCOUNT
    window = elapsed(before, totals.account)
    if window is None or window.wall_ns <= 0:
        return counters
    phases: Numbers = {
        f"evaluator/{phase}_ms": MS_PER_S * window.phases_ns.get(phase, 0) / window.wall_ns for phase in EvaluatorPhase
    }
    return counters | phases | {"cpu/evaluator_pct": 100.0 * window.cpu_ns / window.total_ns}
