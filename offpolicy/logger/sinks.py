"""Sinks of records: their base class, the guard that drops a failed one, and the JSON lines of a run."""

from __future__ import annotations

import copy
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
    """One destination. Any method may raise: the run calls it through `SafeSink`. What is not defined does nothing."""

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


class SafeSink:
    """Guards a sink: its first exception disables it, with one warning; what follows is dropped."""

    def __init__(self, name: str, sink: Sink, warn: Warn) -> None:
        self.name = name
        self._sink: Sink | None = sink
        self._warn = warn

    def write(self, record: Record) -> None:
        """Writes the record."""
        self._guard(lambda sink: sink.write(dict(record)))

    def episode(self, episode: EpisodeRecord) -> None:
        """Writes the episode."""
        self._guard(lambda sink: sink.episode(episode))

    def text(self, tag: str, content: str, env_steps: int) -> None:
        """Writes the text."""
        self._guard(lambda sink: sink.text(tag, content, env_steps))

    def finish(self, summary: Summary) -> None:
        """Writes the summary."""
        self._guard(lambda sink: sink.finish(copy.deepcopy(summary)))  # what it does with it is its own

    def close(self) -> None:
        """Closes the sink if it has not failed; later calls are dropped."""
        sink, self._sink = self._sink, None
        if sink is not None and (error := error_of(sink.close)) is not None:  # a second try would find it half closed
            self._warn(disabled(self.name, error))

    def _guard(self, call: Callable[[Sink], None]) -> None:
        sink = self._sink
        if sink is not None and (error := error_of(partial(call, sink))) is not None:
            self._sink = None
            self._warn(disabled(self.name, error))
            error_of(sink.close)  # frees its descriptors


def error_of(call: Callable[[], object]) -> BaseException | None:
    """Returns what a call raised: it must not end hours of training. An interrupt is raised.

    `asyncio` cancels with an error that is no `Exception`.
    """
    try:
        call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    return None


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

    def __init__(self, last_steps: float | None = None) -> None:
        self._last_steps = last_steps

    def take(self, record: Record) -> tuple[Record, Record]:
        """Returns the record without `eval/`, and its `eval/` part, empty if it is not new."""
        rest = {key: value for key, value in record.items() if not key.startswith("eval/")}
        steps = record.get("eval/env_steps")
        if steps is None or isinstance(steps, str) or steps == self._last_steps:
            return rest, {}
        self._last_steps = steps
        return rest, {key: value for key, value in record.items() if key not in rest}


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
