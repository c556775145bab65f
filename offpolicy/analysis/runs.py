"""What a run has recorded, in the names of today: read from `metrics.jsonl` or, where there is none, event files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offpolicy.analysis.event_files import PATTERN, event_paths, read_event_rows, session_starts
from offpolicy.errors import ConfigError
from offpolicy.logger.aliases import Vocabulary, vocabulary_of
from offpolicy.logger.metrics import METRICS
from offpolicy.types import Float64

JSONL = "metrics.jsonl"
Row = dict[str, float]
FOREIGN_WARMUP = 0.1  # of the records of a trainer that does not say when learning began


class Series(NamedTuple):
    """The values of one key where there are any. All [n]; `weight` is what a mean over them weighs them with."""

    env_steps: Float64
    wall_s: Float64
    value: Float64
    weight: Float64


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The records of one run, ascending in env steps; NaN where a record has no such key."""

    path: Path
    vocabulary: Vocabulary
    columns: Mapping[str, Float64]  # each [R]
    is_steady: NDArray[np.bool_]  # [R] after the warm-up, and not the first record after a resume
    notes: tuple[str, ...]  # where a key is not quite what its name of today says

    @property
    def last_env_steps(self) -> float:
        """Where the records end."""
        return float(self.columns["env_steps"][-1])

    def steady(self, key: str) -> Series:
        """The values of a phase or rate after the warm-up."""
        return self._series(key, self.is_steady)

    def curve(self, key: str) -> Series:
        """A learning curve from its first value on; an evaluation once, where its policy was."""
        axis = self._axis(key)
        return self._series(key, self._told(axis))._replace(env_steps=self.beside_curve(key, axis))

    def beside_curve(self, key: str, other: str) -> Float64:
        """What `other` holds in the records that `curve(key)` is made of, NaN where it is absent. [n]."""
        return self._column(other)[self._told(self._axis(key)) & ~np.isnan(self._column(key))]

    def _axis(self, key: str) -> str:
        is_of_an_evaluation = key.startswith("eval/") and "eval/env_steps" in self.columns
        return "eval/env_steps" if is_of_an_evaluation else "env_steps"

    def _told(self, axis: str) -> NDArray[np.bool_]:
        """The records that tell something new: all, or of those that repeat an evaluation the first. [R]."""
        if axis == "env_steps":
            return np.ones(len(self.is_steady), dtype=bool)
        steps = self._column(axis)
        is_new: NDArray[np.bool_] = np.append(True, np.diff(np.nan_to_num(steps, nan=-1.0)) > 0.0)
        return is_new & ~np.isnan(steps)

    def grown(self, counter: str) -> float:
        """By how much a counter grew over the records after the warm-up; 0 where it is not recorded."""
        if counter not in self.columns:
            return 0.0
        return float(np.nansum(np.diff(self.columns[counter], prepend=0.0)[self.is_steady]))

    def _series(self, key: str, chosen: NDArray[np.bool_]) -> Series:
        value = self._column(key)
        rows = chosen & ~np.isnan(value)
        weight = self._window(METRICS[key].unit if key in METRICS else "")
        return Series(self.columns["env_steps"][rows], self.columns["wall_s"][rows], value[rows], weight[rows])

    def _column(self, key: str) -> Float64:
        return self.columns.get(key, np.full(len(self.is_steady), np.nan))

    def _window(self, unit: str) -> Float64:
        """How much of what `unit` divides by lies in each record's window; ones where that is not recorded. [R]."""
        over = {"ms/iteration": "iteration", "ms/vector step": "env_steps"}.get(unit, "wall_s")
        if over not in self.columns or not unit:
            return np.ones(len(self.is_steady))
        grown = np.diff(self.columns[over], prepend=0.0)
        return np.where(np.isfinite(grown) & (grown > 0.0), grown, 0.0 if over == "iteration" else 1.0)


def read_run(path: Path) -> RunRecords:
    """The records of a run directory, finished or not. Raises `ConfigError`: not a run, or nothing recorded yet."""
    if not path.is_dir():
        raise ConfigError(f"run: got {str(path)!r}, allowed the directory of a run (there is no such directory)")
    events = event_paths(path)
    starts: list[int] | None = None
    if (path / JSONL).is_file():
        rows, starts = _jsonl_rows(path / JSONL), session_starts(events)
    elif events:
        rows = read_event_rows(events)
    elif (path / "config.yaml").is_file():
        raise ConfigError(f"run: {path} has no records yet (no {JSONL})")
    else:
        told = f"it has neither {JSONL} nor {PATTERN}"
        raise ConfigError(f"run: got {str(path)!r}, allowed the directory of a run ({told})")
    if not rows:
        raise ConfigError(f"run: {path} has no records yet")
    return records_of(path, rows, starts)


