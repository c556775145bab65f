"""The diary of an evaluation's episodes, which costs a warning when it cannot be kept, and never the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from offpolicy.logger.record import Record
from offpolicy.logger.sinks.jsonl import JsonlFile


class EpisodeLog:
    """A line per episode, whole or not at all; those after the env step that a run goes on from are superseded."""

    def __init__(self, path: Path, start_step: int, warn: Callable[[str], None]) -> None:
        """`start_step`: 0 for a run from the start. `warn` is told of the first line that cannot be written."""
        self._name, self._warn = path.name, warn
        self._has_warned = False
        self._file: JsonlFile | None = None
        try:
            self._file = JsonlFile(path, start_step or None)
        except OSError as error:
            self._tell(error)

    def append(self, record: Record) -> None:
        """Write a line, if that is possible."""
        if self._file is None:
            return
        try:
            self._file.append(record)
        except OSError as error:
            self._tell(error)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _tell(self, error: OSError) -> None:
        if not self._has_warned:
            self._warn(f"{self._name} cannot be written: {error}; its lines are dropped while that is so")
        self._has_warned = True
