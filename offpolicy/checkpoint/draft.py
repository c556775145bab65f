"""A checkpoint that is being written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from offpolicy.checkpoint.formats import Array, save_error, write_json, write_rows, write_tensors
from offpolicy.checkpoint.manifest import Checkpoint, FileRecord
from offpolicy.files import Disk
from offpolicy.types import Float32


class Draft:
    """A checkpoint being written. Other processes may put files into `path` until the draft's `with` ends."""

    def __init__(self, path: Path, env_steps: int, disk: Disk) -> None:
        self.path = path
        self.env_steps = env_steps
        self._disk = disk
        self.linked: dict[str, FileRecord] = {}  # files of another checkpoint that this one holds too
        self.saved: Checkpoint | None = None  # what the draft has become

    def add_tensors(self, name: str, tensors: Mapping[str, Array]) -> None:
        """Saves named arrays. Raises as `write_tensors`."""
        write_tensors(self.path, name, tensors, self._disk)

    def add_json(self, name: str, value: Any) -> None:  # Any: a JSON value
        """Saves a JSON value without NaN or Inf; tuples come back as lists. Raises as `write_json`."""
        write_json(self.path, name, value, self._disk)

    def add_rows(self, name: str, blocks: Iterable[Float32]) -> None:
        """Saves float32 rows [rows, width]; blocks are joined, so a ring needs no copy. Raises as `write_rows`."""
        write_rows(self.path, name, blocks, self._disk)

    def add_link(self, file_name: str, other: Checkpoint, name_there: str) -> None:
        """Makes a file of another checkpoint a file of this one too, without writing it. Raises `SaveError`."""
        directory = other.path
        if not os.path.lexists(directory):  # it got its name back since it was found, by `_clean_up`
            directory = directory.with_name(directory.name.removeprefix(".replaced-"))
        try:
            self._disk.link(directory / name_there, self.path / file_name)
        except OSError as error:
            raise save_error(other.path / name_there, error) from error
        self.linked[file_name] = other.files[name_there]
