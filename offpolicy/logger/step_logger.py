"""`log_step`: the logger of another training loop, by the names of UniLab's (Motphys/UniLab #633, #636, #639)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from offpolicy.config.sections import LogConfig
from offpolicy.errors import ConfigError
from offpolicy.logger.logger import OffPolicyLogger, open_sinks
from offpolicy.logger.metrics import our_key
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.summary import RunResult, RunStatus, build_summary, write_summary
from offpolicy.logger.view import open_view
from offpolicy.runs import SUMMARY
from offpolicy.timing.clock import Every, Stopwatch
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.types import Account, CollectorTotals, Float64, LearnerTotals, MetricTotals, Snapshot

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
# Beginnings of keys that the loop reports nothing about: a 0 there would be a claim.
UNKNOWN = (
    *("rank/", "prefetch/", "cpu/", "perf/policy_lag", "perf/sample_age", "replay/", "rollout/episodes"),
    *(f"{kind}/learner_{phase}_" for kind in ("timing", "share") for phase in ("evaluation", "checkpoint", "log")),
)


def open_step_logger(run_dir: Path, header: RunHeader, log: LogConfig, config: Mapping[str, Any]) -> StepLogger:
    """Returns a logger for a loop that calls `log_step`; makes `run_dir` and writes `config` to its `config.yaml`.

    Raises `ConfigError` for a header without a number of env steps to reach: progress is a share of it.
    """
    if header.total_timesteps < 1:
        raise ConfigError(f"total_timesteps: got {header.total_timesteps}, allowed 1 or more: what the loop may reach")
    run_dir.mkdir(parents=True)
    (run_dir / "config.yaml").write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    view = open_view(log.panel, sys.stdout, header)
    return StepLogger(run_dir, config, header, open_sinks(run_dir, config, log, header, view.message), view, log)


class StepLogger(OffPolicyLogger):
    """An `OffPolicyLogger` that makes its snapshots from what `log_step` is given."""

    gives_advice = False  # advice names keys of our configuration

    def __init__(self, *parts: Any, **options: Any) -> None:  # Any: those of `OffPolicyLogger`
        super().__init__(*parts, **options)
        self._watch = Stopwatch()
        self._due = Every(self._watch.elapsed_s, self._log.every_s)
        self._learner_ns = Counter(dict.fromkeys(map(str, LearnerPhase), 0))
        self._collector_ns = Counter(dict.fromkeys(map(str, CollectorPhase), 0))
        self._vector_step_ns: dict[str, int] = {}
        self._metrics: dict[str, Float64] = {}  # sum and number of the values, by name
        self._values: Record = {}  # newest values that are recorded as they are
        self._iteration = self._iterations = self._env_steps = self._vector_steps = self._samples = 0
        self._updates = 0.0

    def log_step(
        self,
        iteration: int,
        metrics: Mapping[str, float] | None = None,
        reward: float | None = None,
        iteration_time: float | None = None,
        extra_info: Mapping[str, float] | None = None,
        **seconds: float,
    ) -> None:
        """Adds one iteration, its times in seconds by the names of `PHASE_OF`; records when `log.every_s` is over.

        The rest of `iteration_time` is `other`. Metrics without a name in the metric table are left out. Raises
        `KeyError` for a time of another name.
        """
        times_ns = Counter({str(PHASE_OF[name]): round(1e9 * value) for name, value in seconds.items()})
        if iteration_time is not None:
            times_ns[str(LearnerPhase.OTHER)] = round(1e9 * iteration_time) - times_ns.total()
        self._learner_ns.update(times_ns)
        info = extra_info or {}
        env_steps, samples = int(info.get("throughput_steps", 0)), int(info.get("learner_samples_per_iter", 0))
        vector_steps = max(1, round(env_steps / (self.header.num_envs * self.header.num_collectors)))
        self._collector_ns.update({phase: vector_steps * ns for phase, ns in self._vector_step_ns.items()})
        self._iteration = int(iteration)
        self._iterations += 1
        self._env_steps += env_steps
        self._vector_steps += vector_steps
        self._samples += samples
        self._updates += samples / info.get("effective_batch_size", samples) if samples else 1.0
        for name, value in (metrics or {}).items():
            key = our_key(name if "/" in name else f"train/{name}") or ""
            if key.startswith("train/") and np.isfinite(value):
                self._metrics.setdefault(key.removeprefix("train/"), np.zeros(2))[:] += (value, 1)
        if reward is not None:
            self._values["rollout/ep_rew_mean"] = float(reward)
        self.view.tick()
        if self._due.is_due():
            self.log_interval(self._snapshot())

    def log_collector(self, total_steps: int, buffer_size: int, mean_reward: float = 0.0) -> None:
        """Sets the env steps of the run, the rows of its replay, and its mean return unless that is 0."""
        self._env_steps = int(total_steps)
        self._values["replay/rows"] = int(buffer_size)
        if mean_reward:
            self._values["rollout/ep_rew_mean"] = float(mean_reward)

    def update_collector_timing(self, timing_ms: Mapping[str, float]) -> None:
        """Sets the mean times of a vector step in ms, such as `env_step_ms`, for the iterations from now on."""
        for name, value in timing_ms.items():
            key = our_key(f"timing/collector_{name}") or name
            phase = CollectorPhase(key.removeprefix("timing/collector_").removesuffix("_ms"))
            self._vector_step_ns[str(phase)] = round(1e6 * float(value))

    def finish_steps(self, status: str = RunStatus.COMPLETED, reason: str = "it ended", exit_code: int = 0) -> None:
        """Records the last iterations, and writes and shows `summary.json`."""
        snapshot = self._snapshot()
        self.log_interval(snapshot)
        result = RunResult(
            status=status, exit_code=exit_code, reason=reason, last_eval=self.last_eval,
            training_return=self.training_return, prediction_error=self.prediction_error,
        )  # fmt: skip
        summary = build_summary(snapshot, self.header, result, baseline=self.baseline, start=self.start)
        summary["bottleneck"]["advice"] = []
        if not self._vector_step_ns:
            summary["bottleneck"]["reason"] = "the loop reported no times of a collector (update_collector_timing)"
        write_summary(self.run_dir / SUMMARY, summary)
        self.finish(summary)

    def completed(self, record: Record) -> Record:
        """Returns the record without what the loop reports nothing about, and with what it reports as it is."""
        return {key: value for key, value in record.items() if not key.startswith(UNKNOWN)} | self._values

    def _snapshot(self) -> Snapshot:
        metrics = MetricTotals(tuple(self._metrics), *np.array([*self._metrics.values()]).reshape(-1, 2).T)
        learner = Account(self._learner_ns.total(), 0, self._iterations, dict(self._learner_ns), 0)
        collector = Account(self._collector_ns.total(), 0, self._vector_steps, dict(self._collector_ns), 0)
        return Snapshot(
            wall_s=self._watch.elapsed_s(),
            env_steps=self._env_steps,
            iteration=self._iteration,
            learners=(LearnerTotals(learner, round(self._updates), self._samples, 0.0, metrics),),
            collectors=(CollectorTotals(collector, self._env_steps, self._vector_steps, 0.0, self._vector_steps),),
            replay_rows=0,
            replay_capacity=0,
            update_debt=None,
        )
