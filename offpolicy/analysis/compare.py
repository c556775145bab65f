"""Phases, rates and learning of labelled runs side by side, each with its change and verdict against the baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from offpolicy.analysis.bootstrap import Drawn, Interval, Values, difference_interval, draw
from offpolicy.analysis.contention import DESCHEDULED, contended_labels
from offpolicy.analysis.learning_curves import (
    RETURNS,
    common_end,
    final_values,
    first_reach,
    least_return_change,
    reach_key,
    reference_score,
)
from offpolicy.analysis.runs import LabelledRuns
from offpolicy.logger.metrics import (
    COLLECTOR_ROWS,
    COMPOSITES,
    FOREIGN,
    LEARNER_ROWS,
    PIPELINE_KEY,
    ROLLOUT_KEY,
    collector_key,
    learner_key,
)

LEAST_CHANGE = 0.02  # fraction of a phase or rate: a smaller change does not matter
LEAST_OF_WALL = 0.005  # fraction of the wall: a phase that changed by less does not matter
ITERATION, CYCLE = "perf/iter_ms", "perf/collector_cycle_ms"
LEARNER_KEYS = {learner_key(phase): row for phase, row in LEARNER_ROWS.items()}
COLLECTOR_KEYS = {collector_key(phase): row for phase, row in COLLECTOR_ROWS.items()}
NOISE, UNKNOWN = "noise", ""
# No verdict: the cores were shared; the run was delayed on purpose; the keys hold different work.
BUSY, UNLIKE = "busy", "unlike"


class Words(NamedTuple):
    """The verdicts on less and on more."""

    less: str
    more: str
    is_of_time: bool = False  # what a shared core changes


TIME, SPEED = Words("faster", "slower", is_of_time=True), Words("slower", "faster", is_of_time=True)
STEPS, AMOUNT, RETURN = Words("faster", "slower"), Words("lower", "higher"), Words("worse", "better")
RATES = {
    "perf/steps_per_sec": ("thru, env steps/s", SPEED),
    "perf/updates_per_sec": ("updates/s", SPEED),
    "perf/samples_per_sec": ("samples/s", SPEED),
    "perf/collector_capacity": ("I, env steps/s", SPEED),
    "perf/learner_capacity": ("T, env steps/s", SPEED),
    "perf/flops_per_sec": ("FLOP/s", SPEED),
    "perf/utd": ("utd", AMOUNT),
    "perf/policy_lag": ("policy lag", AMOUNT),
    "perf/sample_age": ("sample age", AMOUNT),
}


class Cell(NamedTuple):
    """A label's value; its change from the baseline, as a fraction of that or (`is_relative` false) as it is."""

    value: float
    change: Interval | None = None
    verdict: str = UNKNOWN
    remark: str = ""  # text in place of a value


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One quantity of all labels."""

    title: str
    cells: tuple[Cell, ...]
    is_relative: bool = True
    is_sum: bool = False  # of rows above it
    is_of_time: bool = False


class ComparedSection(NamedTuple):
    """Rows of one clock or kind."""

    title: str
    rows: list[ComparedRow]


def sections(compared: Sequence[LabelledRuns], reference: float | None) -> list[ComparedSection]:
    """Returns everything that at least one label has recorded. `reference`: the score to reach, None: chosen."""
    rollout = _steady_row(compared, ROLLOUT_KEY, "Rollout", TIME)
    rates = [_steady_row(compared, key, row, words) for key, (row, words) in RATES.items()]
    without_core = [_steady_row(compared, key, side.title(), AMOUNT) for side, key in DESCHEDULED.items()]
    found = [
        ComparedSection(
            "Learner, ms/iteration",
            _phases(compared, LEARNER_KEYS | foreign_rows("learner"), ITERATION, "Iter Wall")
            + _composites(compared, "learner")
            + [row for row in [_work_row(compared)] if row is not None],
        ),
        ComparedSection(
            "Collector, ms/vec step",
            _phases(compared, COLLECTOR_KEYS | foreign_rows("collector"), CYCLE, "Cycle")
            + _composites(compared, "collector")
            + _not_zero([rollout]),
        ),
        ComparedSection("Rates", _not_zero(rates)),
        ComparedSection("Learning", _final_rows(compared) + _reach_rows(compared, reference)),
        ComparedSection("Without a core, % wall", _not_zero(without_core)),
    ]
    busy = contended_labels(compared)
    is_busy = [each.label in busy for each in compared]
    return [ComparedSection(title, [_withheld(row, BUSY, is_busy) for row in rows]) for title, rows in found if rows]


def _withheld(row: ComparedRow, word: str, is_bad: Sequence[bool]) -> ComparedRow:
    """Returns a row of time with `word` in place of the verdicts that rest on a label of which `is_bad` is true."""
    if not row.is_of_time:
        return row
    cells = [
        cell._replace(verdict=word) if cell.verdict and (is_bad[0] or is_bad[index]) else cell
        for index, cell in enumerate(row.cells)
    ]
    return replace(row, cells=tuple(cells))


def foreign_rows(side: str) -> dict[str, str]:
    """Returns the rows, by key, of phases that only other trainers have."""
    return {key: row for key, (of, row) in FOREIGN.items() if of == side}


def composite_rows(side: str) -> dict[str, str]:
    """Returns the rows, by key, of the sums of one side's phases that some trainer recorded as one number."""
    return {key: row for key, (row, parts) in COMPOSITES.items() if parts[0].startswith(f"timing/{side}_")}


