"""The account of a finished run, and how far its what-ifs predict the run that followed a change of one key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offpolicy.config.parsing import flatten, is_within
from offpolicy.config.run_files import read_config
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.model.throughput import (
    HALVED_EPOCHS,
    HALVED_UTD,
    ONE_MORE_COLLECTOR,
    ONE_MORE_HOST,
    TWICE_THE_BATCH,
    TWICE_THE_HOSTS,
    Loss,
    Options,
    Pipeline,
    waterfall,
    what_ifs,
)
from offpolicy.replay.rate_limiter import MAX_UPDATES_PER_ITERATION
from offpolicy.runs import SUMMARY, is_of_earlier_start, read_summary
from offpolicy.timing.phases import LEARNER_PERIODIC

# Keys in which two runs may differ without another amount of work per env step.
NO_MATTER = ("log", "eval", "checkpoint", "run_dir", "resume", "seed", "total_timesteps", "teacher", "env.measure")
# Keys whose change by a factor is a what-if, by which a prediction is checked against a second run.
CHANGED_KEYS = {
    "algo.utd": (HALVED_UTD, 0.5),
    "algo.batch_size": (TWICE_THE_BATCH, 2.0),
    "algo.epochs": (HALVED_EPOCHS, 0.5),
}
NS = 1e9  # ns per s


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that has ended: its configuration, `summary.json`, and what both sides spend on an env step."""

    path: Path
    cfg: RunConfig
    summary: Mapping[str, Any]  # Any: the nested mapping of summary.json
    pipeline: Pipeline
    learner_s: Mapping[str, float]  # seconds of rank 0 by phase in the window of the rates
    steps_per_sec: float  # env steps per second, pauses included
    prediction_error: float | None  # median of the predictions that it made last, as a fraction; None: there were few

    @classmethod
    def read(cls, path: Path) -> FinishedRun:
        """Reads the files of a run. Raises `ConfigError` where it has no account to explain."""
        cfg = read_config(path)
        summary = read_summary(path)
        try:
            learner = dict(summary["learning"]["learner_s"])
            pipeline, rates = Pipeline.from_mapping(summary["pipeline"]), summary["rates"]
        except (LookupError, TypeError, ValueError):
            cause = "it ended before learning, a process never reported, or timing was off"
            raise ConfigError(f"run: {path} has no account to explain: {cause}") from None
        error = rates.get("prediction_error")
        return cls(path, cfg, summary, pipeline, learner, float(rates["steps_per_sec"]), error)

    @property
    def restart_note(self) -> str:
        """A sentence where the run was started again after the start of `summary.json`, else ''."""
        if not is_of_earlier_start(self.path / SUMMARY):
            return ""
        ended = f"after it had ended at env step {self.summary['env_steps']:,}"
        return f"{self.path} was started again {ended}, and has not ended since"

    @property
    def pause_fraction(self) -> float:
        """Fraction of the learner's wall that evaluations and checkpoints took."""
        return sum(self.learner_s[phase] for phase in LEARNER_PERIODIC) / sum(self.learner_s.values())

    @property
    def between_pauses(self) -> float:
        """Env steps per second between evaluations and checkpoints."""
        return self.steps_per_sec / (1.0 - self.pause_fraction)

    @property
    def losses(self) -> list[Loss]:
        """The env steps per second lost by each cause, from what both sides could do to what they did."""
        phases_ns = {phase: round(NS * seconds) for phase, seconds in self.learner_s.items()}
        capacities = self.pipeline.collector_capacity, self.pipeline.own_learner_capacity
        return waterfall(*capacities, self.pipeline.mode, self.steps_per_sec, phases_ns)

    @property
    def what_ifs(self) -> dict[str, Pipeline]:
        """The changes by their names."""
        algo = self.cfg.algo
        options = Options(
            has_replay=not algo.learns_from_rollouts,
            updates=algo.utd * self.cfg.env.num_envs * self.pipeline.num_collectors,
            most_updates=MAX_UPDATES_PER_ITERATION,
            epochs=algo.epochs,
            may_add_collector=self.cfg.runner.world_size == 1,
            per_host=self.cfg.collect.num_collectors if self.cfg.collect.remote_hosts else 0,
        )
        return dict(what_ifs(self.pipeline, options))

    def predicted(self, then: Pipeline) -> float:
        """Returns env steps per second between pauses: the model's change, applied to the measured rate."""
        return self.between_pauses * then.steps_per_sec / self.pipeline.steps_per_sec

    def gain_text(self, predicted: float) -> str:
        """Returns the change to a prediction with pauses, or that it is too small to differ from none."""
        gain = round(predicted / self.steps_per_sec - 1.0, 2) + 0.0  # no -0 %
        return "none" if abs(gain) <= (self.prediction_error or 0.0) else f"{gain:+.0%}"

    def with_pauses(self, steps_per_sec: float) -> float:
        """Returns the same with the pauses of this run, which cost what they cost per env step."""
        return 1.0 / (1.0 / steps_per_sec + self.pause_fraction / self.steps_per_sec)


def what_if_between(before: FinishedRun, now: FinishedRun) -> str:
    """Returns the what-if that turns one configuration into the other. Raises `ConfigError` if there is none."""
    old, new = (flatten(run.cfg.to_mapping()) for run in (before, now))
    old["collect.mode"], new["collect.mode"] = (run.cfg.collect.mode or run.cfg.collect_mode for run in (before, now))
    changed = [key for key in old | new if old.get(key) != new.get(key) and not is_within(key, NO_MATTER)]
    if len(changed) == 1:
        (key,) = changed
        name, factor = CHANGED_KEYS.get(key, ("", 0.0))
        if key == "collect.mode":
            name = f"{key}={new[key]}"
        elif key == "collect.num_collectors" and new[key] == old[key] + 1:
            name = ONE_MORE_COLLECTOR
        elif key == "collect.remote_hosts":
            name = {old[key] + 1: ONE_MORE_HOST, 2 * old[key]: TWICE_THE_HOSTS}.get(new[key], "")
        if name in before.what_ifs and (not factor or new[key] == factor * old[key]):
            return name
    changes = ", ".join(f"{key} {old.get(key)} -> {new.get(key)}" for key in changed) or "nothing"
    raise ConfigError(f"--before: {changes} changed, which is not one of the what-ifs: {', '.join(before.what_ifs)}")
