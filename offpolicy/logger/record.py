"""One flat record from two snapshots: what happened between them, in the keys of the metric table."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from offpolicy.config.schedules import Ramp
from offpolicy.config.schema import algorithm_info
from offpolicy.logger.device import device_keys
from offpolicy.logger.evaluator import evaluator_keys
from offpolicy.logger.metrics import RESET_KEY, ROLLOUT_KEY, collector_key, learner_key, prefetch_key
from offpolicy.logger.rollouts import has_rollouts, policy_lag, rollout_ms, staleness_keys
from offpolicy.logger.spreads import CYCLE, ITERATION, spread_keys, sum_spreads
from offpolicy.logger.stragglers import rank_keys, straggler
from offpolicy.logger.work import collector_work, learner_work
from offpolicy.timing.bottleneck import (
    LEARNER_ADVICE,
    ROLLOUT_ADVICE,
    WARMING_UP,
    Verdict,
    WindowEvidence,
    find_bottleneck,
)
from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase
from offpolicy.timing.rates import (
    NS_PER_MS,
    NS_PER_S,
    Elapsed,
    Rates,
    collector_windows,
    compute_rates,
    learner_elapsed,
    learner_windows,
    num_updates,
    packer_elapsed,
    tagged_excess_ns,
)
from offpolicy.types import EpisodeRecord, EvalResult, MetricTotals, SchedulerStats, Snapshot, TaggedTime

Record = dict[str, float | str | None]

PLAIN_RUNNER = "single_gpu"  # goes without saying
PIPELINE = (LearnerPhase.H2D, LearnerPhase.TRAIN, LearnerPhase.PARAM_SYNC, LearnerPhase.WEIGHT_PUBLISH)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """What a run is, for its panel and files. `started_unix_s` dates the records: it plus `wall_s`."""

    algo: str
    env_id: str
    seed: int
    mode: str  # collection mode
    total_timesteps: int
    device: str = ""  # '' until the learner has chosen
    num_envs: int = 1  # of one collector
    num_collectors: int = 1  # of this host
    num_hosts: int = 1
    world_size: int = 1  # learner ranks of all hosts
    runner: str = PLAIN_RUNNER
    stage: str = ""  # of an algorithm that has stages
    ramps: Mapping[str, Ramp] = field(default_factory=dict)  # the options that change during the run, by name
    flops_per_update: float = 0.0  # of one learner rank; 0: not known
    flops_per_decision: float = 0.0  # of the policy, for one environment; 0: not known
    attainable_flops_per_sec: float | None = None  # of the learner's machine, at the shapes of an update
    started_unix_s: float = 0.0

    @property
    def has_rollouts(self) -> bool:
        """True if the learner learns from rollouts rather than from a replay."""
        return algorithm_info(self.algo, self.stage).learns_from_rollouts


@dataclass(slots=True)
class EpisodeWindow:
    """The last 100 finished training episodes, and how many there were."""

    recent: deque[EpisodeRecord] = field(default_factory=lambda: deque(maxlen=100))
    finished: int = 0

    def add(self, episode: EpisodeRecord) -> None:
        """Append an episode; the oldest of more than 100 leaves."""
        self.recent.append(episode)
        self.finished += 1


def build_record(  # noqa: PLR0913  # what a record is made of, each needed
    previous: Snapshot | None,
    current: Snapshot,
    episodes_window: EpisodeWindow,
    last_eval: EvalResult | None,
    header: RunHeader,
    rates: Rates | None = None,
    verdict: Verdict | None = None,
) -> Record:
    """The record of the window from `previous` (None: the start) to `current`; finite numbers and text only.

    `rates` are those of a window that is longer where this one holds little; None: those of this one. `verdict` is
    the one to show; None: it is not known. Phases are means per iteration in ms. Keys without data in the window are
    absent, as are all timing keys when the account is off.
    """
    rates = rates or compute_rates(previous, current, header.mode, header.num_hosts)
    record: Record = {"env_steps": current.env_steps, "iteration": current.iteration, "wall_s": current.wall_s}
    record |= _phase_keys(previous, current) | rank_keys(learner_windows(previous, current))
    record |= _prefetch_keys(previous, current) | device_keys(previous, current) | evaluator_keys(previous, current)
    record |= _rate_keys(rates, previous, current)
    record |= learner_work(rates, header) | collector_work(_collectors_elapsed(previous, current), header)
    record |= _verdict_keys(verdict) if verdict is not None else {}
    record |= _rollout_keys(episodes_window) | _eval_keys(last_eval) | _train_keys(previous, current)
    record |= _level_keys(current) | _scheduled_keys(header.ramps, current.env_steps)
    record["time/eta_s"] = eta_s(current, rates, header.total_timesteps)
    return {key: value for key, value in record.items() if _is_known(value)}


def _is_known(value: float | str | None) -> bool:
    return isinstance(value, str) or (value is not None and math.isfinite(value))


def judge_window(previous: Snapshot | None, current: Snapshot, rates: Rates, mode: str) -> Verdict | None:
    """The verdict on the window; None when timing is off, or when a side did not report in the window."""
    learner, collector = learner_elapsed(previous, current), _collectors_elapsed(previous, current)
    if learner is None or collector is None:
        return None
    if num_updates(current) == 0:
        return WARMING_UP
    if learner.wall_ns <= 0 or collector.wall_ns <= 0:
        return None
    evidence = WindowEvidence(
        straggler=_late_rank(previous, current),
        learner_advice=ROLLOUT_ADVICE if has_rollouts(current) else LEARNER_ADVICE,
        learner_descheduled=_descheduled(learner),
        collector_descheduled=_descheduled(collector),
        resets=_reset_share(collector),
        launch_bound=device_keys(previous, current).get("device/launch_bound", 0.0),
    )
    return find_bottleneck(learner.phases_ns, collector.phases_ns, rates, mode, evidence)


def _descheduled(window: Elapsed) -> float:
    """The share of the time in which a side could have run, and others had the core."""
    return window.scheduler.runnable_ns / window.total_ns if window.total_ns > 0 else 0.0


def _reset_share(window: Elapsed) -> float:
    """The share of env_step that there would not be without resets, as far as it can be told."""
    env_step_ns = window.phases_ns.get(CollectorPhase.ENV_STEP, 0)
    return (tagged_excess_ns(window, CollectorPhase.ENV_STEP) or 0.0) / env_step_ns if env_step_ns > 0 else 0.0


def _late_rank(previous: Snapshot | None, current: Snapshot) -> int | None:
    """The rank that rank 0 waits for; None where rank 0 waits the least, so that no other one holds it up."""
    late = straggler(learner_windows(previous, current))
    return None if late == 0 else late


def _collectors_elapsed(previous: Snapshot | None, current: Snapshot) -> Elapsed | None:
    """All collectors' windows added up; None when timing is off."""
    windows = [window.elapsed for window in collector_windows(previous, current) if window.elapsed is not None]
    if not windows:
        return None
    return Elapsed(
        sum(window.wall_ns for window in windows),
        sum(window.total_ns for window in windows),
        sum(window.iterations for window in windows),
        {phase: sum(window.phases_ns.get(phase, 0) for window in windows) for phase in CollectorPhase},
        sum(window.cpu_ns for window in windows),
        SchedulerStats(*(sum(parts) for parts in zip(*(window.scheduler for window in windows), strict=True))),
        TaggedTime(*(sum(parts) for parts in zip(*(window.tagged for window in windows), strict=True))),
        sum_spreads([window.histogram for window in windows]),
    )


