"""Returns at the end of what all labels have done, and when each reached a score."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from offpolicy.analysis.groups import Group
from offpolicy.analysis.resampling import Values, difference_interval, draw
from offpolicy.analysis.runs import RunRecords
from offpolicy.analysis.verdicts import LEAST_CHANGE, RETURN, TIME, Cell, Row, drawn_of, relative, verdict_of
from offpolicy.types import Float64

RETURNS = {"eval/mean_reward": "eval return", "rollout/ep_rew_mean": "training return"}
EPISODES, EPISODE_MEANS, EPISODES_OF_A_MEAN = "rollout/episodes", ("rollout/ep_rew_mean",), 100
AT_THE_END = 0.25  # of the common range: what a final return is the mean over
WAY = 0.9  # from where the curves begin to where all of them get: the reference score, if none is given


def learning_rows(groups: Sequence[Group], reference: float | None) -> list[Row]:
    """Returns at the end of the common range, and when each group reached the reference score."""
    rows = [_final_row(groups, key, title) for key, title in RETURNS.items()]
    return [row for row in rows if row is not None] + _reach_rows(groups, reference)


def common_end(groups: Sequence[Group]) -> float:
    """The env steps that every group has got to: curves are compared up to there."""
    return min(group.last_env_steps for group in groups if group.has_env_steps)


def _final_row(groups: Sequence[Group], key: str, title: str) -> Row | None:
    with_curves = [group for group in groups if group.has_env_steps]
    if not with_curves:
        return None
    end = common_end(groups)
    drawn = [drawn_of(_final_values(group, key, end), index) for index, group in enumerate(groups)]
    if not any(drawn):
        return None
    first = drawn[0]
    cells: list[Cell] = []
    for index, found in enumerate(drawn):
        if found is None or first is None or index == 0:
            cells.append(Cell(found.mean if found else math.nan))
        else:
            difference = difference_interval(found, first)
            known = difference if math.isfinite(difference.low) else None
            cells.append(Cell(found.mean, known, verdict_of(difference, RETURN, 0.0)))  # their zero is arbitrary
    return Row(f"{title}, end", tuple(cells), is_relative=False)


def _final_values(group: Group, key: str, end: float) -> list[Values]:
    """Of each run, the values of the last part of the range up to `end`; empty unless every run has some."""
    if not group.has_env_steps:
        return []
    found = [run.curve(key) for run in group.runs]
    last = [(s.env_steps > (1.0 - AT_THE_END) * end) & (s.env_steps <= end) for s in found]
    values = [_independent(run, key, np.flatnonzero(rows)) for run, rows in zip(group.runs, last, strict=True)]
    return values if all(len(value.value) for value in values) else []


def _independent(run: RunRecords, key: str, rows: NDArray[np.int64]) -> Values:
    """What a curve holds in `rows`: of means over 100 episodes those, from the last one back, that share none.

    Where episodes are not counted, the mean of those means alone: nothing is known of its spread.
    """
    found, episodes = run.curve(key).value, run.beside_curve(key, EPISODES)
    chosen = found[rows]
    if key in EPISODE_MEANS and len(rows) and np.isfinite(episodes[rows]).all():
        kept: list[int] = []
        for row in rows[::-1]:
            if not kept or episodes[kept[-1]] - episodes[row] >= EPISODES_OF_A_MEAN:
                kept.append(int(row))
        chosen = found[kept[::-1]]
    elif key in EPISODE_MEANS and len(rows):
        chosen = np.array([chosen.mean()])
    return Values(chosen, np.ones(len(chosen)))


def reach_key(groups: Sequence[Group]) -> str | None:
    """The curve that tells when a score was reached: evaluations where every run has some of them, else training."""
    for key, least in (("eval/mean_reward", 3), ("rollout/ep_rew_mean", 2)):
        if all(len(run.curve(key).value) >= least for group in groups for run in group.runs):
            return key
    return None


def reference_score(groups: Sequence[Group], key: str) -> float:
    """Nine tenths of the way from where the best curve begins to where all groups get.

    NaN if a group has no value yet, or gets no further than another begins: then no score is reached by all.
    """
    end = common_end(groups)
    curves = [[y[x <= end] for x, y in group.curves(key)] for group in groups]
    if any(not len(y) for group in curves for y in group):
        return math.nan
    begin = max(float(y[0]) for group in curves for y in group)
    got = min(float(np.mean([y.max() for y in group])) for group in curves)
    return begin + WAY * (got - begin) if got > begin else math.nan


def _reach_rows(groups: Sequence[Group], reference: float | None) -> list[Row]:
    key = reach_key(groups) if all(group.has_env_steps for group in groups) else None
    if key is None:
        return []
    score = reference_score(groups, key) if reference is None else reference
    if math.isnan(score):
        return []
    text = f"{score:,.4g}"
    axes: dict[str, Callable[[RunRecords], Float64]] = {
        "env steps": lambda run: run.curve(key).env_steps,
        "wall seconds": lambda run: run.curve(key).wall_s,
    }
    return [_reach_row(groups, key, score, f"{name} to {text}", axis) for name, axis in axes.items()]


def _reach_row(
    groups: Sequence[Group], key: str, score: float, title: str, axis: Callable[[RunRecords], Float64]
) -> Row:
    """One value per run, so a verdict needs seeds on both sides."""
    reached = [[first_reach(axis(run), run.curve(key).value, score) for run in group.runs] for group in groups]
    first = reached[0]
    cells: list[Cell] = []
    for index, found in enumerate(reached):
        if any(map(math.isnan, found)):
            count = sum(not math.isnan(value) for value in found)
            cells.append(Cell(math.nan, remark=f"{count} of {len(found)} runs" if len(found) > 1 else "not reached"))
        elif index == 0 or any(map(math.isnan, first)) or min(len(found), len(first)) < 2:
            cells.append(Cell(float(np.mean(found))))
        else:
            own, others = (
                draw([_single(value) for value in values], seed) for seed, values in enumerate((found, first))
            )
            difference = difference_interval(own, others)
            verdict = verdict_of(difference, TIME, LEAST_CHANGE * others.mean)
            cells.append(Cell(own.mean, relative(difference, others.mean), verdict))
    return Row(title, tuple(cells))


def _single(value: float) -> Values:
    return Values(np.array([value]), np.ones(1))


def first_reach(axis: Float64, values: Float64, score: float) -> float:
    """Where a curve first gets to `score`, between its points in a straight line; NaN if never. [n], [n]."""
    above = np.flatnonzero(values >= score)
    if not len(above):
        return math.nan
    index = int(above[0])
    if index == 0:
        return float(axis[0])
    share = (score - values[index - 1]) / (values[index] - values[index - 1])
    return float(axis[index - 1] + share * (axis[index] - axis[index - 1]))
