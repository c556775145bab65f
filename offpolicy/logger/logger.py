"""`OffPolicyLogger`: snapshots in, records out, to every sink and to the terminal. It lives in the supervisor."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offpolicy.config import RunConfig
from offpolicy.logger.console import View, open_view
from offpolicy.logger.final_table import final_table
from offpolicy.logger.jsonl_sink import JsonlSink
from offpolicy.logger.record import EpisodeWindow, Record, RunHeader, build_record
from offpolicy.logger.sinks import SafeSink, Sink, Summary, open_sink
from offpolicy.logger.table import require_known
from offpolicy.types import EpisodeRecord, EvalResult, Snapshot


class OffPolicyLogger:
    """Turns cumulative snapshots into records; keeps the last snapshot, the last 100 episodes, the last evaluation.

    Sinks and console never raise; `log_interval` raises `UnknownMetricError` for a key outside the metric table.
    `baseline` is what the counters held when this process started: None when they start at zero.
    """

    def __init__(
        self,
        run_dir: Path,
        config_mapping: Mapping[str, Any],  # Any: nested configuration values
        header: RunHeader,
        sinks: Sequence[SafeSink],
        console: View,
        baseline: Snapshot | None = None,
    ) -> None:
        self.run_dir = run_dir
        self.config_mapping = config_mapping
        self.header = header
        self.baseline = baseline
        self.last_snapshot = baseline
        self.last_eval: EvalResult | None = None
        self.last_record: Record | None = None
        self._sinks = tuple(sinks)
        self._console = console
        self._episodes = EpisodeWindow()

    @property
    def num_dropped(self) -> dict[str, int]:
        """Per sink that failed: the calls it missed."""
        return {sink.name: sink.num_dropped for sink in self._sinks if sink.num_dropped}

    def start_from(self, baseline: Snapshot) -> None:
        """Say what the counters held when this process started: a resumed run does not count them again."""
        self.baseline = self.last_snapshot = baseline

    def log_interval(self, snapshot: Snapshot) -> Record:
        """Record what happened since the last call."""
        record = build_record(
            self.last_snapshot,
            snapshot,
            self._episodes,
            self.last_eval,
            self.header.mode,
            self.header.total_timesteps,
        )
        require_known(record)
        self.last_snapshot, self.last_record = snapshot, record
        for sink in self._sinks:
            sink.write(record)
        self._console.record(record)
        return record

    def log_episode(self, episode: EpisodeRecord) -> None:
        """Take one finished training episode."""
        self._episodes.add(episode)
        for sink in self._sinks:
            sink.episode(episode)

    def log_eval(self, result: EvalResult) -> None:
        """Take an evaluation; it appears in the records from the next one on."""
        self.last_eval = result

    def status(self, text: str) -> None:
        """Show what the run is doing before its first record."""
        self._console.status(text)

    def message(self, text: str) -> None:
        """Show a line that stays."""
        self._console.message(text)

    def finish(self, summary_mapping: Summary) -> None:
        """Hand the summary to the sinks and show it."""
        for sink in self._sinks:
            sink.finish(summary_mapping)
        self._console.finish(final_table(summary_mapping))

    def close(self) -> None:
        """Close every sink and give the terminal back."""
        for sink in self._sinks:
            sink.close()
        self._console.close()


def open_logger(
    run_dir: Path,
    cfg: RunConfig,
    header: RunHeader,
    resume_step: int | None,
    baseline: Snapshot | None = None,
) -> OffPolicyLogger:
    """The logger that `cfg.log` asks for. After a resume, what was recorded beyond `resume_step` is set aside."""
    config = cfg.to_mapping()
    view = open_view(cfg.log.panel, sys.stdout, header)

    def tensorboard() -> Sink:
        # Imported when asked for: half a second that a run without it does not pay.
        from offpolicy.logger.tensorboard_sink import TensorBoardSink  # noqa: PLC0415

        return TensorBoardSink(run_dir, config, header, resume_step)

    def wandb() -> Sink:
        from offpolicy.logger.wandb_sink import WandbSink  # noqa: PLC0415  # optional back-end

        return WandbSink(run_dir, config, cfg.log.wandb_project, cfg.log.wandb)

    opened = [open_sink("metrics.jsonl", lambda: JsonlSink(run_dir, resume_step), view.message)]
    if cfg.log.tensorboard:
        opened.append(open_sink("tensorboard", tensorboard, view.message))
    if cfg.log.wandb != "disabled":
        opened.append(open_sink("wandb", wandb, view.message))
    sinks = [sink for sink in opened if sink is not None]
    return OffPolicyLogger(run_dir, config, header, sinks, view, baseline)
