"""`OffPolicyLogger` turns snapshots into records, for every sink and the terminal. It runs in the supervisor."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offpolicy.config.parsing import merge, nested
from offpolicy.config.schema import RunConfig
from offpolicy.config.sections import LogConfig
from offpolicy.logger.built_in_sinks import open_sinks
from offpolicy.logger.console import number
from offpolicy.logger.end_screen import end_screen
from offpolicy.logger.metrics import require_known
from offpolicy.logger.panel import open_view
from offpolicy.logger.predictions import PredictionError, judge_window, possible_advice
from offpolicy.logger.provenance import Provenance
from offpolicy.logger.record import EpisodeWindow, Record, RunHeader, build_record, eta_s
from offpolicy.logger.sinks import SafeSink, SinkContext, Summary, open_plugins
from offpolicy.logger.stragglers import StragglerFinder, StragglerWatch, rank_series
from offpolicy.logger.unilab import with_unilab_keys
from offpolicy.logger.view import View
from offpolicy.model.bottleneck import SteadyCause, Verdict
from offpolicy.model.rates import Rates, RateWindow, compute_rates, num_updates, policy_steps
from offpolicy.model.windows import learner_windows, of_iterations
from offpolicy.types import EpisodeRecord, EvalResult, Lateness, Snapshot

STEADY_S = 4.0  # seconds of learning before the time left is estimated


class OffPolicyLogger:
    """Turns cumulative snapshots into records; keeps the last snapshot, the last 100 episodes, the last evaluation.

    Sinks and console never raise; `log_interval` raises `UnknownMetricError` for a key outside the metric table.
    """

    gives_advice = True

    def __init__(  # noqa: PLR0913  # what a logger is made of
        self,
        run_dir: Path,
        config_mapping: Mapping[str, Any],  # Any: nested configuration values
        header: RunHeader,
        sinks: Sequence[SafeSink],
        console: View,
        log: LogConfig = LogConfig(),  # noqa: B008  # frozen
    ) -> None:
        self.run_dir = run_dir
        self.config_mapping = config_mapping
        self.header = header
        self.last_snapshot: Snapshot | None = None
        self._window_begin: Snapshot | None = None  # of the last record
        self.last_eval: EvalResult | None = None
        self.training_return: float | None = None  # mean of the last episodes, of the last record
        self._origin: Snapshot | None = None
        self._learning: Snapshot | None = None
        self._sinks = tuple(sinks)
        self._console = console
        self._episodes = EpisodeWindow()
        self._straggler, self._slow_ranks = StragglerFinder(), StragglerWatch()
        self._cause = SteadyCause()
        self._rates = RateWindow()
        self._error = PredictionError()
        self._log = log
        self._is_stopping = False

    @property
    def num_dropped(self) -> dict[str, int]:
        """Returns the number of dropped calls for each sink that failed."""
        return {sink.name: sink.num_dropped for sink in self._sinks if sink.num_dropped}

    @property
    def prediction_error(self) -> float | None:
        """Returns the median error of the newest predictions, as a fraction; None as long as there were few."""
        return self._error.median

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

    @property
    def start(self) -> Snapshot | None:
        """Returns the counters as this process found them; None: all were zero."""
        return self._origin

    def _is_learning(self, snapshot: Snapshot) -> bool:
        """True if both sides reported since learning began; a collector's older report would add its random steps."""
        if self._origin is None:
            return num_updates(snapshot) > 0 and policy_steps(snapshot) > 0
        has_updates = num_updates(snapshot) > num_updates(self._origin)
        return has_updates and policy_steps(snapshot) > policy_steps(self._origin)

    def start_from(self, origin: Snapshot) -> None:
        """Sets the counters as this process found them: a resumed run does not count them again."""
        self._origin = self.last_snapshot = origin
        self._window_begin = None
        self._rates.start_from(origin)

    def set_flops(self, per_update: float, per_decision: float, attainable_per_sec: float | None) -> None:
        """Sets the work of the run's networks and what the learner's machine attains, for the records from now on."""
        self.header = replace(
            self.header,
            flops_per_update=per_update,
            flops_per_decision=per_decision,
            attainable_flops_per_sec=attainable_per_sec,
        )

    def set_speed(self, learner_threads: int, mode: str, update_s: Mapping[int, float] | None = None) -> None:
        """Sets the CPU threads of one learner rank and the collection mode, for the records from now on.

        `update_s` are the seconds per update with each number of threads that was tried.
        """
        tried_s = self.header.tried_update_s if update_s is None else update_s
        self.header = replace(self.header, learner_threads=learner_threads, mode=mode, tried_update_s=tried_s)
        self._console.set_header(self.header)

    def log_interval(self, snapshot: Snapshot) -> Record:
        """Records the window since the last call, and warns of a rank that delays the others.

        A record at the env step of the last one takes its place, so it begins where that one began.
        """
        header, learning = self.header, of_iterations(snapshot)
        previous = self._window_begin if self._is_at_last_step(snapshot) else self.last_snapshot
        rates = self._rates.rates(learning, header.mode, header.num_hosts)
        late = self._straggler.observe(previous, learning)
        verdict = self._verdict(previous, learning, rates, late)
        record = build_record(previous, snapshot, self._episodes, self.last_eval, header, rates, verdict, late)
        if self._error.median is not None:
            record["perf/prediction_error_pct"] = 100.0 * self._error.median
        self._error.add(rates)
        self._set_time_left(record, snapshot, learning)
        record = self.completed(record)
        self.training_return = number(record, "rollout/ep_rew_mean")
        every_rank: Record = {**rank_series(previous, snapshot)}
        require_known([*record, *every_rank])
        warnings = self._slow_ranks.observe(learner_windows(self.last_snapshot, learning), snapshot.wall_s)
        self.last_snapshot, self._window_begin = snapshot, previous
        if self._learning is None and self._is_learning(snapshot):
            self._learning = snapshot
            self._cause.begin_learning()
        written = with_unilab_keys(record) if self._log.unilab_keys else record
        written = written | every_rank if self._log.ranks == "all" else written
        for sink in self._sinks:
            sink.write(written)
        if verdict is not None and self._cause.has_changed:
            advice = [f"- {advice.text}" for advice in verdict.advice]
            markdown = "\n".join([f"**{verdict.label}**", "", verdict.reason, "", *advice])
            for sink in self._sinks:
                sink.text("verdict", markdown, snapshot.env_steps)
        self._console.record(record | every_rank, verdict, is_last=_has_ended(snapshot))
        for warning in warnings:
            self._console.message(warning)
        return written

    def completed(self, record: Record) -> Record:
        """Returns the record as it is written."""
        return record

    def _set_time_left(self, record: Record, snapshot: Snapshot, learning: Snapshot) -> None:
        """Replaces the time left at the rate of the window by that at the rate since learning began.

        Removes it in the first `STEADY_S` seconds of learning.
        """
        if self._learning is None or snapshot.wall_s - self._learning.wall_s < STEADY_S:
            record.pop("time/eta_s", None)  # nothing is known yet: an estimate would be hours off
            return
        # Since learning began, not of this window: an evaluation inside the window would multiply the time left.
        since = compute_rates(self._learning, learning, self.header.mode, self.header.num_hosts)
        remaining = eta_s(snapshot, since, self.header.total_timesteps)
        if remaining is not None:
            record["time/eta_s"] = remaining

    def _is_at_last_step(self, snapshot: Snapshot) -> bool:
        """True if the last record was at the same env step."""
        last = self.last_snapshot
        return self._window_begin is not None and last is not None and last.env_steps == snapshot.env_steps

    def _verdict(
        self, previous: Snapshot | None, snapshot: Snapshot, rates: Rates, late: Lateness | None
    ) -> Verdict | None:
        """Returns the verdict to show: the steady cause, with the numbers of this window."""
        verdict = judge_window(previous, snapshot, rates, self.header, None, self._error.median, late)
        if verdict is None:
            return None
        shown = self._cause.update(verdict.cause)
        if shown != verdict.cause:
            verdict = judge_window(previous, snapshot, rates, self.header, shown, self._error.median, late)
            assert verdict is not None  # as before, for the same window
        advised = possible_advice(
            verdict, self.config_mapping, has_gpu=self.header.has_gpu, steps_per_sec=rates.steps_per_sec
        )
        return advised if self.gives_advice else replace(advised, advice=())

    def log_episode(self, episode: EpisodeRecord) -> None:
        """Records one finished training episode."""
        self._episodes.add(episode)
        for sink in self._sinks:
            sink.episode(episode)

    def log_eval(self, result: EvalResult) -> None:
        """Shows an evaluation, and keeps it for the records from the next one on."""
        self.last_eval = result
        self._console.evaluation(self.last_eval)

    def status(self, text: str) -> None:
        """Shows the status of the run before its first record; nothing once it is being stopped."""
        if not self._is_stopping:
            self._console.status(text)

    def message(self, text: str) -> None:
        """Shows a line that stays readable."""
        self._console.message(text)

    def activity(self, text: str) -> None:
        """Shows what the run does besides learning; '' when it learns again."""
        self._console.activity(text)

    def stopping(self, text: str) -> None:
        """Shows at once that the run is being stopped."""
        self._is_stopping = True
        self._console.stopping(text)

    def tick(self) -> None:
        """Lets the terminal answer keys and a new size."""
        self._console.tick()

    def set_device(self, device: str, products: str, kernels: str) -> None:
        """Sets device and kernels as the learner has chosen them, and the library of its products ('': not known)."""
        self.header = replace(self.header, device=device, products=products, kernels=kernels)
        if self.config_mapping.get("device") == "auto":  # it has chosen the CPU where torch can use no GPU
            self.header = replace(self.header, has_gpu=device.startswith("cuda"))
        self._console.set_header(self.header)
        self.set_in_force("device", device.partition(":")[0])

    def set_in_force(self, key: str, value: str) -> None:
        """Sets what a setting stands for, such as the device for `device=auto`: advice is held against it."""
        self.config_mapping = merge(self.config_mapping, nested({key: value}))

    def finish(self, summary_mapping: Summary) -> None:
        """Writes the summary to the sinks and shows it."""
        for sink in self._sinks:
            sink.finish(summary_mapping)
        self._console.finish(end_screen(summary_mapping, self.run_dir))

    def close(self) -> None:
        """Closes every sink and releases the terminal."""
        for sink in self._sinks:
            sink.close()
        self._console.close()


def _has_ended(snapshot: Snapshot) -> bool:
    """True if the first rank's account says that no iteration follows."""
    return bool(snapshot.learners) and snapshot.learners[0].account.cooldown is not None


def open_logger(  # noqa: PLR0913  # a run, and where it goes on
    run_dir: Path,
    cfg: RunConfig,
    header: RunHeader,
    resume_step: int | None,
    in_force: RunConfig | None = None,
    resume_updates: int | None = None,
    provenance: Provenance | None = None,
) -> OffPolicyLogger:
    """Returns the logger that `cfg.log` configures.

    After a resume, records beyond `resume_step`, or beyond `resume_updates`, are moved out.

    Advice is held against `in_force`, which has what `auto` stands for; None: `cfg`. TensorBoard shows `provenance`.
    """
    view = open_view(cfg.log.panel, sys.stdout, header)
    config = cfg.to_mapping()
    sinks = open_sinks(run_dir, config, cfg.log, header, view.message, resume_step, resume_updates, provenance)
    context = SinkContext(run_dir, config, None, resume_step)
    sinks += open_plugins(cfg.log.sinks, cfg.sinks, context, view.message)
    return OffPolicyLogger(run_dir, (in_force or cfg).to_mapping(), header, sinks, view, cfg.log)
