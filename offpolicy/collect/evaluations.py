"""The evaluations of a run so far: a line of `evaluations.jsonl` each, the best policy, and whether to stop early.

They belong to the process that evaluates. No torch: the supervisor reads the file too, to see if a run is complete,
and a sweep, to compare its trials.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from offpolicy.checkpoint import BestStore
from offpolicy.checkpoint.formats import Array
from offpolicy.config.sections import StopConfig
from offpolicy.errors import SaveError
from offpolicy.files import JsonlFile
from offpolicy.number_text import counted, return_text
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


class Evaluations:
    """Writes down each evaluation, keeps the policy of the best one, and says when the run is to stop."""

    def __init__(self, run: Path, kept_step: int, stop: StopConfig, warn: Callable[[str], None]) -> None:
        """`kept_step`: env steps up to which evaluations stay recorded: later ones are made again."""
        self._stop, self._warn, self._best = stop, warn, BestStore(run)
        self._path, self._kept_step, self._has_warned = run / EVALUATIONS_FILE, kept_step, False
        self._file: JsonlFile | None = None
        self._write([])
        self._scores, self._best_reward, self._has_failed = read_scores(run), self._best.mean_reward(), False

    @property
    def stop_reason(self) -> str | None:
        """Why the run is to stop early; None if it goes on."""
        return stop_reason(self._scores, self._stop)

    def add(self, result: EvalResult, tensors: Mapping[str, Array]) -> None:
        """Adds an evaluation of the policy with these tensors. A disk that refuses costs a warning, not the run.

        One whose mean return is not finite counts for nothing: the file cannot hold it, so a resume would not know it.
        """
        if not math.isfinite(result.mean_reward):
            return
        self._scores = with_score(self._scores, Score(result.env_steps, result.mean_reward))
        self._write([result._asdict()])
        if self._best_reward is None or result.mean_reward > self._best_reward:
            self._save(result, tensors)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()

    def _write(self, records: Sequence[Mapping[str, float]]) -> None:
        """Appends records to the file, which is opened first: that moves those that are made again."""
        try:
            self._file = self._file or JsonlFile(self._path, self._kept_step)
            for record in records:
                self._file.append(record)
        except OSError as error:
            if not self._has_warned:
                self._warn(f"{self._path.name} cannot be written: {error}; its lines are dropped while that is so")
            self._has_warned = True

    def _save(self, result: EvalResult, tensors: Mapping[str, Array]) -> None:
        try:
            self._best.save(tensors, result)
            self._best_reward, self._has_failed = result.mean_reward, False
        except SaveError as error:
            if not self._has_failed:
                self._warn(f"the best policy so far, of env step {result.env_steps:,}, is not saved: {error}")
            self._has_failed = True
