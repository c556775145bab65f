"""The cumulative totals of `OffPolicyLogger.log_step`: a training loop of another shape, seen as a run of ours.

A caller reports the seconds of each iteration under the names of UniLab's logger (#633, #636). They become the account
of a learner, and the collector's times, if it reports them, that of a collector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from offpolicy.logger.metrics import collector_key
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.unilab import our_key
from offpolicy.timing.clock import Stopwatch, cpu_ns, scheduler_stats
from offpolicy.timing.histogram import NUM_BINS, bins_of
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.timing.windows import NS_PER_MS, NS_PER_S
from offpolicy.types import NO_ACCOUNT, Account, CollectorTotals, LearnerTotals, MetricTotals, SchedulerStats, Snapshot

# Our phase of each of the caller's times.
PHASE_OF = {
    "collector_wait_time": LearnerPhase.COLLECTOR_WAIT,
    "replay_batch_wait_time": LearnerPhase.REPLAY_BATCH_WAIT,
    "learner_replay_sample_time": LearnerPhase.REPLAY_SAMPLE,
    "learner_incremental_h2d_time": LearnerPhase.H2D,
    "rank_barrier_time": LearnerPhase.RANK_BARRIER,
    "sync_coordination_time": LearnerPhase.SYNC_COORDINATION,
    "train_time": LearnerPhase.TRAIN,
    "learner_param_sync_time": LearnerPhase.PARAM_SYNC,
    "weight_sync_time": LearnerPhase.WEIGHT_PUBLISH,
}
# Beginnings of keys that the caller tells nothing about: a 0 there would be a claim.
UNKNOWN = (
    *("rank/", "prefetch/", "cpu/collector_", "perf/policy_lag", "perf/sample_age", "replay/"),
    *(f"{prefix}{phase}_" for phase in ("evaluation", "checkpoint", "log")
      for prefix in ("timing/learner_", "spread/learner_", "share/learner_")),
)  # fmt: skip
CAPACITY = "collector_active_steps_per_sec"  # the caller's name of I


def as_finite(value: Any) -> float | None:  # Any: what another program's loop has
    """Returns the number that a caller gives, also as one element; None for what is none: None, a text, NaN, Inf."""
    if isinstance(value, str | bytes):
        return None
    try:
        number = float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return number if math.isfinite(number) else None


def finite(values: Mapping[str, Any]) -> dict[str, float]:  # Any: what another program's loop has
    """Returns the values that are finite numbers."""
    known = {name: as_finite(value) for name, value in values.items()}
    return {name: number for name, number in known.items() if number is not None}


def as_count(value: Any) -> int | None:  # Any: what another program's loop has
    """Returns a count as a whole number of Python: no file takes one of numpy. None for what is no number."""
    number = as_finite(value)
    return None if number is None else int(number)


@dataclass(slots=True)
class _Clock:
    """The account of one side, whose phases are added up."""

    phases: tuple[str, ...]
    ns: dict[str, int] = field(init=False)
    iterations: int = 0
    counts: Any = field(init=False)  # histograms [phases + 1, bins]; Any: numpy's counts

    def __post_init__(self) -> None:
        self.ns = dict.fromkeys(self.phases, 0)
        self.counts = np.zeros((len(self.phases) + 1, NUM_BINS), dtype=np.int64)

    def add(self, seconds: Mapping[str, float], iterations: int = 1) -> None:
        """Adds `iterations` iterations of these mean times."""
        given_s = finite(seconds)
        each_ns = [round(given_s.get(phase, 0.0) * NS_PER_S) for phase in self.phases]
        for phase, ns in zip(self.phases, each_ns, strict=True):
            self.ns[phase] += iterations * ns
        bins = bins_of(np.maximum(np.array([*each_ns, sum(each_ns)]), 0))
        self.counts[np.arange(len(bins)), bins] += iterations
        self.iterations += iterations

    def account(self) -> Account:
        """Returns the account, without CPU time."""
        return Account(sum(self.ns.values()), 0, self.iterations, dict(self.ns), 0, histogram=self.counts.copy())


class StepTotals:
    """Adds up what `log_step`, `log_collector` and `update_collector_timing` are given."""

    def __init__(self, header: RunHeader, watch: Stopwatch | None = None) -> None:
        self._begun_cpu_ns, self._begun_scheduler = cpu_ns(), scheduler_stats()
        self._num_envs = header.num_envs * header.num_collectors
        self._watch = watch or Stopwatch()
        self._learner = _Clock(tuple(map(str, LearnerPhase)))
        self._collector = _Clock(tuple(map(str, CollectorPhase)))
        self._timing_s: dict[str, float] = {}  # newest times of a vector step
        self._metrics: dict[str, tuple[float, float]] = {}  # sum and count by name
        self._curves: Record = {}  # newest values that are recorded as they are
        self._env_steps, self._updates, self._samples, self._replay_rows = 0, 0.0, 0, 0
        self._total_steps: int | None = None  # as `log_collector` counts them; None: those of the iterations
        self._left_out: dict[str, bool] = {}  # keys without a name of ours; True once they were reported
        self.iteration = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the logger was opened."""
        return self._watch.elapsed_s()

    def add(  # noqa: PLR0913  # the parts of one iteration
        self,
        iteration: int,
        seconds: Mapping[str, float],
        iteration_time: float | None,
        extra_info: Mapping[str, Any],  # Any: numbers and texts
        metrics: Mapping[str, float],
        rewards: Mapping[str, float],
    ) -> None:
        """Adds an iteration: its times by the caller's names, and what was collected and learnt in it."""
        known = as_count(iteration)
        self.iteration = self.iteration if known is None else known
        phases = {str(PHASE_OF[name]): value for name, value in finite(seconds).items()}
        whole = as_finite(iteration_time)
        residual = whole - sum(phases.values()) if whole else 0.0
        self._learner.add(phases | {str(LearnerPhase.OTHER): residual})
        given = finite(extra_info)
        steps = int(given.get("throughput_steps", 0.0))
        samples = int(given.get("learner_samples_per_iter", 0.0))
        batch = given.get("effective_batch_size") or given.get("batch_size_per_rank")
        self._env_steps += steps
        self._samples += samples
        self._updates += samples / batch if samples and batch else 1.0
        if steps and self._timing_s:
            self._collector.add(self._timing_s, max(1, round(steps / self._num_envs)))
        capacity = extra_info.get(CAPACITY)
        if capacity is not None:
            self._set_value("perf/collector_capacity", capacity)
        for name, value in metrics.items():
            self._add_metric(name if "/" in name else f"train/{name}", value)
        for name, value in rewards.items():
            self._set_curve(name if name.startswith("reward/") else f"reward/{name}", value)

    def _add_metric(self, key: str, value: object) -> None:
        found = our_key(key)
        if found is None or not found.startswith("train/"):
            self._left_out.setdefault(key, False)
            return
        number = as_finite(value)
        if number is None:  # a sum would not be finite from then on
            return
        name = found.removeprefix("train/")
        total, count = self._metrics.get(name, (0.0, 0.0))
        self._metrics[name] = (total + number, count + 1.0)

    def _set_curve(self, key: str, value: object) -> None:
        found = our_key(key)
        if found is None:
            self._left_out.setdefault(key, False)
        else:
            self._set_value(found, value)

    def _set_value(self, key: str, value: object) -> None:
        """Sets a value that is recorded as it is. One that is not finite is not known: no file format has it."""
        number = as_finite(value)
        if number is not None:
            self._curves[key] = number
        else:
            self._curves.pop(key, None)

    def set_collector(self, total_steps: int, buffer_size: int, mean_reward: float) -> None:
        """Sets the env steps of the run so far, the rows in its replay, and its mean return unless that is 0.

        A count that is no number leaves the last one.
        """
        total, rows = as_count(total_steps), as_count(buffer_size)
        self._total_steps = self._total_steps if total is None else total
        self._replay_rows = self._replay_rows if rows is None else rows
        if as_finite(mean_reward) != 0.0:
            self._set_curve("reward/mean", mean_reward)

    def set_collector_timing(self, timing_ms: Mapping[str, float]) -> None:
        """Sets the mean times of a vector step, by the caller's names, such as `env_step_ms`."""
        key_of = {collector_key(phase): str(phase) for phase in CollectorPhase}
        for name, given in timing_ms.items():
            phase = key_of.get(our_key(f"timing/collector_{name}") or "")
            if phase is None:
                self._left_out.setdefault(f"timing/collector_{name}", False)
            elif (value := as_finite(given)) is not None:
                self._timing_s[phase] = value * NS_PER_MS / NS_PER_S

    def take_left_out(self) -> list[str]:
        """Returns the keys that have no name of ours and were not returned before."""
        found = [key for key, is_reported in self._left_out.items() if not is_reported]
        self._left_out = dict.fromkeys(self._left_out, True)
        return found

    def snapshot(self) -> Snapshot:
        """Returns the totals."""
        sums = np.array([[total, count] for total, count in self._metrics.values()]).reshape(-1, 2)
        metrics = MetricTotals(tuple(self._metrics), sums[:, 0], sums[:, 1])
        env_steps = self._env_steps if self._total_steps is None else self._total_steps
        vector_steps = self._collector.iterations or self._learner.iterations
        account = self._collector.account() if self._collector.iterations else NO_ACCOUNT
        return Snapshot(
            wall_s=self.elapsed_s,
            env_steps=env_steps,
            iteration=self.iteration,
            learners=(LearnerTotals(self._learner_account(), round(self._updates), self._samples, 0.0, metrics),),
            collectors=(CollectorTotals(account, env_steps, vector_steps, 0.0, vector_steps),),
            replay_rows=self._replay_rows,
            replay_capacity=0,
            update_debt=None,
        )

    def _learner_account(self) -> Account:
        """Returns the account with CPU time of the calling process, and scheduler statistics of the calling thread."""
        grown = zip(scheduler_stats(), self._begun_scheduler, strict=True)
        scheduler = SchedulerStats(*(now - then for now, then in grown))
        return replace(self._learner.account(), cpu_ns=cpu_ns() - self._begun_cpu_ns, scheduler=scheduler)

    def known(self, record: Record) -> Record:
        """Returns the record without what the caller tells nothing about, and with what it reports as it is."""
        known = {key: value for key, value in record.items() if not key.startswith(UNKNOWN)}
        if not known["rollout/episodes"]:  # the caller does not use `log_episode`
            del known["rollout/episodes"]
        rows: Record = {"replay/rows": self._replay_rows} if self._replay_rows else {}
        return known | rows | self._curves
