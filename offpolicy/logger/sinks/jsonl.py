"""`metrics.jsonl` and `episodes.jsonl`: whole lines or none, and no env step twice after a resume."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from offpolicy.files import AppendFile
from offpolicy.logger.record import Record
from offpolicy.logger.sinks.sink import Summary
from offpolicy.types import EpisodeRecord


class JsonlFile:
    """An append-only file of JSON lines.

    On opening, a torn last line is dropped; with `resume_step`, records beyond that env step move to
    `<name>.superseded.jsonl`, because the resumed run is going to write those steps again.
    """

    def __init__(self, path: Path, resume_step: int | None) -> None:
        if path.is_file():
            _mend(path, math.inf if resume_step is None else resume_step)
        self._file = AppendFile(path)

    def append(self, mapping: Record) -> None:
        """Write one line, whole or not at all. Raises OSError."""
        self._file.append((json.dumps(mapping, allow_nan=False) + "\n").encode())

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def _mend(path: Path, last_step: float) -> None:
    """Keep the whole lines up to `last_step`; later ones move out, torn ones go."""
    kept: list[bytes] = []
    superseded: list[bytes] = []
    lines = path.read_bytes().split(b"\n")
    for line in lines:
        steps = _env_steps(line)
        if steps is not None:
            (kept if steps <= last_step else superseded).append(line + b"\n")
    if superseded:
        _append_synced(path.with_name(f"{path.stem}.superseded{path.suffix}"), b"".join(superseded))
    if b"".join(kept) != b"\n".join(lines):
        _replace(path, b"".join(kept))


def _env_steps(line: bytes) -> float | None:
    """The line's env steps, or None if it is not a whole record."""
    try:
        record: Any = json.loads(line)  # Any: whatever the file holds
        return float(record["env_steps"])
    except (ValueError, KeyError, TypeError):
        return None


def _append_synced(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, content: bytes) -> None:
    """Whole old or whole new content, never a mixture, whenever the process is killed."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    _append_synced(temporary, content)
    temporary.replace(path)


class JsonlSink:
    """Records into `metrics.jsonl`, episodes into `episodes.jsonl` of the run directory."""

    def __init__(self, run_dir: Path, resume_step: int | None) -> None:
        self._metrics = JsonlFile(run_dir / "metrics.jsonl", resume_step)
        self._episodes = JsonlFile(run_dir / "episodes.jsonl", resume_step)

    def write(self, record: Record) -> None:
        """Append the record."""
        self._metrics.append(record)

    def episode(self, episode: EpisodeRecord) -> None:
        """Append the episode; an unknown success is left out."""
        mapping = {key: value for key, value in episode._asdict().items() if not _is_nan(value)}
        self._episodes.append(mapping)

    def text(self, tag: str, content: str, env_steps: int) -> None:
        """Every record says what texts say."""

    def finish(self, summary: Summary) -> None:
        """The summary has a file of its own in the run directory."""

    def close(self) -> None:
        """Close both files."""
        self._metrics.close()
        self._episodes.close()


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
