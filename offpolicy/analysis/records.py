"""The records of a run in today's metric names: from `metrics.jsonl` or, where there is none, TensorBoard event files.

The framing of event files is read here: TensorBoard's own loader checks every checksum in Python (65 times slower,
measured on 7 MB), and imports TensorFlow where that is installed.
"""

# pyright: reportAttributeAccessIssue=false
# protobuf makes its classes when it is imported, where a type checker cannot see them

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tensorboard.compat.proto import event_pb2
from tensorboard.util import tensor_util

from offpolicy.analysis.bootstrap import Values
from offpolicy.errors import ConfigError
from offpolicy.logger.metrics import COMPOSITES, METRICS, ROLLOUT_KEY, MetricClass, Vocabulary, vocabulary_of
from offpolicy.runs import read_lines
from offpolicy.types import Float64

JSONL, EVENT_FILES = "metrics.jsonl", "events.out.tfevents.*"
WORLD_SIZE = "distributed/world_size"  # UniLab's number of learner ranks
OWN_VOCABULARY = "offpolicy"
# The counter by whose growth the values of a unit are weighted; others by `wall_s`. Vector steps are not recorded.
WEIGHED_BY_UNIT = {
    "ms/iteration": "iteration",
    "ms/vector step": "env_steps",
    "ms/env step": "env_steps",
    "updates/env step": "env_steps",
}
WEIGHED_BY_KEY = {
    "perf/sample_age": "train/n_updates",
    "perf/policy_lag": "env_steps",
    "perf/collector_capacity": "env_steps",
    "perf/learner_capacity": "env_steps",
    "perf/flops_per_sec": "train/n_updates",
}
# Amounts of what weighs them per active second: their weight are the active seconds.
PER_ACTIVE_SECOND = ("perf/collector_capacity", "perf/learner_capacity", "perf/flops_per_sec")
FOREIGN_WARMUP = 0.1  # fraction of the records of a trainer that does not say when learning began
HEADER, FOOTER = 12, 4  # bytes around an event: its length with a checksum, and the checksum of the event
BEGINNING = 1024  # bytes; the version of an event file and the start of a session take less than a hundred


