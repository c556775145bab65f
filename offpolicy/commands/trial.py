"""A short real training run, measured while it runs and stopped as soon as its speed is known."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from offpolicy.analysis.explain import FinishedRun
from offpolicy.analysis.records import JSONL, jsonl_rows
from offpolicy.analysis.tuning import Measured, TrialFailed
from offpolicy.commands.jobs import RUN, LocalJob, LocalLauncher
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.timing.clock import Stopwatch

EVERY_S = 0.5  # seconds between records
FEWEST, MOST = 6, 16  # report intervals of a measurement
FEWEST_EVALUATIONS = 4  # intervals from one evaluation to the next, of a measurement with evaluations
STEADY = 0.05  # width of the middle half of the rates, over their median, at which the fewest are enough
START_S = 90.0  # seconds until the first update, at most
LONGEST_S = 40.0  # seconds from the first update on, at most
TUNING_S = 120.0  # more of them where the run tries settings first; it may take longer
STOP_S = 20.0  # seconds that a run may take to stop
POLL_S = 0.1
FEW_ROWS = 256  # env steps before the first update, and
LEAST_STEPS = 20_000  # rows of the replay, where the run has more
ENDLESS = 1_000_000  # env steps, more than a trial makes
TUNED = "fastest: "  # the beginning of the line in which a run says which threads or mode it has chosen
QUIET = (
    *("resume=never", f"log.every_s={EVERY_S}", "log.panel=off", "log.tensorboard=false", "log.wandb=disabled"),
    *("log.sinks=[]", "log.otlp_endpoint=null", "log.prometheus_port=null", "callbacks=[]"),
    *("timing.enabled=true", "timing.trace=false", "timing.profile_at=0"),
    *("checkpoint.every=0", "checkpoint.every_min=0", "checkpoint.replay=false"),
    *("eval.video=false", "stop.reward=null", "stop.patience=0"),
)
Record = Mapping[str, float]


def trial_overrides(cfg: RunConfig, eval_every: int) -> list[str]:
    """Returns the overrides that make a run a trial: it begins to learn at once, and writes no more than it must.

    It sends nothing: a trial is no run that its user's services and callbacks are for.
    """
    words = [*QUIET, f"eval.every={eval_every}", f"eval.episodes={cfg.eval.episodes if eval_every else 0}"]
    words += [f"total_timesteps={max(cfg.total_timesteps, ENDLESS)}"]
    if not cfg.algo.learns_from_rollouts:
        rows = min(cfg.replay.capacity, max(cfg.total_timesteps, LEAST_STEPS))
        words += [f"replay.capacity={rows}", f"algo.learning_starts={min(cfg.algo.learning_starts, FEW_ROWS)}"]
    return words


@dataclass(frozen=True, slots=True)
class Trial:
    """A training run in a directory that holds nothing else."""

    words: Sequence[str]  # all overrides but `run_dir`
    directory: Path
    is_tuning: bool  # it tries threads or modes itself before it is as fast as it gets
    evaluates: bool  # its rates are measured from one evaluation to the next

    def measure(self) -> Measured:
        """Runs until the rate is known. Raises `TrialFailed`; leaves no process, whatever happens."""
        job = LocalLauncher(STOP_S).start(self.words, self.directory)
        try:
            records, is_settled = self._follow(job)
        finally:
            job.stop()
        rates = self._rates(records)
        if not rates:
            raise TrialFailed(f"no steady speed within {self._longest_s:g} s of learning")
        busy = [r["cores/others_ms_per_s"] / 1e3 / r["cores/capacity"] for r in records if "cores/capacity" in r]
        threads = records[-1].get("perf/learner_threads")
        episode = records[-1].get("rollout/ep_len_mean")
        run = self._finished()
        num_threads, share = int(threads) if threads else None, statistics.mean(busy or [0.0])
        return Measured(tuple(rates), share, num_threads, episode, run, is_settled)

    @property
    def _longest_s(self) -> float:
        return LONGEST_S + (TUNING_S if self.is_tuning else 0.0)

    @property
    def _run(self) -> Path:
        return self.directory / RUN

    def _follow(self, job: LocalJob) -> tuple[list[Record], bool]:
        """Returns the records to measure by, and whether the run had tuned itself before them.

        They are those of learning, without the first. Those of a run that tunes itself for too long are its newest.
        """
        watch, first_s, num_early = Stopwatch(), math.inf, None
        while True:
            code = job.wait(POLL_S)
            records = self._records()
            now_s = watch.elapsed_s()
            first_s = min(first_s, now_s) if records else first_s
            is_late = now_s > (first_s + self._longest_s if records else START_S)
            if num_early is None and records and (not self.is_tuning or self._has_tuned()):
                num_early = len(records) + 1
            steady = [] if num_early is None else records[num_early:]
            if code:
                raise TrialFailed(job.last_error())
            if is_late and not records:
                raise TrialFailed(f"no update within {START_S:g} s")
            if is_late and self.is_tuning and not self._rates(steady):
                return [r for r in records if r["wall_s"] > records[-1]["wall_s"] - LONGEST_S], False
            if code == 0 or is_late or self._is_enough(steady):
                return steady, True

    def _rates(self, records: Sequence[Record]) -> list[float]:
        """Returns the env steps per second of each interval: between records or, if it evaluates, evaluations."""
        if not self.evaluates:
            return [record["perf/steps_per_sec"] for record in records]
        known = [record for record in records if "eval/env_steps" in record]
        ends = [now for last, now in pairwise(known) if now["eval/env_steps"] != last["eval/env_steps"]]
        return [(b["env_steps"] - a["env_steps"]) / (b["wall_s"] - a["wall_s"]) for a, b in pairwise(ends)]

    def _is_enough(self, records: Sequence[Record]) -> bool:
        """True if more intervals would hardly change the rate."""
        rates = self._rates(records)
        if self.evaluates or len(rates) < FEWEST:
            return self.evaluates and len(rates) >= FEWEST_EVALUATIONS
        low, high = Measured(tuple(rates)).quartiles
        return len(rates) >= MOST or high - low <= STEADY * statistics.median(rates)

    def _records(self) -> list[Record]:
        """Returns the records with updates and a rate."""
        rows = jsonl_rows(self._run / JSONL)
        return [row for row in rows if row.get("train/n_updates") and "perf/steps_per_sec" in row]

    def _has_tuned(self) -> bool:
        return TUNED in (self.directory / "out").read_text(errors="replace")

    def _finished(self) -> FinishedRun | None:
        try:
            return FinishedRun.read(self._run)
        except ConfigError:
            return None
