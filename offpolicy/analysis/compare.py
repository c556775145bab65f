"""Phases, rates and learning of labelled runs side by side, each with its change and verdict against the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from offpolicy.analysis.bootstrap import Interval, Values, difference_interval, draw
from offpolicy.analysis.learning_curves import (
    RETURNS,
    common_end,
    final_values,
    first_reach,
    least_return_change,
    reach_key,
    reference_score,
)
from offpolicy.analysis.runs import DESCHEDULED, LabelledRuns
from offpolicy.logger.metrics import (
    COLLECTOR_ROWS,
    COMPOSITES,
    FOREIGN,
    LEARNER_ROWS,
    PIPELINE_KEY,
    ROLLOUT_KEY,
)

LEAST_CHANGE = 0.02  # fraction of a phase or rate: a smaller change does not matter
LEAST_OF_WALL = 0.005  # fraction of the wall: a phase that changed by less does not matter
LEAST_SHOWN = 5e-4  # what is smaller in all labels rounds to zero: the row is left out
ITERATION = "perf/iter_ms"
NOISE, UNKNOWN = "noise", ""
# No verdict: the cores were shared; the keys hold different work.
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

    def without_verdict(self, word: str, is_bad: Sequence[bool]) -> ComparedRow:
        """Returns the row with `word` in place of verdicts on time that rest on a label of which `is_bad` is true."""
        if not self.is_of_time:
            return self
        cells = (
            cell._replace(verdict=word) if cell.verdict and (is_bad[0] or bad) else cell
            for cell, bad in zip(self.cells, is_bad, strict=True)
        )
        return replace(self, cells=tuple(cells))


class ComparedSection(NamedTuple):
    """Rows of one clock or kind."""

    title: str
    rows: list[ComparedRow]


def sections(compared: Sequence[LabelledRuns], reference: float | None) -> list[ComparedSection]:
    """Returns everything that at least one label has recorded. `reference`: the score to reach, None: chosen."""
    learner = _phases(compared, "learner", ITERATION, "Iter Wall") + _work_rows(compared)
    collector = _phases(compared, "collector", "perf/collector_cycle_ms", "Cycle")
    collector += _steady_rows(compared, {ROLLOUT_KEY: ("Rollout", TIME)})
    without_core = {key: (side.title(), AMOUNT) for side, key in DESCHEDULED.items()}
    found = {
        "Learner, ms/iteration": learner,
        "Collector, ms/vec step": collector,
        "Rates": _steady_rows(compared, RATES),
        "Learning": _final_rows(compared) + _reach_rows(compared, reference),
        "Without a core, % wall": _steady_rows(compared, without_core),
    }
    is_busy = [labelled.is_contended for labelled in compared]
    return [
        ComparedSection(title, [row.without_verdict(BUSY, is_busy) for row in rows])
        for title, rows in found.items()
        if rows
    ]


def phase_rows(side: str) -> dict[str, str]:
    """Returns the rows, by key, of one side's phases: ours, and those that only other trainers have."""
    ours = LEARNER_ROWS if side == "learner" else COLLECTOR_ROWS
    rows = {f"timing/{side}_{phase}_ms": row for phase, row in ours.items()}
    return rows | {key: row for key, (of, row) in FOREIGN.items() if of == side}


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


def _phases(compared: Sequence[LabelledRuns], side: str, wall_key: str, wall_row: str) -> list[ComparedRow]:
    """Returns the phases of one clock, its wall, and the sums that some label recorded in place of phases."""
    sums = _steady_rows(compared, {wall_key: (wall_row, TIME)}, shown_from=0.0)
    walls = [cell.value for row in sums for cell in row.cells if not math.isnan(cell.value)]
    least = LEAST_OF_WALL * walls[0] if walls else 0.0
    rows = _steady_rows(compared, {key: (row, TIME) for key, row in phase_rows(side).items()}, least)
    runs = [run for labelled in compared for run in labelled.runs]
    for key, title in composite_rows(side).items():
        parts = COMPOSITES[key][1]
        in_its_place = ITERATION if key == PIPELINE_KEY else parts[0]
        if any(key in run.columns and in_its_place not in run.columns for run in runs):
            sums.append(compared_row(title, [_sum_values(labelled, key, parts) for labelled in compared], TIME))
    return rows + [replace(row, is_sum=True) for row in sums]


def _steady_rows(
    compared: Sequence[LabelledRuns],
    quantities: Mapping[str, tuple[str, Words]],
    least: float = 0.0,
    shown_from: float = LEAST_SHOWN,
) -> list[ComparedRow]:
    """Returns the rows of phases or rates by key, without those that are less than `shown_from` in all labels."""
    rows = []
    for key, (title, words) in quantities.items():
        row = compared_row(title, [steady_values(labelled, key) for labelled in compared], words, least)
        if any(abs(cell.value) >= shown_from for cell in row.cells):
            rows.append(row.without_verdict(UNLIKE, [is_unlike(compared[0], other, key) for other in compared]))
    return rows


