"""Learning curves: the returns at the end of the range that all labels have, and where each run reached a score."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from offpolicy.analysis.bootstrap import Values
from offpolicy.analysis.runs import LabelledRuns
from offpolicy.types import Float64

EVAL, TRAINING = "eval/mean_reward", "rollout/ep_rew_mean"
RETURNS = {EVAL: "eval return", TRAINING: "training return"}
EPISODES_OF_A_MEAN = 100  # the training return is a mean over so many episodes
FINAL_FRACTION = 0.25  # fraction of the common range that a final return is the mean over
LEAST_OF_RANGE = 0.005  # fraction of what the compared curves span: a smaller change of a return does not matter
LEAST_SHOWN = 0.001  # fraction of a return: a smaller change is not in the digits that are shown
REFERENCE_FRACTION = 0.9  # fraction of the way from where the curves begin to where all of them get


def common_end(compared: Sequence[LabelledRuns]) -> float:
    """Returns the env steps that every label has reached: curves are compared up to there."""
    return min((labelled.last_env_steps for labelled in compared if labelled.has_env_steps), default=0.0)


def final_values(labelled: LabelledRuns, key: str, end: float) -> list[Values]:
    """Returns of each run the values of the last part of the range up to `end`; empty unless every run has some.

    Of means over episodes that are not counted, their mean alone: nothing is known of its spread.
    """
    if not labelled.has_env_steps:
        return []
    found: list[Values] = []
    for run in labelled.runs:
        curve = run.curve(key)
        is_final = (curve.env_steps > (1.0 - FINAL_FRACTION) * end) & (curve.env_steps <= end)
        values, episodes = curve.value[is_final], curve.episodes[is_final]
        if key == TRAINING and len(values):
            values = _independent(values, episodes) if np.isfinite(episodes).all() else values.mean(keepdims=True)
        found.append(Values(values, np.ones(len(values))))
    return found if all(len(values.value) for values in found) else []


def least_return_change(compared: Sequence[LabelledRuns], key: str, end: float) -> float:
    """Returns the change of a final return below which it is noise.

    The zero of returns is arbitrary, so it is a part of what the curves up to `end` span, rather than of a return.
    """
    known = [labelled for labelled in compared if labelled.has_env_steps]
    values = np.concatenate([y[x <= end] for labelled in known for x, y in labelled.curves(key)] or [np.zeros(0)])
    if not len(values):
        return 0.0
    return float(max(LEAST_OF_RANGE * np.ptp(values), LEAST_SHOWN * np.abs(values).min()))


def _independent(values: Float64, episodes: Float64) -> Float64:
    """Returns, of means over 100 episodes, disjoint ones from the last one back. [n], [n] -> [m]."""
    kept = [len(values) - 1]
    for row in range(len(values) - 2, -1, -1):
        apart = episodes[kept[-1]] - episodes[row]
        if apart >= EPISODES_OF_A_MEAN or apart < 0.0:  # a start of the run counts, and averages, from its own on
            kept.append(row)
    return values[kept[::-1]]


def reach_key(compared: Sequence[LabelledRuns]) -> str | None:
    """Returns the curve by which a score is reached: evaluations where every run has some of them, else training."""
    for key, least in ((EVAL, 3), (TRAINING, 2)):
        if all(len(run.curve(key).value) >= least for labelled in compared for run in labelled.runs):
            return key
    return None


def reference_score(compared: Sequence[LabelledRuns], key: str) -> float:
    """Returns nine tenths of the way from where the best curve begins to where all labels get.

    NaN if a label has no value yet, or gets no further than another begins: then no score is reached by all.
    """
    end = common_end(compared)
    curves = [[y[x <= end] for x, y in labelled.curves(key)] for labelled in compared]
    if any(not len(y) for runs in curves for y in runs):
        return math.nan
    begin = max(float(y[0]) for runs in curves for y in runs)
    got = min(float(np.mean([y.max() for y in runs])) for runs in curves)
    return begin + REFERENCE_FRACTION * (got - begin) if got > begin else math.nan


def first_reach(axis: Float64, values: Float64, score: float) -> float:
    """Returns where a curve first gets to `score`, on straight lines between its points; NaN if never. [n], [n]."""
    above = np.flatnonzero(values >= score)
    if not len(above):
        return math.nan
    last = int(above[0])
    points = slice(max(0, last - 1), last + 1)
    return float(np.interp(score, values[points], axis[points]))
