"""The record of a window: one flat mapping from two snapshots, in the keys of the metric table."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from offpolicy.config.algorithms import algorithm_info
from offpolicy.config.schedules import Ramp
from offpolicy.logger.stragglers import rank_keys
from offpolicy.logger.timing_keys import (
    collectors_elapsed,
    core_keys,
    device_keys,
    device_rank_keys,
    evaluator_keys,
    phase_keys,
    prefetch_keys,
)
from offpolicy.model.bottleneck import Verdict
from offpolicy.model.rates import Rates, compute_rates, num_updates, policy_steps
from offpolicy.model.throughput import collector_active_ns
from offpolicy.model.windows import (
    NS_PER_MS,
    NS_PER_S,
    Elapsed,
    collector_windows,
    learner_elapsed,
    learner_windows,
    of_iterations,
)
from offpolicy.timing.phases import CollectorPhase
from offpolicy.types import NO_COUNTERS, NUM_LAGS, EpisodeRecord, EvalResult, Float64, Lateness, MetricTotals, Snapshot

Record = dict[str, float | str | None]

PLAIN_RUNNER = "single_gpu"  # the runner that the panel does not name
TAIL = 0.95  # fraction of the rollouts that perf/policy_lag_p95 covers


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """The facts of a run that its panel and files show. A record's date is `started_unix_s` plus its `wall_s`."""

    algo: str
    env_id: str
    seed: int
    mode: str  # collection mode
    total_timesteps: int
    device: str = ""  # '' until the learner has chosen
    products: str = ""  # library of its wide matrix products of float32; '': not known, or on a GPU
    num_envs: int = 1  # of one collector
    num_collectors: int = 1  # of this host
    num_hosts: int = 1
    world_size: int = 1  # learner ranks of all hosts
    runner: str = PLAIN_RUNNER
    stage: str = ""  # of an algorithm that has stages
    ramps: Mapping[str, Ramp] = field(default_factory=dict)  # the options that change during the run, by name
    flops_per_update: float = 0.0  # of one learner rank; 0: not known
    flops_per_decision: float = 0.0  # of the policy, for one environment; 0: not known
    attainable_flops_per_sec: float | None = None  # what the machine attains at the shapes of an update
    tried_update_s: Mapping[int, float] = field(default_factory=dict)  # seconds per update, with those that were tried
    learner_threads: int = 0  # CPU threads of one learner rank, now; 0: not known yet
    kernels: str = ""  # that make the updates, textbook or fast; '' until the learner has chosen
    collector_threads: int = 1  # of one collector
    env_step_factors: Mapping[str, float] = field(default_factory=dict)  # as in `throughput.Pipeline`
    has_gpu: bool = False  # that torch can use, as far as is known; whether or not the run uses it
    started_unix_s: float = 0.0
    is_resumed: bool = False  # the run has records of an earlier start
    best_eval: tuple[float, float] | None = None  # mean return of its best evaluation before, and its env steps
    last_eval_step: int | None = None  # env steps of its last evaluation before

    @property
    def has_rollouts(self) -> bool:
        """True if the learner learns from rollouts rather than from a replay."""
        return algorithm_info(self.algo, self.stage).learns_from_rollouts


