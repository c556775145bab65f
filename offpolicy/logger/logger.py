"""`OffPolicyLogger` turns snapshots into records, for every sink and the terminal. It runs in the supervisor."""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from offpolicy import plugins
from offpolicy.config.extensions import SinkInfo, sink_plugin
from offpolicy.config.parsing import merge, nested
from offpolicy.config.schema import RunConfig
from offpolicy.config.sections import LogConfig
from offpolicy.logger.console import number
from offpolicy.logger.end_screen import end_screen
from offpolicy.logger.metrics import require_known, with_unilab_keys
from offpolicy.logger.predictions import possible_advice, window_verdict
from offpolicy.logger.provenance import Provenance
from offpolicy.logger.record import Record, RunHeader, build_record, episode_keys
from offpolicy.logger.sinks import JsonlSink, SafeSinks, Sink, SinkContext, Summary, Warn
from offpolicy.logger.stragglers import StragglerWatch, rank_series
from offpolicy.logger.timing_keys import Window, link_series
from offpolicy.logger.view import View, open_view
from offpolicy.model.bottleneck import SteadyCause, Verdict
from offpolicy.model.rates import Rates, RateWindow, compute_rates, num_updates, policy_steps
from offpolicy.model.windows import of_iterations
from offpolicy.types import NO_COUNTERS, EpisodeRecord, EvalResult, Lateness, Snapshot

STEADY_S = 4.0  # seconds of learning before the time left is estimated
FEWEST_ERRORS = 3  # predictions from which their error is stated
NO_OPTIONS: Mapping[str, object] = {}


