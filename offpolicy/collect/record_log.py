"""A file of JSON lines beside a run: one that cannot be written costs a warning, not the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from offpolicy.files import JsonlFile

Record = dict[str, float | str | None]


class RecordLog:
    """A file with a line per record, whole or not at all."""

    def __init__(self, path: Path, last_step: int, warn: Callable[[str], None]) -> None:
        """`last_step`: lines of later env steps are superseded. `warn` gets the first failure."""
        self._path, self._last_step, self._warn = path, last_step, warn
        self._has_warned = self._is_closed = False
        self._file: JsonlFile | None = None
        try:
            self._open()
        except OSError as error:
            self._warn_once(error)

    def append(self, record: Record) -> None:
        """Writes a line, if that is possible; a file that could not be opened is tried again, a closed one is not."""
        if self._is_closed:
            return
        try:
            self._open().append(record)
        except OSError as error:
            self._warn_once(error)

    def _open(self) -> JsonlFile:
        if self._file is None:
            self._file = JsonlFile(self._path, self._last_step)
        return self._file

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        self._is_closed = True
        if self._file is not None:
            self._file.close()
            self._file = None

    def _warn_once(self, error: OSError) -> None:
        if not self._has_warned:
            self._warn(f"{self._path.name} cannot be written: {error}; its lines are dropped while that is so")
        self._has_warned = True
