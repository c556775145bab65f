"""One run as a page reports it: its records, its files as far as there are any, and how its verdict changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offpolicy.analysis.explain import FinishedRun
from offpolicy.analysis.records import JSONL, RunRecords, read_run
from offpolicy.analysis.runs import Config, flat_config, paths_by_label
from offpolicy.errors import ConfigError
from offpolicy.logger.metrics import collector_key, learner_key
from offpolicy.logger.summary import last_summary
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.types import Float64

BINS = 60  # of the account over time, at most
SIDES = {"learner": (LearnerPhase, learner_key), "collector": (CollectorPhase, collector_key)}


class VerdictChange(NamedTuple):
    """A verdict, and the env step at which it was first shown."""

    env_steps: int
    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A run under its label. `finished` is None, and `problem` says why, where it has no account to explain."""

    label: str
    records: RunRecords
    config: Config
    summary: Mapping[str, Any]  # Any: the nested mapping of summary.json; empty before the run has ended
    finished: FinishedRun | None
    problem: str
    verdicts: tuple[VerdictChange, ...]
    last_label: str  # of the last record that has a verdict

    @property
    def bottleneck(self) -> str:
        """What the summary says of the whole run; before its end, what its last record says. Empty if unknown."""
        found = self.summary.get("bottleneck")
        return f"{found['verdict']}({found['phase']})".removesuffix("()") if found else self.last_label

    def account(self, side: str) -> dict[str, float]:
        """Returns each phase of a side in ms, the mean after the warm-up; empty where it was not timed."""
        phases, key = SIDES[side]
        values = {phase: self.records.steady(key(phase)) for phase in phases}
        return {
            str(phase): float(np.average(found.value, weights=found.weight))
            for phase, found in values.items()
            if len(found.value) and found.weight.sum() > 0.0
        }

    def account_over_time(self, side: str) -> tuple[Float64, dict[str, Float64]]:
        """Returns env steps [n] and each phase in percent of the wall [n], means over neighbouring records."""
        phases, key = SIDES[side]
        columns = self.records.columns
        found = {str(phase): np.nan_to_num(columns[key(phase)]) for phase in phases if key(phase) in columns}
        if not found:
            return np.zeros(0), {}
        stacked = np.maximum(np.stack(list(found.values())), 0.0)  # [phases, records]
        is_timed = stacked.sum(axis=0) > 0.0
        steps, percent = columns["env_steps"][is_timed], stacked[:, is_timed]
        percent = 100.0 * percent / percent.sum(axis=0)
        bins = np.array_split(np.arange(len(steps)), min(BINS, max(1, len(steps))))
        means = {
            phase: np.array([row[each].mean() for each in bins]) for phase, row in zip(found, percent, strict=True)
        }
        return np.array([steps[each].mean() for each in bins]), means if len(steps) else {}


def read_reported(words: Sequence[str]) -> list[ReportedRun]:
    """Reads the runs of `[label=]RUN ...`; those of one label are numbered. Raises `ConfigError`."""
    named = paths_by_label(words)
    return [
        _read(f"{label} {index}" if len(paths) > 1 else label, path)
        for label, paths in named.items()
        for index, path in enumerate(paths, 1)
    ]


def _read(label: str, path: Path) -> ReportedRun:
    finished, problem = None, ""
    try:
        finished = FinishedRun.read(path)
    except ConfigError as error:
        problem = str(error)
    if finished is not None and finished.went_on:  # the outcome of another start is not that of these records
        problem = f"run: {finished.went_on}"
        finished = None
    summary = finished.summary if finished is not None else last_summary(path)
    verdicts, last = _verdicts(path / JSONL)
    return ReportedRun(label, read_run(path), flat_config(path), summary, finished, problem, verdicts, last)


def _verdicts(path: Path) -> tuple[tuple[VerdictChange, ...], str]:
    """Returns the verdicts of the records, each where its side or phase is another one than before, and the last."""
    changes: list[VerdictChange] = []
    last = ""
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        try:
            record = json.loads(line)
        except ValueError:  # a torn line
            continue
        label = record.get("perf/bottleneck")
        last = label or last
        if label and (not changes or _cause(label) != _cause(changes[-1].label)):
            reason = record.get("perf/bottleneck_reason", "")
            changes.append(VerdictChange(int(record["env_steps"]), label, reason))
    return tuple(changes), last


def _cause(label: str) -> str:
    """Returns a verdict without its share: learner(train 94%) -> learner(train."""
    return label.partition(" ")[0]
