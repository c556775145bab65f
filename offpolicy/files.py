"""A file that grows by whole pieces: a full disk, a kill or a signal leaves no half of one."""

from __future__ import annotations

import os
from pathlib import Path


class AppendFile:
    """Unbuffered, so nothing is left to fail at exit: a piece is in the file when `append` returns, or not at all."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, piece: bytes) -> None:
        """Write `piece` in one call. Raises OSError; a piece that fits only in part is taken back."""
        written = os.write(self._descriptor, piece)
        if written < len(piece):
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
            raise OSError(f"only {written} of {len(piece)} bytes could be written")

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