def is_unlike(one: LabelledRuns, other: LabelledRuns, key: str) -> bool:
    """True if a key holds other work in the runs of one of the two labels than in those of the other."""
    return any(key in run.unlike for run in one.runs) != any(key in run.unlike for run in other.runs)


def _work_rows(compared: Sequence[LabelledRuns]) -> list[ComparedRow]:
    """Returns env steps per iteration where they differ: the milliseconds are then those of other amounts of work."""
    found: list[float] = []
    for labelled in compared:
        grown = [(run.growth("env_steps"), run.growth("iteration")) for run in labelled.runs]
        ratios = [env_steps / iterations for env_steps, iterations in grown if iterations > 0.0]
        found.append(float(np.mean(ratios)) if ratios else math.nan)
    known = [value for value in found if not math.isnan(value)]
    if not known or max(known) <= (1.0 + LEAST_CHANGE) * min(known):
        return []
    return [ComparedRow("env steps/iteration", tuple(map(Cell, found)))]


def _sum_values(labelled: LabelledRuns, key: str, parts: Sequence[str]) -> list[Values]:
    """Returns the recorded sum, else that of its parts, record by record, where all runs have some of them."""
    whole = steady_values(labelled, key)
    found = [[run.steady(part) for part in parts if part in run.columns] for run in labelled.runs]
    if whole or not all(few and len({len(part.value) for part in few}) == 1 for few in found):
        return whole
    return [Values(np.sum([part.value for part in few], axis=0), few[0].weight) for few in found]


def _final_rows(compared: Sequence[LabelledRuns]) -> list[ComparedRow]:
    """Returns the returns at the end of the common range."""
    end, rows = common_end(compared), []
    for key, title in RETURNS.items():
        found, least = [final_values(each, key, end) for each in compared], least_return_change(compared, key, end)
        if any(found):
            rows.append(compared_row(f"{title}, end", found, RETURN, least, is_relative=False))
    return rows


def _reach_rows(compared: Sequence[LabelledRuns], reference: float | None) -> list[ComparedRow]:
    """Returns the env steps and seconds to a score: one value per run, so a verdict needs seeds on both sides.

    Of a label some of whose runs never reach it, how many do.
    """
    key = reach_key(compared) if all(labelled.has_env_steps for labelled in compared) else None
    if key is None or math.isnan(score := reference_score(compared, key) if reference is None else reference):
        return []
    curves = [[run.curve(key) for run in labelled.runs] for labelled in compared]
    rows = []
    for title, axis, words in (("env steps", "env_steps", STEPS), ("wall seconds", "wall_s", TIME)):
        places = [[first_reach(getattr(curve, axis), curve.value, score) for curve in runs] for runs in curves]
        remarks = [
            ""
            if (reached := int(np.isfinite(runs).sum())) == len(runs)
            else f"{reached} of {len(runs)} runs"
            if len(runs) > 1
            else "not reached"
            for runs in places
        ]
        found = [
            [] if remark else [Values(np.array([place]), np.ones(1)) for place in runs]
            for remark, runs in zip(remarks, places, strict=True)
        ]
        row = compared_row(f"{title} to {score:,.4g}", found, words)
        cells = (cell._replace(remark=remark) for cell, remark in zip(row.cells, remarks, strict=True))
        rows.append(replace(row, cells=tuple(cells)))
    return rows


def compared_row(
    title: str, found: Sequence[list[Values]], words: Words, least: float = 0.0, *, is_relative: bool = True
) -> ComparedRow:
    """Returns the means of each label and their changes; NaN where a label has no values.

    A change of less than `least`, or a relative one of less than `LEAST_CHANGE` of the baseline, is noise.
    """
    first, *others = [draw(values, seed) if values else None for seed, values in enumerate(found)]
    cells = [Cell(math.nan if first is None else first.mean)]
    for drawn in others:
        if first is None or drawn is None:
            cells.append(Cell(math.nan if drawn is None else drawn.mean))
            continue
        difference = difference_interval(drawn, first)
        change = difference if math.isfinite(difference.low) else None
        if is_relative:
            least = max(least, LEAST_CHANGE * abs(first.mean))
            # Of positive quantities, which fall by 1 at most.
            is_known = change is not None and first.mean > 0.0
            change = Interval(*(max(-1.0, part / first.mean) for part in difference)) if is_known else None
        verdict = UNKNOWN  # without an interval
        if math.isfinite(difference.low):
            is_noise = difference.low <= 0.0 <= difference.high or abs(difference.value) < least
            verdict = NOISE if is_noise else words.less if difference.value < 0.0 else words.more
        cells.append(Cell(drawn.mean, change, verdict))
    return ComparedRow(title, tuple(cells), is_relative, is_of_time=words.is_of_time)
