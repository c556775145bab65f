"""The evaluations of a run so far, a line of `evaluations.jsonl` each, and whether they end the run early.

No torch: the supervisor reads the file too, to see if a run is complete, and a sweep, to compare its trials.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from offpolicy.config.sections import StopConfig
from offpolicy.output import counted, return_text
from offpolicy.runs import read_lines
from offpolicy.types import EvalResult

EVALUATIONS_FILE = "evaluations.jsonl"


class Score(NamedTuple):
    """The result of one evaluation."""

    env_steps: int
    mean_reward: float


def read_scores(run: Path) -> list[Score]:
    """Returns the evaluations of a run in order; none where there is no file. Lines that are torn are left out."""
    scores = list[Score]()
    for record in read_lines(run / EVALUATIONS_FILE):
        try:
            score = Score(int(record["env_steps"]), float(record["mean_reward"]))
        except (ValueError, KeyError, TypeError, OverflowError):
            continue
        scores = with_score(scores, score)
    return scores


def last_result(run: Path, kept_step: int) -> EvalResult | None:
    """Returns the last evaluation of a run up to the env step `kept_step`; None where there is none."""
    last: EvalResult | None = None
    for record in read_lines(run / EVALUATIONS_FILE):
        try:
            result = EvalResult(**record)
            last = result if result.env_steps <= kept_step else last
        except TypeError:
            continue
    return last


def with_score(scores: Sequence[Score], score: Score) -> list[Score]:
    """Returns the scores with one more, which replaces those of its env step and later: a restart repeats those."""
    num_kept = bisect_left(scores, score.env_steps, key=lambda before: before.env_steps)
    return [*scores[:num_kept], score]


def stop_reason(scores: Sequence[Score], stop: StopConfig) -> str | None:
    """Returns why a run with these evaluations ends early; None if it goes on."""
    if not scores:
        return None
    last = scores[-1]
    at = f"the evaluation at env step {last.env_steps:,}"
    if stop.reward is not None and last.mean_reward >= stop.reward:
        reached = return_text(last.mean_reward, ",")
        return f"stopped early: mean return {reached} in {at}, at least stop.reward={stop.reward:g}"
    best = best_of(scores)
    since = sum(score.env_steps > best.env_steps for score in scores)
    if stop.patience and since >= stop.patience:
        many = f"{counted(since, 'evaluation')} in a row"
        found = f"{return_text(best.mean_reward, ',')} at env step {best.env_steps:,}"
        return f"stopped early: {many} without a better mean return than {found} (stop.patience={stop.patience})"
    return None


def best_of(scores: Sequence[Score]) -> Score:
    """Returns the best of the evaluations, of equal ones the first; NaN is the worst."""
    return max(scores, key=lambda score: -math.inf if math.isnan(score.mean_reward) else score.mean_reward)