def steady_values(labelled: LabelledRuns, key: str) -> list[Values]:
    """Returns what each run recorded of a phase or rate after its warm-up; empty unless all of them did."""
    found = [run.steady(key) for run in labelled.runs]
    if key == ROLLOUT_KEY and not all(values.value.any() for values in found):
        return []  # 0 says that there are no rollouts
    return found if all(len(values.value) and values.weight.sum() > 0.0 for values in found) else []


def mean_of_runs(labelled: LabelledRuns, key: str) -> float:
    """Returns the mean of a phase or rate after the warm-up; NaN unless all runs recorded it."""
    values = steady_values(labelled, key)
    return float(np.mean([run.mean for run in values])) if values else math.nan


def _phases(compared: Sequence[LabelledRuns], keys: dict[str, str], wall_key: str, wall_row: str) -> list[ComparedRow]:
    """Returns the phases of one clock, and its wall."""
    walls = [mean_of_runs(labelled, wall_key) for labelled in compared]
    least = LEAST_OF_WALL * next((wall for wall in walls if not math.isnan(wall)), 0.0)
    rows = _not_zero(_steady_row(compared, key, row, TIME, least) for key, row in keys.items())
    wall = _steady_row(compared, wall_key, wall_row, TIME)
    return rows + ([replace(wall, is_sum=True)] if wall is not None else [])


def _not_zero(found: Iterable[ComparedRow | None]) -> list[ComparedRow]:
    return [row for row in found if row is not None and any(abs(cell.value) >= 5e-4 for cell in row.cells)]


def _steady_row(
    compared: Sequence[LabelledRuns], key: str, title: str, words: Words, least: float = 0.0
) -> ComparedRow | None:
    drawn = _drawn(compared, lambda labelled: steady_values(labelled, key))
    if not any(drawn):
        return None
    row = _row(title, drawn, words, least)
    return _withheld(row, UNLIKE, [is_unlike(compared[0], labelled, key) for labelled in compared])


def is_unlike(one: LabelledRuns, other: LabelledRuns, key: str) -> bool:
    """True if a key holds other work in the runs of one of the two labels than in those of the other."""
    return any(key in run.unlike for run in one.runs) != any(key in run.unlike for run in other.runs)


def _work_row(compared: Sequence[LabelledRuns]) -> ComparedRow | None:
    """Returns env steps per iteration where they differ: the milliseconds are then those of other amounts of work."""
    found: list[float] = []
    for labelled in compared:
        grown = [(run.growth("env_steps"), run.growth("iteration")) for run in labelled.runs]
        ratios = [env_steps / iterations for env_steps, iterations in grown if iterations > 0.0]
        found.append(float(np.mean(ratios)) if ratios else math.nan)
    known = [value for value in found if not math.isnan(value)]
    if not known or max(known) <= (1.0 + LEAST_CHANGE) * min(known):
        return None
    return ComparedRow("env steps/iteration", tuple(map(Cell, found)))


def _composites(compared: Sequence[LabelledRuns], side: str) -> list[ComparedRow]:
    return [row for key in composite_rows(side) if (row := _composite(compared, key)) is not None]


def _composite(compared: Sequence[LabelledRuns], key: str) -> ComparedRow | None:
    """Returns a sum that some trainer recorded as one number, beside the same sum of those that recorded its parts."""
    title, parts = COMPOSITES[key]
    in_its_place = ITERATION if key == PIPELINE_KEY else parts[0]
    runs = [run for labelled in compared for run in labelled.runs]
    if not any(key in run.columns and in_its_place not in run.columns for run in runs):
        return None

    def values_of(labelled: LabelledRuns) -> list[Values]:
        """Returns the recorded sum, else that of the parts, record by record, where all runs have some of them."""
        whole = steady_values(labelled, key)
        found = [[run.steady(part) for part in parts if part in run.columns] for run in labelled.runs]
        if whole or not all(few and len({len(part.value) for part in few}) == 1 for few in found):
            return whole
        return [Values(np.sum([part.value for part in few], axis=0), few[0].weight) for few in found]

    return replace(_row(title, _drawn(compared, values_of), TIME), is_sum=True)


