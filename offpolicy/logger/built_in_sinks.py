"""The sinks that `log` switches on, opened. A back-end is imported when it is used: it may be absent, or take time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from offpolicy.config.sections import LogConfig
from offpolicy.logger.provenance import Provenance
from offpolicy.logger.record import RunHeader
from offpolicy.logger.sinks import JsonlSink, SafeSink, Sink, Warn, open_sink


def open_sinks(  # noqa: PLR0913  # a run, and where it goes on
    run_dir: Path,
    config: Mapping[str, Any],  # Any: nested configuration values
    log: LogConfig,
    header: RunHeader,
    warn: Warn,
    resume_step: int | None = None,
    resume_updates: int | None = None,
    provenance: Provenance | None = None,
) -> list[SafeSink]:
    """Returns the guarded sinks; one that cannot be opened is left out, after a warning.

    Earlier records of the run beyond `resume_step`, or beyond `resume_updates`, are moved out. TensorBoard shows
    `provenance`.
    """

    def tensorboard() -> Sink:
        from offpolicy.logger.tensorboard import TensorBoardSink  # takes half a second

        is_full = log.tensorboard == "full"
        return TensorBoardSink(run_dir, config, header, resume_step, is_full=is_full, provenance=provenance)

    def wandb() -> Sink:
        from offpolicy.logger.wandb import WandbSink

        mode: Literal["offline", "online"] = "online" if log.wandb == "online" else "offline"
        last = header.last_eval_step
        return WandbSink(run_dir, config, log.wandb_project, mode, warn, last_eval_step=last)

    factories: dict[str, Callable[[], Sink]] = {
        "metrics.jsonl": partial(JsonlSink, run_dir, resume_step, resume_updates)
    }
    if log.tensorboard:
        factories["tensorboard"] = tensorboard
    if log.wandb != "disabled":
        factories["wandb"] = wandb
    opened = [open_sink(name, factory, warn) for name, factory in factories.items()]
    return [sink for sink in opened if sink is not None]