@dataclass(slots=True)
class EpisodeWindow:
    """The last 100 finished training episodes, and the number of all of them."""

    recent: deque[EpisodeRecord] = field(default_factory=lambda: deque(maxlen=100))
    finished: int = 0

    def add(self, episode: EpisodeRecord) -> None:
        """Appends an episode; of more than 100 the oldest is dropped."""
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
    late: Lateness | None = None,
) -> Record:
    """Returns the record of the window from `previous` (None: the start) to `current`: finite numbers and text only.

    `rates` are those of a longer window where this one holds little; None: those of this one. `verdict` is the one to
    show; None: unknown. `late` is the straggler. Phases are means per iteration in ms. Keys without data in the window
    are absent, as are all timing keys with timing off.
    """
    previous, learning = previous or NO_COUNTERS, of_iterations(current)
    rates = rates or compute_rates(previous, learning, header.mode, header.num_hosts)
    learner, collectors = learner_elapsed(previous, current), collectors_elapsed(previous, current)
    record: Record = {"env_steps": current.env_steps, "iteration": current.iteration, "wall_s": current.wall_s}
    record |= phase_keys(learner, collectors, rollout_ms(previous, current) if header.has_rollouts else 0.0)
    record |= rank_keys(previous, current, late)
    record |= prefetch_keys(previous, current) | evaluator_keys(previous, current)
    record |= device_keys(previous, current) | device_rank_keys(previous, current)
    record |= {
        "perf/steps_per_sec": rates.steps_per_sec,
        "perf/updates_per_sec": rates.updates_per_sec,
        "perf/samples_per_sec": samples_per_sec(previous, learning),
        "perf/collector_capacity": rates.collector_capacity,
        "perf/learner_capacity": rates.learner_capacity,
        "perf/predicted_steps_per_sec": rates.predicted_steps_per_sec,
        "perf/utd": rates.utd,
        "perf/update_debt": current.update_debt,
        "perf/learner_threads": header.learner_threads or None,
    }
    record |= core_keys(previous, current, header.num_hosts)
    if current.system is not None:
        record |= {f"system/{name}": getattr(current.system, name) for name in current.system.__dataclass_fields__}
    record |= rollout_keys(previous, current) if header.has_rollouts else _replay_keys(previous, current)
    record |= _flops_keys(rates, collectors, header)
    if verdict is not None:
        record |= {"perf/bottleneck": verdict.label, "perf/bottleneck_reason": verdict.reason}
        record |= {"perf/bottleneck_advice": "; ".join(one.text for one in verdict.advice)} if verdict.advice else {}
    record |= _episode_keys(episodes_window, last_eval)
    if current.learners:
        means = metric_means([rank.metrics for rank in previous.learners], [rank.metrics for rank in current.learners])
        record |= {f"train/{name}": value for name, value in means.items()} | {"train/n_updates": num_updates(current)}
    record |= {
        "time/total_timesteps": current.env_steps,
        "time/elapsed_s": current.wall_s,
        "replay/rows": current.replay_rows,
        "replay/fill": current.replay_rows / current.replay_capacity if current.replay_capacity > 0 else None,
        "collect/restarts": current.restarts or None,
        "train/restarts": current.learner_restarts or None,
        "time/eta_s": eta_s(current, rates, header.total_timesteps),
    }
    # The schedules of learner and collectors; the learner reports the rate of `lr` as a metric.
    record |= {f"train/{name}": ramp.at(current.env_steps) for name, ramp in header.ramps.items() if name != "lr"}
    known = {key: value for key, value in record.items() if value is not None}
    return {key: value for key, value in known.items() if isinstance(value, str) or math.isfinite(value)}


def samples_per_sec(previous: Snapshot, current: Snapshot) -> float | None:
    """Returns the rows learnt from per second, summed over ranks, each on its own clock; None where there are none."""
    total = 0.0
    for rank, window in enumerate(learner_windows(previous, current)):
        totals = current.learners[rank]
        before = previous.learners[rank] if rank < len(previous.learners) else None
        then, updates = (before.samples, before.updates) if before is not None else (0, 0)
        samples: float = totals.samples - then
        if window is not None and updates < totals.warmup_updates:  # without those from before the account began
            samples *= max(totals.updates - totals.warmup_updates, 0) / max(totals.updates - updates, 1)
        seconds = window.wall_ns / NS_PER_S if window is not None else current.wall_s - previous.wall_s
        total += samples / seconds if seconds > 0 else 0.0
    return total or None


def eta_s(current: Snapshot, rates: Rates, total_timesteps: int) -> float | None:
    """Returns the seconds left at the rate of `rates`."""
    remaining = max(0, total_timesteps - current.env_steps)
    return remaining / rates.steps_per_sec if rates.steps_per_sec else None


def _replay_keys(previous: Snapshot, current: Snapshot) -> Record:
    """Returns the age of the acting policy per vector step, and of the rows sampled."""

    def sums(snapshot: Snapshot) -> Iterator[float]:
        yield sum(totals.policy_lag_sum for totals in snapshot.collectors)
        yield policy_steps(snapshot)
        yield sum(rank.sample_age_sum for rank in snapshot.learners)
        yield sum(rank.samples for rank in snapshot.learners)

    lag, steps, age, samples = (now - then for now, then in zip(sums(current), sums(previous), strict=True))
    return {
        "perf/policy_lag": lag / steps if steps > 0 else None,
        "perf/sample_age": age / samples if samples > 0 else None,
    }


