"""Phases, rates and learning of labelled runs side by side, each with a verdict against the first label."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from offpolicy.analysis.groups import Group
from offpolicy.analysis.resampling import Values
from offpolicy.analysis.returns import learning_rows
from offpolicy.analysis.verdicts import AMOUNT, LEAST_CHANGE, SPEED, TIME, Cell, Row, Section, Words, drawn_of, row_of
from offpolicy.logger.aliases import COMPOSITES, FOREIGN, PIPELINE_KEY
from offpolicy.logger.metrics import COLLECTOR_ROWS, LEARNER_ROWS, ROLLOUT_KEY, collector_key, learner_key

ITERATION, CYCLE = "perf/iter_ms", "perf/collector_cycle_ms"
LEARNER_KEYS = {learner_key(phase): row for phase, row in LEARNER_ROWS.items()}
COLLECTOR_KEYS = {collector_key(phase): row for phase, row in COLLECTOR_ROWS.items()}
# Key -> row, and what is said of more: rates of work are faster, amounts only higher.
RATES = {
    "perf/steps_per_sec": ("thru, env steps/s", True),
    "perf/updates_per_sec": ("updates/s", True),
    "perf/collector_capacity": ("I, env steps/s", True),
    "perf/learner_capacity": ("T, env steps/s", True),
    "perf/flops_per_sec": ("FLOP/s", True),
    "perf/utd": ("utd", False),
    "perf/policy_lag": ("policy lag", False),
    "perf/sample_age": ("sample age", False),
}
LEAST_SHARE = 0.005  # of the wall: a phase that changed by less does not matter to anybody
WORK = "env steps/iteration"


def sections(groups: Sequence[Group], reference: float | None) -> list[Section]:
    """Everything that at least one of the groups has recorded. `reference`: the score to reach, None: chosen."""
    learner = _phases(groups, LEARNER_KEYS | foreign_rows("learner"), ITERATION, "Iter Wall")
    learner += [row for row in (*(_composite(groups, key) for key in COMPOSITES), _work_row(groups)) if row is not None]
    collector = _phases(groups, COLLECTOR_KEYS | foreign_rows("collector"), CYCLE, "Cycle")
    collector += _rows([_steady_row(groups, ROLLOUT_KEY, "Rollout", TIME, 0.0)])
    rates = [
        _steady_row(groups, key, row, SPEED if is_speed else AMOUNT, 0.0) for key, (row, is_speed) in RATES.items()
    ]
    found = [
        Section("Learner, ms/iteration", learner),
        Section("Collector, ms/vec step", collector),
        Section("Rates", _rows(rates)),
        Section("Learning", learning_rows(groups, reference)),
    ]
    return [section for section in found if section.rows]


def foreign_rows(side: str) -> dict[str, str]:
    """Phases that only other trainers have, by key."""
    return {key: row for key, (of, row) in FOREIGN.items() if of == side}


def _phases(groups: Sequence[Group], keys: dict[str, str], wall_key: str, wall_row: str) -> list[Row]:
    """The phases of one clock, and its wall."""
    walls = [_mean(groups[0], wall_key), *(_mean(group, wall_key) for group in groups)]
    least = LEAST_SHARE * next((wall for wall in walls if not math.isnan(wall)), 0.0)
    rows = _rows(_steady_row(groups, key, row, TIME, least) for key, row in keys.items())
    wall = _steady_row(groups, wall_key, wall_row, TIME, 0.0, is_sum=True)
    return rows + ([wall] if wall is not None else [])


def _mean(group: Group, key: str) -> float:
    values = steady_values(group, key)
    return float(np.mean([run.mean for run in values])) if values else math.nan


def _rows(found: Iterator[Row | None] | Sequence[Row | None]) -> list[Row]:
    """Those that exist and are not zero for everybody."""
    return [row for row in found if row is not None and any(abs(cell.value) >= 5e-4 for cell in row.cells)]


def steady_values(group: Group, key: str) -> list[Values]:
    """What each run recorded of a phase or rate after its warm-up; empty unless all of them did."""
    found = [run.steady(key) for run in group.runs]
    if key == ROLLOUT_KEY and not all(series.value.any() for series in found):
        return []  # 0 says that there are no rollouts
    if not all(len(series.value) and series.weight.sum() > 0.0 for series in found):
        return []
    return [Values(series.value, series.weight) for series in found]


def _steady_row(
    groups: Sequence[Group], key: str, title: str, words: Words, least: float, *, is_sum: bool = False
) -> Row | None:
    drawn = [drawn_of(steady_values(group, key), index) for index, group in enumerate(groups)]
    return row_of(title, drawn, words, least, is_sum=is_sum) if any(drawn) else None


def _work_row(groups: Sequence[Group]) -> Row | None:
    """Env steps per iteration, where they differ: then the milliseconds are those of different amounts of work."""
    found = [_env_steps_per_iteration(group) for group in groups]
    known = [value for value in found if not math.isnan(value)]
    if not known or max(known) <= (1.0 + LEAST_CHANGE) * min(known):
        return None
    return Row(WORK, tuple(map(Cell, found)))


def _env_steps_per_iteration(group: Group) -> float:
    ratios = [run.grown("env_steps") / run.grown("iteration") for run in group.runs if run.grown("iteration") > 0.0]
    return float(np.mean(ratios)) if ratios else math.nan


def _composite(groups: Sequence[Group], key: str) -> Row | None:
    """A sum that some trainer recorded as one number, beside the same sum of those that recorded its parts."""
    title, parts = COMPOSITES[key]
    instead_of = ITERATION if key == PIPELINE_KEY else parts[0]
    if not any(key in run.columns and instead_of not in run.columns for group in groups for run in group.runs):
        return None
    drawn = [drawn_of(steady_values(group, key) or _summed(group, parts), index) for index, group in enumerate(groups)]
    return row_of(title, drawn, TIME, 0.0, is_sum=True)


def _summed(group: Group, keys: Sequence[str]) -> list[Values]:
    """The sum of phases, record by record, where all runs have some of them."""
    found = [[run.steady(key) for key in keys if key in run.columns] for run in group.runs]
    if not all(parts and len({len(part.value) for part in parts}) == 1 for parts in found):
        return []
    return [Values(np.sum([part.value for part in parts], axis=0), parts[0].weight) for parts in found]