def _phase_keys(previous: Snapshot | None, current: Snapshot) -> Record:
    learner, collector = learner_elapsed(previous, current), _collectors_elapsed(previous, current)
    record: Record = {}
    if learner is not None:
        record |= _cpu_keys("learner", learner)
    if collector is not None:
        record |= _cpu_keys("collector", collector)
    if learner is not None and learner.iterations > 0:
        record |= {learner_key(phase): learner.mean_ms(phase) for phase in LearnerPhase}
        record["perf/iter_ms"] = learner.wall_ns / learner.iterations / NS_PER_MS
        record["perf/learner_pipeline_ms"] = sum(learner.mean_ms(phase) for phase in PIPELINE)
        record |= spread_keys("learner", (*LearnerPhase, ITERATION), learner.histogram)
    if collector is not None and collector.iterations > 0:
        record |= {collector_key(phase): collector.mean_ms(phase) for phase in CollectorPhase}
        record["perf/collector_cycle_ms"] = collector.wall_ns / collector.iterations / NS_PER_MS
        record[ROLLOUT_KEY] = rollout_ms(previous, current)
        reset_ns = tagged_excess_ns(collector, CollectorPhase.ENV_STEP)
        record[RESET_KEY] = None if reset_ns is None else reset_ns / collector.iterations / NS_PER_MS
        record |= spread_keys("collector", (*CollectorPhase, CYCLE), collector.histogram)
    return record


def _prefetch_keys(previous: Snapshot | None, current: Snapshot) -> Record:
    """Means per packed batch of rank 0's packer; zeros where nothing is packed ahead: all runners have one schema."""
    learner, packer = learner_elapsed(previous, current), packer_elapsed(previous, current)
    if learner is None or learner.iterations == 0:
        return {}
    if packer is None:
        return {prefetch_key(phase): 0.0 for phase in PackerPhase}
    return {prefetch_key(phase): packer.mean_ms(phase) for phase in PackerPhase} if packer.iterations > 0 else {}


def _cpu_keys(side: str, window: Elapsed) -> Record:
    """What the processor gave a side: a phase can be long because it was not given a core."""
    if window.total_ns <= 0:
        return {}
    return {
        f"cpu/{side}_pct": 100.0 * window.cpu_ns / window.total_ns,
        f"cpu/{side}_descheduled_pct": 100.0 * window.scheduler.runnable_ns / window.total_ns,
        f"cpu/{side}_preemptions_per_sec": window.scheduler.preemptions * NS_PER_S / window.total_ns,
    }


