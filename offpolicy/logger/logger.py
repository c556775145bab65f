"""`OffPolicyLogger` turns snapshots into records, for every sink and the terminal. It runs in the supervisor."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offpolicy.config.schema import RunConfig
from offpolicy.logger.console import View
from offpolicy.logger.metrics import require_known
from offpolicy.logger.panel import open_view
from offpolicy.logger.record import EpisodeWindow, Record, RunHeader, build_record, eta_s, judge_window
from offpolicy.logger.sinks import JsonlSink, SafeSink, Sink, Summary, open_sink
from offpolicy.logger.stragglers import StragglerWatch
from offpolicy.logger.summary import final_table
from offpolicy.timing.bottleneck import SteadyCause, Verdict
from offpolicy.timing.rates import (
    Rates,
    RateWindow,
    compute_rates,
    learner_windows,
    num_updates,
    of_iterations,
    policy_steps,
)
from offpolicy.types import EpisodeRecord, EvalResult, Snapshot


class OffPolicyLogger:
    """Turns cumulative snapshots into records; keeps the last snapshot, the last 100 episodes, the last evaluation.

    Sinks and console never raise; `log_interval` raises `UnknownMetricError` for a key outside the metric table.
    """

    def __init__(
        self,
        run_dir: Path,
        config_mapping: Mapping[str, Any],  # Any: nested configuration values
        header: RunHeader,
        sinks: Sequence[SafeSink],
        console: View,
    ) -> None:
        self.run_dir = run_dir
        self.config_mapping = config_mapping
        self.header = header
        self.last_snapshot: Snapshot | None = None
        self.last_eval: EvalResult | None = None
        self._origin: Snapshot | None = None
        self._learning: Snapshot | None = None
        self._sinks = tuple(sinks)
        self._console = console
        self._episodes = EpisodeWindow()
        self._stragglers = StragglerWatch()
        self._cause = SteadyCause()
        self._rates = RateWindow()

    @property
    def num_dropped(self) -> dict[str, int]:
        """Returns the number of dropped calls for each sink that failed."""
        return {sink.name: sink.num_dropped for sink in self._sinks if sink.num_dropped}

    @property
    def baseline(self) -> Snapshot | None:
        """Returns the snapshot from which the rates of the whole run are measured: the first one of learning.

        In a short run, with less than half of the updates after it: the snapshot at the start.
        """
        if self._learning is None or self.last_snapshot is None:
            return self._origin
        total = num_updates(self.last_snapshot) - (num_updates(self._origin) if self._origin is not None else 0)
        since = num_updates(self.last_snapshot) - num_updates(self._learning)
        return self._learning if 2 * since >= total else self._origin

    def _is_learning(self, snapshot: Snapshot) -> bool:
        """True if both sides reported since learning began; a collector's older report would add its random steps."""
        if self._origin is None:
            return num_updates(snapshot) > 0 and policy_steps(snapshot) > 0
        has_updates = num_updates(snapshot) > num_updates(self._origin)
        return has_updates and policy_steps(snapshot) > policy_steps(self._origin)

    def start_from(self, origin: Snapshot) -> None:
        """Sets the counters as this process found them: a resumed run does not count them again."""
        self._origin = self.last_snapshot = origin
        self._rates.start_from(origin)

    def set_flops(self, per_update: float, per_decision: float, attainable_per_sec: float | None) -> None:
        """Sets the work of the run's networks and what the learner's machine attains, for the records from now on."""
        self.header = replace(
            self.header,
            flops_per_update=per_update,
            flops_per_decision=per_decision,
            attainable_flops_per_sec=attainable_per_sec,
        )

    def log_interval(self, snapshot: Snapshot) -> Record:
        """Records the window since the last call, and warns of a rank that delays the others."""
        header, previous, learning = self.header, self.last_snapshot, of_iterations(snapshot)
        rates = self._rates.rates(learning, header.mode, header.num_hosts)
        verdict = self._verdict(previous, learning, rates)
        record = build_record(previous, snapshot, self._episodes, self.last_eval, header, rates, verdict)
        if self._learning is not None:
            # Since learning began, not of this window: an evaluation inside the window would multiply the time left.
            since = compute_rates(self._learning, learning, header.mode, header.num_hosts)
            remaining = eta_s(snapshot, since, header.total_timesteps)
            record |= {} if remaining is None else {"time/eta_s": remaining}
        require_known(record)
        warnings = self._stragglers.observe(learner_windows(previous, learning), snapshot.wall_s)
        self.last_snapshot = snapshot
        if self._learning is None and self._is_learning(snapshot):
            self._learning = snapshot
        for sink in self._sinks:
            sink.write(record)
        if verdict is not None and self._cause.has_changed:
            advice = [f"- {advice.text}" for advice in verdict.advice]
            markdown = "\n".join([f"**{verdict.label}**", "", verdict.reason, "", *advice])
            for sink in self._sinks:
                sink.text("verdict", markdown, snapshot.env_steps)
        self._console.record(record, verdict)
        for warning in warnings:
            self._console.message(warning)
        return record

    def _verdict(self, previous: Snapshot | None, snapshot: Snapshot, rates: Rates) -> Verdict | None:
        """Returns the verdict to show: the steady cause, with the numbers of this window."""
        verdict = judge_window(previous, snapshot, rates, self.header)
        if verdict is None:
            return None
        shown = self._cause.update(verdict.cause)
        if shown != verdict.cause:
            verdict = judge_window(previous, snapshot, rates, self.header, shown)
            assert verdict is not None  # as before, for the same window
        return verdict.without_followed_advice(self.config_mapping)

    def log_episode(self, episode: EpisodeRecord) -> None:
        """Records one finished training episode."""
        self._episodes.add(episode)
        for sink in self._sinks:
            sink.episode(episode)

    def log_eval(self, result: EvalResult) -> None:
        """Keeps an evaluation for the records from the next one on."""
        self.last_eval = result

    def status(self, text: str) -> None:
        """Shows the status of the run before its first record."""
        self._console.status(text)

    def message(self, text: str) -> None:
        """Shows a line that stays readable."""
        self._console.message(text)

    def finish(self, summary_mapping: Summary) -> None:
        """Writes the summary to the sinks and shows it."""
        for sink in self._sinks:
            sink.finish(summary_mapping)
        self._console.finish(final_table(summary_mapping))

    def close(self) -> None:
        """Closes every sink and releases the terminal."""
        for sink in self._sinks:
            sink.close()
        self._console.close()


def open_logger(run_dir: Path, cfg: RunConfig, header: RunHeader, resume_step: int | None) -> OffPolicyLogger:
    """Returns the logger that `cfg.log` configures. After a resume, records beyond `resume_step` are moved out."""
    config = cfg.to_mapping()
    view = open_view(cfg.log.panel, sys.stdout, header)

    def tensorboard() -> Sink:
        # Imported on demand: it takes half a second.
        from offpolicy.logger.tensorboard import TensorBoardSink

        return TensorBoardSink(run_dir, config, header, resume_step)

    def wandb() -> Sink:
        from offpolicy.logger.wandb import WandbSink  # optional back-end

        return WandbSink(run_dir, config, cfg.log.wandb_project, "online" if cfg.log.wandb == "online" else "offline")

    opened = [open_sink("metrics.jsonl", lambda: JsonlSink(run_dir, resume_step), view.message)]
    if cfg.log.tensorboard:
        opened.append(open_sink("tensorboard", tensorboard, view.message))
    if cfg.log.wandb != "disabled":
        opened.append(open_sink("wandb", wandb, view.message))
    sinks = [sink for sink in opened if sink is not None]
    return OffPolicyLogger(run_dir, config, header, sinks, view)
