"""`metrics.jsonl` and `episodes.jsonl`: whole lines or none, and no env step twice after a resume."""

from __future__ import annotations

import math
from pathlib import Path

from offpolicy.files import JsonlFile
from offpolicy.logger.record import Record
from offpolicy.logger.sinks.safe_sink import Summary
from offpolicy.types import EpisodeRecord


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