def _rate_keys(rates: Rates, previous: Snapshot | None, current: Snapshot) -> Record:
    return {
        "perf/steps_per_sec": rates.steps_per_sec,
        "perf/updates_per_sec": rates.updates_per_sec,
        "perf/collector_capacity": rates.collector_capacity,
        "perf/learner_capacity": rates.learner_capacity,
        "perf/predicted_steps_per_sec": rates.predicted_steps_per_sec,
        "perf/utd": rates.utd,
        "perf/update_debt": current.update_debt,
        "perf/policy_lag": policy_lag(previous, current),
        "perf/sample_age": _sample_age(previous, current),
    } | staleness_keys(previous, current)


def _sample_age(previous: Snapshot | None, current: Snapshot) -> float | None:
    if has_rollouts(current):
        return None  # nothing is sampled: rollouts have a policy lag
    before = previous.learners if previous is not None else ()
    samples = sum(rank.samples for rank in current.learners) - sum(rank.samples for rank in before)
    age = sum(rank.sample_age_sum for rank in current.learners) - sum(rank.sample_age_sum for rank in before)
    return age / samples if samples > 0 else None


def _verdict_keys(verdict: Verdict) -> Record:
    record: Record = {"perf/bottleneck": verdict.label, "perf/bottleneck_reason": verdict.reason}
    if verdict.advice:
        record["perf/bottleneck_advice"] = "; ".join(advice.text for advice in verdict.advice)
    return record


def _rollout_keys(window: EpisodeWindow) -> Record:
    record: Record = {"rollout/episodes": window.finished}
    if window.recent:
        record["rollout/ep_rew_mean"] = _mean([episode.ep_return for episode in window.recent])
        record["rollout/ep_len_mean"] = _mean([episode.ep_length for episode in window.recent])
        record["rollout/success_rate"] = _mean([e.success for e in window.recent if not math.isnan(e.success)])
    return record


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _eval_keys(result: EvalResult | None) -> Record:
    if result is None:
        return {}
    return {
        "eval/mean_reward": result.mean_reward,
        "eval/std_reward": result.std_reward,
        "eval/mean_ep_length": result.mean_length,
        "eval/env_steps": result.env_steps,
        "eval/policy_version": result.policy_version,
        "eval/overlap": result.overlap,
        "eval/post_failures": result.post_failures,
    }


def _train_keys(previous: Snapshot | None, current: Snapshot) -> Record:
    """Means of the learner's metrics over the window and over all ranks."""
    if not current.learners:
        return {}
    before = previous.learners if previous is not None else ()
    means = metric_means([rank.metrics for rank in before], [rank.metrics for rank in current.learners])
    record: Record = {f"train/{name}": value for name, value in means.items()}
    record["train/n_updates"] = num_updates(current)
    return record


def metric_means(previous: Sequence[MetricTotals], current: Sequence[MetricTotals]) -> Mapping[str, float | None]:
    """Mean of each metric between two cumulative readings of every rank; None where nothing was counted.

    Joined by name and weighted by count: the sum over ranks by their count. A rank that does not know a number
    (NaN, or no report yet) is left out, or nobody's would be known.
    """
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for rank, totals in enumerate(current):
        before = _by_name(previous[rank]) if rank < len(previous) else {}
        for name, (total, count) in _by_name(totals).items():
            total_before, count_before = before.get(name, (0.0, 0.0))
            is_known = count > count_before and math.isfinite(total - total_before)
            sums[name] = sums.get(name, 0.0) + (total - total_before if is_known else 0.0)
            counts[name] = counts.get(name, 0.0) + (count - count_before if is_known else 0.0)
    return {name: sums[name] / counts[name] if counts[name] > 0 else None for name in sums}


def _by_name(totals: MetricTotals) -> dict[str, tuple[float, float]]:
    pairs = zip(totals.sums, totals.counts, strict=True)
    return {name: (float(total), float(count)) for name, (total, count) in zip(totals.names, pairs, strict=True)}


def _scheduled_keys(ramps: Mapping[str, Ramp], env_steps: int) -> Record:
    """What is in force at an env step, by the function that learner and collectors go by."""
    return {f"train/{name}": ramp.at(env_steps) for name, ramp in ramps.items() if name != "lr"}


def _level_keys(current: Snapshot) -> Record:
    return {
        "time/total_timesteps": current.env_steps,
        "time/elapsed_s": current.wall_s,
        "replay/rows": current.replay_rows,
        "replay/fill": current.replay_rows / current.replay_capacity if current.replay_capacity > 0 else None,
    }


def eta_s(current: Snapshot, rates: Rates, total_timesteps: int) -> float | None:
    """Seconds left at the rate of `rates`."""
    remaining = max(0, total_timesteps - current.env_steps)
    return remaining / rates.steps_per_sec if rates.steps_per_sec else None