class Curve(NamedTuple):
    """The values of one key in the records that have one. All [n]."""

    env_steps: Float64
    wall_s: Float64
    value: Float64
    episodes: Float64  # finished training episodes so far; NaN where they are not recorded


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The records of one run, ascending in env steps; NaN where a record lacks a key."""

    path: Path
    vocabulary: Vocabulary
    columns: Mapping[str, Float64]  # each [R]
    is_steady: NDArray[np.bool_]  # [R] after the warm-up, and not the first record after a resume
    is_last: NDArray[np.bool_]  # [R] the last record of a process
    notes: tuple[str, ...]  # where a key is not quite what its name of today says
    unlike: frozenset[str] = frozenset()  # keys that hold other work than those of today's name

    def steady(self, key: str) -> Values:
        """Returns the values of a phase or rate after the warm-up, weighted by what they divide by in their windows.

        Their mean is so that of all windows together; what no record says the amount of is weighted by seconds.
        """
        if key == ROLLOUT_KEY and self.vocabulary.name == OWN_VOCABULARY:
            return self._rollouts()
        value, weight = self._column(key), np.ones(len(self.is_steady))
        metric = METRICS.get(COMPOSITES[key][1][0] if key in COMPOSITES else key)  # a sum is measured as its parts are
        if metric is not None:
            over = WEIGHED_BY_KEY.get(key) or WEIGHED_BY_UNIT.get(metric.unit, "wall_s")
            grown = self._grown(over)
            if over == "wall_s" and metric.kind is MetricClass.RATE:
                grown = self._without_the_end(grown)
            if key in PER_ACTIVE_SECOND:
                grown = grown / np.where(value > 0.0, value, np.nan)
            least = 1.0 if over in ("env_steps", "wall_s") and key not in PER_ACTIVE_SECOND else 0.0
            weight = np.where(np.isfinite(grown) & (grown > 0.0), grown, least) if over in self.columns else weight
        rows = self.is_steady & ~np.isnan(value)
        return Values(value[rows], weight[rows])

    def _rollouts(self) -> Values:
        """Returns the mean wall of a rollout between the records that have one, weighted by the rollouts.

        A record holds the time of its window by the rollouts that were finished in it. Windows in which none was belong
        to the rollouts after them.
        """
        value = self._column(ROLLOUT_KEY)
        window_s = self._without_the_end(self._grown("wall_s"))
        rows = np.flatnonzero(self.is_steady & (value > 0.0) & (window_s > 0.0))
        since_s = np.cumsum(np.where(self.is_steady, window_s, 0.0))[rows]
        count = window_s[rows] / value[rows]  # but for the unit
        return Values(value[rows] * np.diff(since_s, prepend=0.0) / window_s[rows], count)

    def _without_the_end(self, window_s: Float64) -> Float64:
        """Returns the seconds of windows [R] without those of the last evaluation and checkpoint of each process.

        Its last record holds them, but no rate does: a rate's time is what its env steps took.
        """
        rate = self._column("perf/steps_per_sec")
        taken_s = self._grown("env_steps") / np.where(rate > 0.0, rate, np.nan)
        return np.where(self.is_last, np.fmin(window_s, taken_s), window_s)

    def curve(self, key: str) -> Curve:
        """Returns a learning curve from its first value on: each evaluation once, at the env steps of its policy."""
        axis = "eval/env_steps" if key.startswith("eval/") and "eval/env_steps" in self.columns else "env_steps"
        steps, is_chosen = self._column(axis), ~np.isnan(self._column(key))
        if axis != "env_steps":  # in the first of the records that repeat it
            is_chosen &= np.append(True, np.diff(np.nan_to_num(steps, nan=-1.0)) > 0.0) & ~np.isnan(steps)
        columns = (steps, self._column("wall_s"), self._column(key), self._column("rollout/episodes"))
        return Curve(*(column[is_chosen] for column in columns))

    def growth(self, counter: str) -> float:
        """Returns by how much a counter grew over the records after the warm-up; 0 where it is not recorded."""
        return float(np.nansum(self._grown(counter)[self.is_steady]))

    def _grown(self, counter: str) -> Float64:
        """Returns by how much a counter grew in each window. [R]."""
        return np.diff(self._column(counter), prepend=0.0)

    def _column(self, key: str) -> Float64:
        return self.columns.get(key, np.full(len(self.is_steady), np.nan))


def read_run(path: Path) -> RunRecords:
    """Returns the records of a run directory, finished or not. Raises `ConfigError` without a run or records there."""
    events, has_lines = event_paths(path), (path / JSONL).is_file()
    if not (has_lines or events or (path / "config.yaml").is_file()):
        lacks = f"it has neither {JSONL} nor {EVENT_FILES}" if path.is_dir() else "there is no such directory"
        raise ConfigError(f"run: got {str(path)!r}, allowed the directory of a run ({lacks})")
    rows = _jsonl_rows(path / JSONL) if has_lines else read_event_rows(events)
    if not rows:
        raise ConfigError(f"run: {path} has no records yet")
    recorded = {key: None for row in rows for key in row}
    vocabulary = vocabulary_of(recorded)
    renamed = [_renamed(row, vocabulary) for row in rows]
    keys = {key: None for row in renamed for key in row}
    columns = {key: np.array([row.get(key, math.nan) for row in renamed]) for key in keys}
    is_restart = _restarts(columns, _session_starts(events) if has_lines else None)
    if has_lines:  # the seconds of each process follow those that the processes before it have recorded
        wall_s = columns["wall_s"]
        columns["wall_s"] = wall_s + np.cumsum(np.where(is_restart, np.append(0.0, wall_s[:-1]), 0.0))
    updates = columns.get("train/n_updates")
    if updates is None:
        is_steady = np.arange(len(rows)) >= max(1, math.ceil(FOREIGN_WARMUP * len(rows)))
    else:  # once a whole window has seen gradient updates
        is_steady = np.append(False, _filled(updates)[:-1] > 0.0) & ~is_restart
    is_last, notes = np.append(is_restart[1:], True), tuple(vocabulary.notes(recorded))
    has_one_rank = WORLD_SIZE in columns and np.nanmax(columns[WORLD_SIZE], initial=0.0) == 1.0
    unlike = {alias.key for alias in vocabulary.aliases.values() if alias.unlike_with_ranks and not has_one_rank}
    return RunRecords(path, vocabulary, columns, is_steady, is_last, notes, frozenset(unlike))


def _renamed(row: dict[str, float], vocabulary: Vocabulary) -> dict[str, float]:
    """Returns the row in the names of today; of several old names for one, the vocabulary's first counts."""
    found: dict[str, float] = {"env_steps": row["env_steps"] if "env_steps" in row else row.get("step", math.nan)}
    aliases = {old: alias for old, alias in vocabulary.aliases.items() if old in row}
    for old, alias in aliases.items():
        if alias.key not in found or old == "axis/env_steps_total":
            found[alias.key] = row[old] * alias.scale
    taken = found.keys() | aliases.keys() | {"step"}
    return found | {key: value for key, value in row.items() if key not in taken}


