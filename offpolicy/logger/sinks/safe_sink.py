"""Where records go. A sink that fails is dropped with one warning; training goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from offpolicy.logger.record import Record
from offpolicy.types import EpisodeRecord

Warn = Callable[[str], None]
Summary = Mapping[str, Any]  # Any: the nested mapping of summary.json


class Sink(Protocol):
    """One destination. Any method may raise; `SafeSink` stands between it and the run."""

    def write(self, record: Record) -> None:
        """Take one record of a log interval."""

    def episode(self, episode: EpisodeRecord) -> None:
        """Take one finished training episode."""

    def text(self, tag: str, content: str, env_steps: int) -> None:
        """Take a text (Markdown) that is true from `env_steps` on."""

    def finish(self, summary: Summary) -> None:
        """Take the summary of the run, before `close`."""

    def close(self) -> None:
        """Write out what is held and free it."""


class SafeSink:
    """Guards a sink: its first exception disables it, with one warning; what follows is dropped and counted."""

    def __init__(self, name: str, sink: Sink, warn: Warn) -> None:
        self.name = name
        self.num_dropped = 0
        self._sink: Sink | None = sink
        self._warn = warn

    @property
    def is_enabled(self) -> bool:
        """Whether the sink still takes records."""
        return self._sink is not None

    def write(self, record: Record) -> None:
        """Pass on, or drop and count."""
        self._guard(lambda sink: sink.write(record))

    def episode(self, episode: EpisodeRecord) -> None:
        """Pass on, or drop and count."""
        self._guard(lambda sink: sink.episode(episode))

    def text(self, tag: str, content: str, env_steps: int) -> None:
        """Pass on, or drop and count."""
        self._guard(lambda sink: sink.text(tag, content, env_steps))

    def finish(self, summary: Summary) -> None:
        """Pass on, or drop and count."""
        self._guard(lambda sink: sink.finish(summary))

    def close(self) -> None:
        """Close the sink if it still works; it takes nothing afterwards."""
        if self._sink is not None:
            self._guard(lambda sink: sink.close())
            self._sink = None

    def _guard(self, call: Callable[[Sink], None]) -> None:
        if self._sink is None:
            self.num_dropped += 1
            return
        try:
            call(self._sink)
        except Exception as error:  # whatever a sink raises must not end hours of training
            self._disable(error)

    def _disable(self, error: Exception) -> None:
        sink, self._sink = self._sink, None
        self.num_dropped += 1
        self._warn(f"warning: {self.name} is disabled for the rest of the run: {describe(error)}")
        try:
            if sink is not None:
                sink.close()
        except Exception:  # it failed before and was reported; closing is only for its descriptors
            return


def describe(error: BaseException) -> str:
    """The error in one line: its type and what it says."""
    return f"{type(error).__name__}: {error}".rstrip(": ").replace("\n", " ")


def open_sink(name: str, factory: Callable[[], Sink], warn: Warn) -> SafeSink | None:
    """The guarded sink that `factory` opens; None, after a warning, when it cannot."""
    try:
        return SafeSink(name, factory(), warn)
    except Exception as error:  # as above: the run does not depend on any sink
        warn(f"warning: {name} is disabled for the rest of the run: {describe(error)}")
        return None


class NewEvaluations:
    """Tells a new evaluation from one that the following records repeat, so that a curve has one point for each."""

    def __init__(self) -> None:
        self._last_steps: float | None = None

    def take(self, record: Record) -> tuple[Record, Record]:
        """(the record without `eval/`, the `eval/` part if it is new else empty)."""
        rest = {key: value for key, value in record.items() if not key.startswith("eval/")}
        steps = record.get("eval/env_steps")
        if steps is None or isinstance(steps, str) or steps == self._last_steps:
            return rest, {}
        self._last_steps = steps
        return rest, {key: value for key, value in record.items() if key not in rest}