def _final_rows(compared: Sequence[LabelledRuns]) -> list[ComparedRow]:
    """Returns the returns at the end of the common range."""
    if not any(labelled.has_env_steps for labelled in compared):
        return []
    end, rows = common_end(compared), list[ComparedRow]()
    for key, title in RETURNS.items():
        drawn = _drawn(compared, partial(final_values, key=key, end=end))
        least = least_return_change(compared, key, end)
        rows += [_row(f"{title}, end", drawn, RETURN, least, is_relative=False)] if any(drawn) else []
    return rows


def _reach_rows(compared: Sequence[LabelledRuns], reference: float | None) -> list[ComparedRow]:
    """Returns the env steps and seconds to a score: one value per run, so a verdict needs seeds on both sides."""
    key = reach_key(compared) if all(labelled.has_env_steps for labelled in compared) else None
    if key is None:
        return []
    score = reference_score(compared, key) if reference is None else reference
    if math.isnan(score):
        return []
    curves = [[run.curve(key) for run in labelled.runs] for labelled in compared]
    env_steps = [[first_reach(curve.env_steps, curve.value, score) for curve in runs] for runs in curves]
    wall_s = [[first_reach(curve.wall_s, curve.value, score) for curve in runs] for runs in curves]
    return [
        _reach_row(f"env steps to {score:,.4g}", env_steps, STEPS),
        _reach_row(f"wall seconds to {score:,.4g}", wall_s, TIME),
    ]


def _reach_row(title: str, reached: Sequence[Sequence[float]], words: Words) -> ComparedRow:
    drawn: list[Drawn | None] = []
    remarks: list[str] = []
    for index, found in enumerate(reached):
        count = sum(not math.isnan(value) for value in found)
        is_reached, is_baseline = count == len(found), index == 0
        values = [Values(np.array([value]), np.ones(1)) for value in found]
        drawn.append(draw(values, seed=int(is_baseline)) if is_reached else None)
        missed = f"{count} of {len(found)} runs" if len(found) > 1 else "not reached"
        remarks.append("" if is_reached else missed)
    row = _row(title, drawn, words)
    cells = [cell._replace(remark=remark) for cell, remark in zip(row.cells, remarks, strict=True)]
    return replace(row, cells=tuple(cells))


def _drawn(compared: Sequence[LabelledRuns], values_of: Callable[[LabelledRuns], list[Values]]) -> list[Drawn | None]:
    """Returns the mean of each label's runs with its draws; None where they have no values."""
    found = [values_of(labelled) for labelled in compared]
    return [draw(values, seed) if values else None for seed, values in enumerate(found)]


def _row(
    title: str, drawn: Sequence[Drawn | None], words: Words, least: float = 0.0, *, is_relative: bool = True
) -> ComparedRow:
    """Returns a row of changes; relative ones of less than `least` or `LEAST_CHANGE` of the baseline are noise."""
    first = drawn[0]
    cells: list[Cell] = []
    for index, found in enumerate(drawn):
        if found is None:
            cells.append(Cell(math.nan))
        elif first is None or index == 0:
            cells.append(Cell(found.mean))
        elif is_relative:
            difference = difference_interval(found, first)
            verdict = verdict_of(difference, words, max(least, LEAST_CHANGE * abs(first.mean)))
            is_known = first.mean > 0.0 and not math.isnan(
                difference.low
            )  # of positive quantities, which fall by 1 at most
            change = Interval(*(max(-1.0, number / first.mean) for number in difference)) if is_known else None
            cells.append(Cell(found.mean, change, verdict))
        else:
            difference = difference_interval(found, first)
            change = difference if math.isfinite(difference.low) else None
            cells.append(Cell(found.mean, change, verdict_of(difference, words, least)))
    return ComparedRow(title, tuple(cells), is_relative, is_of_time=words.is_of_time)


def verdict_of(difference: Interval, words: Words, least: float) -> str:
    """Returns noise where the interval holds 0 or the difference is below `least`; nothing without an interval."""
    if not math.isfinite(difference.low + difference.high):
        return UNKNOWN
    if difference.low <= 0.0 <= difference.high or abs(difference.value) < least:
        return NOISE
    return words.less if difference.value < 0.0 else words.more
