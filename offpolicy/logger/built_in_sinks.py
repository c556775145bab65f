"""The sinks that `log` switches on, opened. A back-end is imported when it is used: it may be absent, or take time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from offpolicy.config.sections import LogConfig
from offpolicy.logger.provenance import Provenance
from offpolicy.logger.record import RunHeader
from offpolicy.logger.sinks import JsonlSink, SafeSink, Sink, Warn, open_sink


@dataclass(frozen=True, slots=True)
class BuiltInSinks:
    """What the sinks of a run are opened with.

    Records of the run's earlier lives beyond `resume_step`, or beyond `resume_updates`, are moved out. `is_unique`
    says that no two records have the same env steps. TensorBoard shows `provenance`.
    """

    run_dir: Path
    config: Mapping[str, Any]  # Any: nested configuration values
    log: LogConfig
    header: RunHeader
    resume_step: int | None
    resume_updates: int | None
    is_unique: bool
    provenance: Provenance | None
    warn: Warn

    def open(self) -> list[SafeSink]:
        """Returns the guarded sinks; one that cannot be opened is left out, after a warning."""
        log = self.log
        factories: dict[str, tuple[bool, Callable[[], Sink]]] = {
            "metrics.jsonl": (True, self._jsonl),
            "tensorboard": (bool(log.tensorboard), self._tensorboard),
            "wandb": (log.wandb != "disabled", self._wandb),
        }
        opened = [open_sink(name, factory, self.warn) for name, (is_on, factory) in factories.items() if is_on]
        return [sink for sink in opened if sink is not None]

    def _jsonl(self) -> Sink:
        return JsonlSink(self.run_dir, self.resume_step, self.resume_updates, is_unique=self.is_unique)

    def _tensorboard(self) -> Sink:
        from offpolicy.logger.tensorboard import TensorBoardSink  # takes half a second

        is_full = self.log.tensorboard == "full"
        return TensorBoardSink(
            self.run_dir, self.config, self.header, self.resume_step, is_full=is_full, provenance=self.provenance
        )

    def _wandb(self) -> Sink:
        from offpolicy.logger.wandb import WandbSink

        mode: Literal["offline", "online"] = "online" if self.log.wandb == "online" else "offline"
        last_eval_step = self.header.last_eval_step
        return WandbSink(
            self.run_dir, self.config, self.log.wandb_project, mode, self.warn, last_eval_step=last_eval_step
        )