def records_of(path: Path, rows: list[Row], starts: Sequence[int] | None = None) -> RunRecords:
    """Records under the names of today, in the vocabulary that `rows` give away.

    `starts`: the env steps from which resumed processes wrote, as far as known, where `wall_s` is that of a process;
    None: where it is that of the run.
    """
    held = {key: None for row in rows for key in row}
    vocabulary = vocabulary_of(held)
    renamed = [_renamed(row, vocabulary) for row in rows]
    keys = {key: None for row in renamed for key in row}
    columns = {key: np.array([row.get(key, math.nan) for row in renamed]) for key in keys}
    restarted = _restarted(columns, starts)
    if starts is not None:
        columns["wall_s"] = _of_the_run(columns["wall_s"], restarted)
    return RunRecords(path, vocabulary, columns, _steady(columns, restarted), tuple(vocabulary.notes(held)))


def _renamed(row: Row, vocabulary: Vocabulary) -> Row:
    """The row in the names of today; of several old names for one, that which the vocabulary lists first counts."""
    found: Row = {"env_steps": row["env_steps"] if "env_steps" in row else row.get("step", math.nan)}
    aliases = {old: alias for old, alias in vocabulary.aliases.items() if old in row}
    for old, alias in aliases.items():
        if alias.key not in found or old == "axis/env_steps_total":
            found[alias.key] = row[old] * alias.scale
    taken = found.keys() | aliases.keys() | {"step"}
    return found | {key: value for key, value in row.items() if key not in taken}


def _jsonl_rows(path: Path) -> list[Row]:
    """The numbers of each whole line. Going back in env steps, as a resume may, drops what was written beyond."""
    rows: list[Row] = []
    for line in path.read_text(errors="replace").splitlines():
        row = _numbers(line)
        if row is None:
            continue
        while rows and rows[-1]["env_steps"] > row["env_steps"]:
            rows.pop()
        rows.append(row)
    return rows


def _numbers(line: str) -> Row | None:
    """The numbers of a record; None for a torn line, which a run that is being written or was killed may end with."""
    try:
        record = json.loads(line)
        numbers = {key: float(value) for key, value in record.items() if isinstance(value, int | float)}
    except (ValueError, AttributeError):
        return None
    return numbers if {"env_steps", "wall_s"} <= numbers.keys() else None


def _steady(columns: Mapping[str, Float64], restarted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """All but the warm-up: until a whole window has seen gradient updates, else the first tenth; and after a resume."""
    count = len(columns["env_steps"])
    updates = columns.get("train/n_updates")
    if updates is None:
        return np.arange(count) >= max(1, math.ceil(FOREIGN_WARMUP * count))
    done = np.nan_to_num(_filled(updates))
    learning = np.append(False, done[:-1] > 0.0)
    return learning & ~restarted


def _restarted(columns: Mapping[str, Float64], starts: Sequence[int] | None) -> NDArray[np.bool_]:
    """The first record after a resume: where what a process counts for itself falls, and at each of `starts`. [R].

    Bound: without event files (`log.tensorboard=false`) a process that has already counted more by its first record
    than the one before it by its last is not told from that: its seconds so far are then taken for the run's.
    """
    steps = columns["env_steps"]
    falls, begun = np.zeros((2, len(steps)), dtype=bool)
    for key in ("iteration", "rollout/episodes") + (("wall_s",) if starts is not None else ()):
        if key in columns:
            falls[1:] |= np.diff(_filled(columns[key])) < 0.0
    for start in starts or ():
        first = int(np.searchsorted(steps, start))
        # A process may record where it resumes before it has taken a step.
        is_before = first > 0 and steps[first - 1] == start - 1 and falls[first - 1] and not begun[first - 1]
        if 0 < first < len(steps) and not is_before:
            begun[first] = True
    return falls | begun


def _of_the_run(wall_s: Float64, restarted: NDArray[np.bool_]) -> Float64:
    """Seconds of each process behind those that the processes before it have recorded. [R], [R] -> [R]."""
    before: Float64 = np.cumsum(np.where(restarted, np.append(0.0, wall_s[:-1]), 0.0))
    return wall_s + before


def _filled(values: Float64) -> Float64:
    """NaN takes the last value before it, 0 at the start. [R] -> [R]."""
    known = np.where(np.isnan(values), 0, np.arange(len(values)))
    return np.nan_to_num(values[np.maximum.accumulate(known)])


def keys_of(runs: Iterable[RunRecords]) -> list[str]:
    """Every key that any of the runs holds, in order."""
    return list(dict.fromkeys(key for run in runs for key in run.columns))