class OffPolicyLogger:
    """Turns cumulative snapshots into records; keeps the last snapshot, the last 100 episodes, the last evaluation.

    Sinks and view never raise; `log_interval` raises `UnknownMetricError` for a key outside the metric table.
    """

    gives_advice = True

    def __init__(  # noqa: PLR0913  # what a logger is made of
        self,
        run_dir: Path,
        config_mapping: Mapping[str, Any],  # Any: nested configuration values
        header: RunHeader,
        sinks: SafeSinks,
        view: View,
        log: LogConfig = LogConfig(),  # noqa: B008  # frozen
    ) -> None:
        self.run_dir, self.header, self.view = run_dir, header, view
        self.config_mapping = config_mapping  # advice is compared with it
        self.start = NO_COUNTERS  # the counters as this process found them
        self.last_snapshot = NO_COUNTERS
        self.last_eval: EvalResult | None = None
        self.training_return: float | None = None  # mean of the last episodes, of the last record
        self.prediction_error: float | None = None  # median of the newest, as a fraction; None as long as there are few
        self._window_begin: Snapshot | None = None  # of the last record
        self._learning: Snapshot | None = None  # the first one of learning
        self._sinks, self._log = sinks, log
        self._episodes: deque[EpisodeRecord] = deque(maxlen=100)
        self._num_episodes = 0  # all that have finished
        self._stragglers, self._cause, self._rates = StragglerWatch(), SteadyCause(), RateWindow()
        self._errors: deque[float] = deque(maxlen=20)  # of the newest predictions
        self._is_stopping = False

    @property
    def baseline(self) -> Snapshot:
        """The snapshot from which the rates of the whole run are measured: the first one of learning.

        In a short run, with less than half of the updates after it: the snapshot at the start.
        """
        if self._learning is None:
            return self.start
        total, before = num_updates(self.last_snapshot) - num_updates(self.start), num_updates(self._learning)
        return self._learning if 2 * (num_updates(self.last_snapshot) - before) >= total else self.start

    def start_from(self, start: Snapshot) -> None:
        """Sets the counters as this process found them: a resumed run does not count them again."""
        self.start = self.last_snapshot = start
        self._window_begin = None
        self._rates.start_from(start)

    def set_header(self, header: RunHeader) -> None:
        """Sets the facts of the run for the records from now on, and shows them."""
        self.header = header
        self.view.set_header(header)

    def log_interval(self, snapshot: Snapshot) -> Record:
        """Records the window since the last call, and warns of a rank that delays the others.

        A record at the env step of the last one takes its place, so it begins where that one began.
        """
        header, previous = self.header, self.last_snapshot
        if self._window_begin is not None and previous.env_steps == snapshot.env_steps:
            previous = self._window_begin
        window, learning = Window(previous, snapshot), Window(previous, of_iterations(snapshot))
        rates = self._rates.rates(learning.current, header.mode, header.num_hosts)
        late = self._stragglers.straggler(learning)
        verdict = self._verdict(learning, rates, late)
        curves = episode_keys(self._episodes, self._num_episodes, self.last_eval)
        record = build_record(window, learning, curves, header, rates, verdict, late)
        if self.prediction_error is not None:
            record["perf/prediction_error_pct"] = 100.0 * self.prediction_error
        if rates.predicted_steps_per_sec and rates.steps_per_sec:
            self._errors.append(abs(rates.predicted_steps_per_sec / rates.steps_per_sec - 1.0))
        self.prediction_error = median(self._errors) if len(self._errors) >= FEWEST_ERRORS else None
        if self._learning is not None and snapshot.wall_s - self._learning.wall_s >= STEADY_S:
            # Since learning began, not of this window: an evaluation inside the window would multiply the time left.
            since = compute_rates(self._learning, learning.current, header.mode, header.num_hosts)
            if since.steps_per_sec:
                record["time/eta_s"] = max(0, header.total_timesteps - snapshot.env_steps) / since.steps_per_sec
        record = self.completed(record)
        self.training_return = number(record, "rollout/ep_rew_mean")
        every_rank: Record = {**rank_series(window), **link_series(window)}
        require_known([*record, *every_rank])
        self.last_snapshot, self._window_begin = snapshot, previous
        # Learning has begun once both sides reported it; a collector's older report would add its random steps.
        counts = ((num_updates(each), policy_steps(each)) for each in (snapshot, self.start))
        if self._learning is None and all(now > before for now, before in zip(*counts, strict=True)):
            self._learning = snapshot
            self._cause.begin_learning()
        written = with_unilab_keys(record) if self._log.unilab_keys else record
        written = written | every_rank if self._log.ranks == "all" else written
        self._sinks.each(lambda sink: sink.write(dict(written)))
        if verdict is not None and self._cause.has_changed:
            advice = [f"- {advice.text}" for advice in verdict.advice]
            markdown = "\n".join([f"**{verdict.label}**", "", verdict.reason, "", *advice])
            self._sinks.each(lambda sink: sink.text("verdict", markdown, snapshot.env_steps))
        is_last = bool(snapshot.learners) and snapshot.learners[0].account.cooldown is not None
        self.view.record(record | every_rank, verdict, is_last=is_last)
        for warning in self._stragglers.warnings(learning):
            self.view.message(warning)
        return written

    def completed(self, record: Record) -> Record:
        """Returns the record as it is written."""
        return record

    def _verdict(self, window: Window, rates: Rates, late: Lateness | None) -> Verdict | None:
        """Returns the verdict to show: the steady cause, with the numbers of this window."""
        header, error = self.header, self.prediction_error
        verdict = window_verdict(window, rates, header, error=error, late=late)
        if verdict is None:
            return None
        shown = self._cause.update(verdict.cause)
        if shown != verdict.cause:
            verdict = window_verdict(window, rates, header, shown, error, late) or verdict
        if not self.gives_advice:
            return replace(verdict, advice=())
        speed = rates.steps_per_sec
        return possible_advice(verdict, self.config_mapping, has_gpu=header.has_gpu, steps_per_sec=speed)

    def log_episode(self, episode: EpisodeRecord) -> None:
        """Records one finished training episode."""
        self._episodes.append(episode)
        self._num_episodes += 1
        self._sinks.each(lambda sink: sink.episode(episode))

    def log_eval(self, result: EvalResult) -> None:
        """Shows an evaluation, and keeps it for the records from the next one on."""
        self.last_eval = result
        self.view.evaluation(result)

    def status(self, text: str) -> None:
        """Shows the status of the run before its first record; nothing once it is being stopped."""
        if not self._is_stopping:
            self.view.status(text)

    def stopping(self, text: str) -> None:
        """Shows at once that the run is being stopped."""
        self._is_stopping = True
        self.view.stopping(text)

    def set_device(self, device: str, products: str, kernels: str) -> None:
        """Sets device and kernels as the learner has chosen them, and the library of its products ('': not known)."""
        has_gpu = self.header.has_gpu
        if self.config_mapping.get("device") == "auto":  # it has chosen the CPU where torch can use no GPU
            has_gpu = device.startswith("cuda")
        self.set_header(replace(self.header, device=device, products=products, kernels=kernels, has_gpu=has_gpu))
        self.set_in_force("device", device.partition(":")[0])

    def set_in_force(self, key: str, value: str) -> None:
        """Sets what a setting stands for, such as the device for `device=auto`: advice is compared with it."""
        self.config_mapping = merge(self.config_mapping, nested({key: value}))

    def finish(self, summary: Summary) -> None:
        """Writes the summary to the sinks and shows it."""
        self._sinks.each(lambda sink: sink.finish(copy.deepcopy(summary)))  # what it does with it is its own
        self.view.finish(end_screen(summary, self.run_dir))

    def close(self) -> None:
        """Closes every sink and releases the terminal."""
        self._sinks.close()
        self.view.close()


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

    After a resume, records beyond `resume_step`, or beyond `resume_updates`, are moved out. Advice is compared with
    `in_force`, which has what `auto` stands for; None: `cfg`. TensorBoard shows `provenance`.
    """
    view = open_view(cfg.log.panel, sys.stdout, header)
    resume = resume_step, resume_updates
    sinks = open_sinks(run_dir, cfg.to_mapping(), cfg.log, header, view.message, *resume, provenance, cfg.sinks)
    return OffPolicyLogger(run_dir, (in_force or cfg).to_mapping(), header, sinks, view, cfg.log)


def open_sinks(  # noqa: PLR0913  # a run, and where it goes on
    run_dir: Path,
    config: Mapping[str, Any],  # Any: nested configuration values
    log: LogConfig,
    header: RunHeader,
    warn: Warn,
    resume_step: int | None = None,
    resume_updates: int | None = None,
    provenance: Provenance | None = None,
    options: Mapping[str, object] = NO_OPTIONS,
) -> SafeSinks:
    """Returns the guarded sinks that `log` switches on; one that cannot be opened is left out, after a warning.

    As for `open_logger`; `options` are those of the plug-ins in `log.sinks`. A back-end is imported when it is used.
    """

    def tensorboard() -> Sink:
        from offpolicy.logger.tensorboard import TensorBoardSink  # takes half a second

        is_full = log.tensorboard == "full"
        return TensorBoardSink(run_dir, config, header, resume_step, is_full=is_full, provenance=provenance)

    def wandb() -> Sink:
        from offpolicy.logger.wandb import WandbSink

        return WandbSink(run_dir, config, log.wandb_project, log.wandb, warn, last_eval_step=header.last_eval_step)

    def of_plugin(name: str) -> Sink:
        plugin = sink_plugin(name)
        open_sink = plugins.resolve(plugin, plugins.load(plugin, SinkInfo).open)
        sink: Sink = open_sink(SinkContext(run_dir, config, options[name], resume_step))
        return sink

    sinks: dict[str, Callable[[], Sink]] = {"metrics.jsonl": partial(JsonlSink, run_dir, resume_step, resume_updates)}
    sinks |= {"tensorboard": tensorboard} if log.tensorboard else {}
    sinks |= {"wandb": wandb} if log.wandb != "disabled" else {}
    sinks |= {str(sink_plugin(name)): partial(of_plugin, name) for name in options if name in log.sinks}
    return SafeSinks(warn, sinks)
