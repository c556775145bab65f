"""The evaluations of a run so far, a line of `evaluations.jsonl` each, and whether they end the run early.

No torch: the supervisor reads the file too, to see if a run is complete, and a sweep, to compare its trials.
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from offpolicy.config.sections import StopConfig
from offpolicy.output import counted, return_text
from offpolicy.runs import read_lines
from offpolicy.types import EvalResult

EVALUATIONS_FILE = "evaluations.jsonl"


def read_results(run: Path) -> list[EvalResult]:
    """Returns the evaluations of a run in order; none where there is no file. Lines that are torn are left out."""
    results = list[EvalResult]()
    for record in read_lines(run / EVALUATIONS_FILE):
        with contextlib.suppress(TypeError):
            results = with_result(results, EvalResult(**record))
    return results


def with_result(results: Sequence[EvalResult], result: EvalResult) -> list[EvalResult]:
    """Returns the results with one more, which replaces those of its env step and later: a restart repeats those."""
    num_kept = bisect_left(results, result.env_steps, key=lambda before: before.env_steps)
    return [*results[:num_kept], result]


def stop_reason(results: Sequence[EvalResult], stop: StopConfig) -> str | None:
    """Returns why a run with these evaluations ends early; None if it goes on."""
    if not results:
        return None
    last = results[-1]
    at = f"the evaluation at env step {last.env_steps:,}"
    if stop.reward is not None and last.mean_reward >= stop.reward:
        reached = return_text(last.mean_reward, ",")
        return f"stopped early: mean return {reached} in {at}, at least stop.reward={stop.reward:g}"
    best = best_of(results)
    since = sum(result.env_steps > best.env_steps for result in results)
    if stop.patience and since >= stop.patience:
        many = f"{counted(since, 'evaluation')} in a row"
        found = f"{return_text(best.mean_reward, ',')} at env step {best.env_steps:,}"
        return f"stopped early: {many} without a better mean return than {found} (stop.patience={stop.patience})"
    return None


def best_of(results: Sequence[EvalResult]) -> EvalResult:
    """Returns the best of the evaluations, of equal ones the first; NaN is the worst."""
    return max(results, key=lambda result: -math.inf if math.isnan(result.mean_reward) else result.mean_reward)
