"""Sinks of records: their base class, the guard that drops failed ones, and the JSON lines of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from offpolicy.files import JsonlFile, UniqueJsonlFile
from offpolicy.logger.record import Record
from offpolicy.types import EpisodeRecord

Warn = Callable[[str], None]
Summary = Mapping[str, Any]  # Any: the nested mapping of summary.json


class Sink:
    """One destination. Any method may raise: the run calls it through `SafeSinks`. What is not defined does nothing."""

    def write(self, record: Record) -> None:
        """Writes one record of a log interval."""

    def episode(self, episode: EpisodeRecord) -> None:
        """Writes one finished training episode."""

    def text(self, tag: str, content: str, env_steps: int) -> None:
        """Writes a text (Markdown) that is true from `env_steps` on."""

    def finish(self, summary: Summary) -> None:
        """Writes the summary of the run, before `close`."""

    def close(self) -> None:
        """Writes what is pending and frees everything."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What the sink of a plug-in is opened with."""

    run_dir: Path
    config: Mapping[str, Any]  # Any: nested values of the configuration
    options: Any  # an instance of the dataclass that the plug-in's `SinkInfo` names
    resume_step: int | None  # env step that the run goes on from: records since are superseded; None: a new run


class SafeSinks:
    """The sinks of a run by name. The first exception of one disables it, with one warning; the rest is dropped."""

    def __init__(self, warn: Warn, sinks: Mapping[str, Callable[[], Sink]]) -> None:
        """Opens the sinks; one that cannot be opened is left out."""
        self._warn, self._open = warn, dict[str, Sink]()
        for name, open_sink in sinks.items():
            self._succeeds(name, partial(self._add, name, open_sink))

    def each(self, use: Callable[[Sink], object]) -> None:
        """Uses every sink that has not failed."""
        for name, sink in list(self._open.items()):
            if not self._succeeds(name, partial(use, sink)):
                del self._open[name]
                with contextlib.suppress(Exception):  # frees its descriptors
                    sink.close()

    def close(self) -> None:
        """Closes every sink that has not failed; later calls are dropped."""
        while self._open:
            name, sink = self._open.popitem()
            self._succeeds(name, sink.close)

    def _add(self, name: str, open_sink: Callable[[], Sink]) -> None:
        self._open[name] = open_sink()

    def _succeeds(self, name: str, call: Callable[[], object]) -> bool:
        """True if the call raises nothing; else warns: it must not end hours of training."""
        try:
            call()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # asyncio cancels with an error that is no `Exception`
            self._warn(disabled(name, error))
            return False
        return True


def disabled(name: str, error: BaseException) -> str:
    """Returns the warning of a sink that failed: one line, whatever the error says."""
    return f"warning: {name} is disabled for the rest of the run: {cause_of(error)}"


def cause_of(error: BaseException) -> str:
    """Returns class and text of an error in one line; its class alone where it has no text, or where that raises."""
    try:
        return f"{type(error).__name__}: {error}".rstrip(": ").replace("\n", " ")
    except Exception:  # of the error's own text
        return type(error).__name__


class NewEvaluations:
    """Separates a new evaluation from one that later records repeat, so that a curve has one point for each.

    `last_steps` are the env steps of the last one before this start of the run.
    """

    def __init__(self, last_steps: int | None = None) -> None:
        self._last_steps: float | str | None = last_steps

    def take(self, record: Record) -> tuple[Record, Record]:
        """Returns the record without `eval/`, and its `eval/` part, empty if it is not new."""
        evaluation = {key: value for key, value in record.items() if key.startswith("eval/")}
        rest = {key: value for key, value in record.items() if key not in evaluation}
        steps = record.get("eval/env_steps", self._last_steps)
        if steps == self._last_steps:
            return rest, {}
        self._last_steps = steps
        return rest, evaluation


class JsonlSink(Sink):
    """Writes `metrics.jsonl` and `episodes.jsonl`: whole lines or none.

    In `metrics.jsonl` neither env steps nor updates ever go back, and every env step comes once.
    """

    def __init__(self, run_dir: Path, resume_step: int | None, resume_updates: int | None = None) -> None:
        self._metrics = UniqueJsonlFile(run_dir / "metrics.jsonl", resume_step, resume_updates)
        self._episodes = JsonlFile(run_dir / "episodes.jsonl", resume_step)

    def write(self, record: Record) -> None:
        """Appends the record."""
        self._metrics.append(record)

    def episode(self, episode: EpisodeRecord) -> None:
        """Appends the episode without what is not finite, such as an unknown success."""
        self._episodes.append(episode.known())

    def close(self) -> None:
        """Closes both files."""
        self._metrics.close()
        self._episodes.close()
