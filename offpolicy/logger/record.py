"""The record of a window: one flat mapping from two snapshots, in the keys of the metric table."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean

import numpy as np

from offpolicy.config.algorithms import algorithm_info
from offpolicy.config.schedules import Ramp
from offpolicy.logger.stragglers import rank_keys
from offpolicy.logger.timing_keys import (
    Window,
    all_calls,
    core_keys,
    device_keys,
    evaluator_keys,
    link_keys,
    phase_keys,
    prefetch_keys,
)
from offpolicy.model.bottleneck import Verdict
from offpolicy.model.rates import Rates, num_updates, policy_steps
from offpolicy.model.throughput import collector_active_ns
from offpolicy.model.windows import NS_PER_S, Elapsed
from offpolicy.timing.phases import CollectorPhase
from offpolicy.types import NUM_LAGS, EpisodeRecord, EvalResult, Lateness, MetricTotals, RolloutTotals

Record = dict[str, float | str | None]

PLAIN_RUNNER = "single_gpu"  # the runner that the panel does not name
TAIL = 0.95  # fraction of the rollouts that perf/policy_lag_p95 covers
NO_ROLLOUTS = RolloutTotals(0, np.zeros(NUM_LAGS))


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


def build_record(  # noqa: PLR0913  # what a record is made of, each needed
    window: Window,
    learning: Window,
    curves: Record,
    header: RunHeader,
    rates: Rates,
    verdict: Verdict | None,
    late: Lateness | None,
) -> Record:
    """Returns the record of the window: finite numbers and text only.

    `learning` is the window up to each side's last iteration. `curves` are the `episode_keys`. `rates` are those of a
    longer window where this one holds little. `verdict` is the one to show; None: unknown. `late` is the straggler.
    Phases are means per iteration in ms. Keys without data in the window are absent, as are all timing keys with timing
    off.
    """
    current = window.current
    record: Record = {"env_steps": current.env_steps, "iteration": current.iteration, "wall_s": current.wall_s}
    record |= phase_keys(window, has_rollouts=header.has_rollouts)
    record |= prefetch_keys(window) | evaluator_keys(window) | device_keys(window) | core_keys(window, header.num_hosts)
    record |= rank_keys(window, late)
    record |= {f"link/{name}": value for name, value in link_keys(all_calls(window), window.wall_s).items()}
    record |= {
        **{f"perf/{name}": value for name, value in asdict(rates).items() if name != "learner_active_s"},
        "perf/samples_per_sec": samples_per_sec(learning),
        "perf/update_debt": current.update_debt,
        "perf/learner_threads": header.learner_threads or None,
        "time/total_timesteps": current.env_steps,
        "time/elapsed_s": current.wall_s,
        "replay/rows": current.replay_rows,
        "replay/fill": current.replay_rows / current.replay_capacity if current.replay_capacity > 0 else None,
        "collect/restarts": current.restarts or None,
        "train/restarts": current.learner_restarts or None,
    }
    if current.system is not None:
        record |= {f"system/{name}": value for name, value in asdict(current.system).items()}
    record |= _rollout_keys(window) if header.has_rollouts else _replay_keys(window)
    record |= _flops_keys(rates, window.collectors, header)
    if verdict is not None:
        record |= {"perf/bottleneck": verdict.label, "perf/bottleneck_reason": verdict.reason}
        record |= {"perf/bottleneck_advice": "; ".join(one.text for one in verdict.advice)} if verdict.advice else {}
    record |= curves | _metric_means(window) | _env_keys(window)
    # The schedules of learner and collectors; the learner reports the rate of `lr` as a metric.
    record |= {f"train/{name}": ramp.at(current.env_steps) for name, ramp in header.ramps.items() if name != "lr"}
    known = {key: value for key, value in record.items() if value is not None}
    return {key: value for key, value in known.items() if isinstance(value, str) or math.isfinite(value)}


def samples_per_sec(window: Window) -> float | None:
    """Returns the rows learnt from per second, summed over ranks, each on its own clock; None where there are none."""
    total, wall_s = 0.0, window.current.wall_s - window.previous.wall_s
    for (before, after), clock in zip(window.ranks, window.learners, strict=True):
        samples: float = after.samples - before.samples
        if clock is not None and before.updates < after.warmup_updates:  # without those from before the account began
            samples *= max(after.updates - after.warmup_updates, 0) / max(after.updates - before.updates, 1)
        seconds = clock.wall_ns / NS_PER_S if clock is not None else wall_s
        total += samples / seconds if seconds > 0 else 0.0
    return total or None


def _replay_keys(window: Window) -> Record:
    """Returns the age of the acting policy per vector step, and of the rows sampled."""
    now, then = window.current.collectors, window.previous.collectors
    lag = sum(each.policy_lag_sum for each in now) - sum(each.policy_lag_sum for each in then)
    steps = policy_steps(window.current) - policy_steps(window.previous)
    age = sum(after.sample_age_sum - before.sample_age_sum for before, after in window.ranks)
    samples = sum(after.samples - before.samples for before, after in window.ranks)
    return {
        "perf/policy_lag": lag / steps if steps > 0 else None,
        "perf/sample_age": age / samples if samples > 0 else None,
    }


def _env_keys(window: Window) -> Record:
    """Returns the means of the numbers that the environments have logged in the window."""
    sums: dict[str, tuple[float, int]] = {}
    for sign, totals in ((1, window.current.collectors), (-1, window.previous.collectors)):
        for name, total, count in (entry for collector in totals for entry in collector.log):
            before = sums.get(name, (0.0, 0))
            sums[name] = before[0] + sign * total, before[1] + sign * count
    return {f"env/{name}": total / count for name, (total, count) in sums.items() if count > 0}


def _rollout_keys(window: Window) -> Record:
    """Returns the age of the weights of the rollouts learnt from in the window, and the number of rollouts lost."""
    totals = [(before.rollouts or NO_ROLLOUTS, after.rollouts or NO_ROLLOUTS) for before, after in window.ranks]
    lags = sum((after.lags - before.lags for before, after in totals), start=np.zeros(NUM_LAGS))  # by lag in versions
    has_lags = bool(lags.any())
    return {
        "perf/policy_lag": float(lags @ np.arange(NUM_LAGS) / lags.sum()) if has_lags else None,
        "perf/policy_lag_p95": float(np.searchsorted(np.cumsum(lags) / lags.sum(), TAIL)) if has_lags else None,
        "perf/rollouts_dropped": sum(each.rollouts_dropped for each in window.current.collectors),
        "perf/rollouts_too_old": sum(after.too_old for _, after in totals),
    }


def flops_per_sec(rates: Rates, header: RunHeader) -> float | None:
    """Returns the FLOP of the networks per active second of a learner; None where one of the two is not known."""
    if not rates.learner_active_s or not header.flops_per_update:
        return None
    return header.flops_per_update / rates.learner_active_s


def _flops_keys(rates: Rates, collectors: Elapsed | None, header: RunHeader) -> Record:
    """Returns the FLOP/s of the networks on both sides, and the environments' fraction of the collectors' time.

    A vector step decides for every environment, including those just reset.
    """
    done, attainable = flops_per_sec(rates, header), header.attainable_flops_per_sec
    record: Record = {"perf/flops_per_sec": done}
    if done is not None and attainable:
        record["perf/flops_of_attainable"] = done / attainable
    if collectors is not None:
        deciding_ns = collectors.phases_ns[CollectorPhase.ACTION_SELECT]
        if deciding_ns > 0 and header.flops_per_decision:
            decided = header.flops_per_decision * header.num_envs * collectors.iterations
            record["perf/collector_flops_per_sec"] = decided * NS_PER_S / deciding_ns
        active_ns = collector_active_ns(collectors.phases_ns, header.mode)
        if active_ns > 0:
            record["perf/env_step_share"] = collectors.phases_ns[CollectorPhase.ENV_STEP] / active_ns
    return record


def episode_keys(recent: Collection[EpisodeRecord], finished: int, result: EvalResult | None) -> Record:
    """Returns the means of the recent training episodes, the number of all `finished`, and the last evaluation."""
    record: Record = {"rollout/episodes": finished}
    if recent:
        successes = [episode.success for episode in recent if not math.isnan(episode.success)]
        record["rollout/ep_rew_mean"] = fmean(episode.ep_return for episode in recent)
        record["rollout/ep_len_mean"] = fmean(episode.ep_length for episode in recent)
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


def _metric_means(window: Window) -> Record:
    """Returns the mean of each metric of the learners in the window, and the number of all updates.

    Metrics are joined by name and weighted by count. A rank with an unknown number (NaN, or no report yet) is left
    out, or the mean would be unknown.
    """
    if not window.ranks:
        return {}
    sums, counts = defaultdict[str, float](float), defaultdict[str, float](float)
    for before, after in window.ranks:
        earlier = {name: (total, count) for name, total, count in _totals(before.metrics)}
        for name, total, count in _totals(after.metrics):
            total_before, count_before = earlier.get(name, (0.0, 0.0))
            is_known = count > count_before and math.isfinite(total - total_before)
            sums[name] += total - total_before if is_known else 0.0
            counts[name] += count - count_before if is_known else 0.0
    means: Record = {f"train/{name}": sums[name] / counts[name] if counts[name] > 0 else None for name in sums}
    return means | {"train/n_updates": num_updates(window.current)}


def _totals(metrics: MetricTotals) -> Iterable[tuple[str, float, float]]:
    return zip(metrics.names, metrics.sums.tolist(), metrics.counts.tolist(), strict=True)