def rollout_keys(previous: Snapshot, current: Snapshot) -> Record:
    """Returns the age of the weights of the rollouts learnt from in the window, and the number of rollouts lost."""

    def lags_of(snapshot: Snapshot) -> Float64:  # [NUM_LAGS] rollouts of all ranks, by the lag in versions
        found = [rank.rollouts.lags for rank in snapshot.learners if rank.rollouts is not None]
        return sum(found, start=np.zeros(NUM_LAGS))

    lags = lags_of(current) - lags_of(previous)
    has_lags = bool(lags.any())
    return {
        "perf/policy_lag": float(lags @ np.arange(NUM_LAGS) / lags.sum()) if has_lags else None,
        "perf/policy_lag_p95": float(np.searchsorted(np.cumsum(lags) / lags.sum(), TAIL)) if has_lags else None,
        "perf/rollouts_dropped": sum(totals.rollouts_dropped for totals in current.collectors),
        "perf/rollouts_too_old": sum(rank.rollouts.too_old for rank in current.learners if rank.rollouts is not None),
    }


def rollout_ms(previous: Snapshot, current: Snapshot) -> float | None:
    """Returns the mean wall of a rollout over all collectors; None where none was finished."""
    wall_ns = sum(window.elapsed.wall_ns for window in collector_windows(previous, current) if window.elapsed)
    after, before = (sum(totals.rollouts for totals in each.collectors) for each in (current, previous))
    return wall_ns / (after - before) / NS_PER_MS if after > before else None


def flops_per_sec(rates: Rates, header: RunHeader) -> float | None:
    """Returns the FLOP of the networks per active second of a learner; None where one of the two is not known."""
    if not rates.learner_active_s or not header.flops_per_update:
        return None
    return header.flops_per_update / rates.learner_active_s


def _flops_keys(rates: Rates, collectors: Elapsed | None, header: RunHeader) -> Record:
    """Returns the FLOP/s of the networks on both sides, and the environments' fraction of the collectors' time.

    A vector step decides for every environment, including those just reset.
    """
    record: Record = {}
    done = flops_per_sec(rates, header)
    if done is not None:
        attainable = header.attainable_flops_per_sec
        record["perf/flops_per_sec"] = done
        record["perf/flops_of_attainable"] = done / attainable if attainable else None
    if collectors is not None:
        deciding_ns = collectors.phases_ns.get(CollectorPhase.ACTION_SELECT, 0)
        if deciding_ns > 0 and header.flops_per_decision:
            decided = header.flops_per_decision * header.num_envs * collectors.iterations
            record["perf/collector_flops_per_sec"] = decided * NS_PER_S / deciding_ns
        active_ns = collector_active_ns(collectors.phases_ns, header.mode)
        if active_ns > 0:
            record["perf/env_step_share"] = collectors.phases_ns.get(CollectorPhase.ENV_STEP, 0) / active_ns
    return record


def _episode_keys(window: EpisodeWindow, result: EvalResult | None) -> Record:
    """Returns the means of the last training episodes, and the last evaluation."""
    record: Record = {"rollout/episodes": window.finished}
    if window.recent:
        successes = [episode.success for episode in window.recent if not math.isnan(episode.success)]
        record["rollout/ep_rew_mean"] = fmean(episode.ep_return for episode in window.recent)
        record["rollout/ep_len_mean"] = fmean(episode.ep_length for episode in window.recent)
        record["rollout/success_rate"] = fmean(successes) if successes else None
    if result is not None:
        record |= {
            "eval/mean_reward": result.mean_reward,
            "eval/std_reward": result.std_reward,
            "eval/mean_ep_length": result.mean_length,
            "eval/env_steps": result.env_steps,
            "eval/policy_version": result.policy_version,
        }
    return record


def metric_means(previous: Sequence[MetricTotals], current: Sequence[MetricTotals]) -> Mapping[str, float | None]:
    """Returns the mean of each metric between two cumulative readings of all ranks; None where nothing was counted.

    Metrics are joined by name and weighted by count. A rank with an unknown number (NaN, or no report yet) is left
    out, or the mean would be unknown.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, float] = defaultdict(float)
    for rank, totals in enumerate(current):
        before = _by_name(previous[rank]) if rank < len(previous) else {}
        for name, (total, count) in _by_name(totals).items():
            total_before, count_before = before.get(name, (0.0, 0.0))
            is_known = count > count_before and math.isfinite(total - total_before)
            sums[name] += total - total_before if is_known else 0.0
            counts[name] += count - count_before if is_known else 0.0
    return {name: sums[name] / counts[name] if counts[name] > 0 else None for name in sums}


def _by_name(totals: MetricTotals) -> Mapping[str, tuple[float, float]]:
    pairs = zip(totals.sums.tolist(), totals.counts.tolist(), strict=True)
    return dict(zip(totals.names, pairs, strict=True))