def _jsonl_rows(path: Path) -> list[dict[str, float]]:
    """Returns the numbers of each record; a step back in env steps, as a resume may take, drops those beyond it."""
    rows: list[dict[str, float]] = []
    for record in read_lines(path):
        row = {key: float(value) for key, value in record.items() if isinstance(value, int | float)}
        if not {"env_steps", "wall_s"} <= row.keys():
            continue
        while rows and rows[-1]["env_steps"] > row["env_steps"]:
            rows.pop()
        rows.append(row)
    return rows


def _restarts(columns: Mapping[str, Float64], starts: Sequence[int] | None) -> NDArray[np.bool_]:
    """True for the first record after a resume: where a counter of the process falls, and at each of `starts`. [R].

    `starts`: the env steps from which resumed processes wrote, as far as known, where `wall_s` is that of a process;
    None: where it is that of the run. Bound: without event files a process that has counted more by its first record
    than the one before it by its last is taken for the same process.
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


def _filled(values: Float64) -> Float64:
    """Replaces NaN by the last value before it, 0 at the start. [R] -> [R]."""
    known = np.where(np.isnan(values), 0, np.arange(len(values)))
    return np.nan_to_num(values[np.maximum.accumulate(known)])


def event_paths(run: Path) -> list[Path]:
    """Returns the event files of a directory in the order in which they were begun."""
    begun_s = re.compile(r"tfevents\.(\d+)|$")  # or nothing
    return sorted(run.glob(EVENT_FILES), key=lambda path: (int(begun_s.findall(path.name)[0] or 0), path.name))


def read_event_rows(paths: list[Path]) -> list[dict[str, float]]:
    """Returns one mapping per step, ascending: its scalars, `step`, and `wall_s` since the first event.

    A torn event at the end of a file is left out. At the start of another session (`SessionLog.START`, as writers with
    a purge step write it), earlier rows from that step on are dropped, and the pause does not count.
    """
    rows: dict[int, dict[str, float]] = {}
    first_s = last_s = math.nan
    for path in paths:
        for event in _events(path.read_bytes()):
            if math.isnan(first_s):
                first_s = last_s = event.wall_time
            if _is_session_start(event):
                rows = {step: row for step, row in rows.items() if step < event.step}
                first_s += max(0.0, event.wall_time - last_s)
            last_s = max(last_s, event.wall_time)
            for value in event.summary.value:
                number = _number(value)
                if number is not None:
                    row = rows.setdefault(event.step, {"step": float(event.step), "wall_s": event.wall_time - first_s})
                    row.setdefault(value.tag, number)
    return [rows[step] for step in sorted(rows)]


def _session_starts(paths: list[Path]) -> list[int]:
    """Returns the steps from which processes that resumed a run wrote, ascending; none that a later one went back over.

    Writers with a purge step say so (`SessionLog.START`) at the beginning of each file.
    """
    starts: list[int] = []
    for path in paths:
        with path.open("rb") as file:
            beginning = file.read(BEGINNING)
        for event in filter(_is_session_start, _events(beginning)):
            starts = [*(start for start in starts if start < event.step), event.step]
    return starts


def _is_session_start(event: Any) -> bool:  # Any: protobuf's classes exist at run time only
    return bool(event.session_log.status == event.session_log.START)


def _events(content: bytes) -> Iterator[Any]:  # Any: as above
    """Yields the whole events of a file."""
    start = 0
    while start + HEADER <= len(content):
        (length,) = struct.unpack_from("<Q", content, start)
        end = start + HEADER + length
        if end + FOOTER > len(content):
            return
        try:
            yield event_pb2.Event.FromString(content[start + HEADER : end])
        except DecodeError:
            return
        start = end + FOOTER


def _number(value: Any) -> float | None:  # Any: as above
    """Returns a value of an event, plain or as the tensor of TensorFlow 2; None for what is not one number."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if value.HasField("tensor") and value.metadata.plugin_data.plugin_name == "scalars":
        array = tensor_util.make_ndarray(value.tensor)
        return float(array.reshape(())) if array.size == 1 else None
    return None
