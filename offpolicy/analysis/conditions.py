"""`compare --fail-on 'perf/steps_per_sec<-5%'`: conditions on the changes of a comparison, for CI.

A condition holds where the whole 95 % interval of a change is beyond its bound: a mean beyond it may be chance. Where
the change cannot be judged, it is refused rather than passed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from offpolicy.analysis.bootstrap import LEVEL
from offpolicy.analysis.compare import AMOUNT, compared_row, is_unlike, steady_values
from offpolicy.analysis.learning_curves import RETURNS, common_end, final_values
from offpolicy.analysis.report import quantity
from offpolicy.analysis.runs import MAX_DESCHEDULED, LabelledRuns
from offpolicy.errors import ConfigError
from offpolicy.logger.metrics import METRICS, MetricClass

GRAMMAR = "KEY<CHANGE or KEY>CHANGE, such as 'perf/steps_per_sec<-5%' or 'eval/mean_reward<-10'"
CONDITION = re.compile(r"\s*([\w./-]+?)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*(%?)\s*")
JUDGED = (MetricClass.EXCLUSIVE, MetricClass.NESTED, MetricClass.BACKGROUND, MetricClass.RATE)
COUNTS = ("updates/env step", "versions", "env steps")  # units of rates that no core can change


@dataclass(frozen=True, slots=True)
class Condition:
    """A change of `key` beyond `bound`; of a fraction of the baseline where `is_relative`."""

    text: str
    key: str
    is_below: bool
    bound: float
    is_relative: bool


class Answer(StrEnum):
    """The answer to a condition."""

    PASSED = "passed"
    FAILED = "failed"
    REFUSED = "not judged"


class ConditionResult(NamedTuple):
    """The answer to a condition for one label, and its numbers or the reason why there is none."""

    condition: Condition
    answer: Answer
    reason: str

    @property
    def line(self) -> str:
        """One line for the terminal."""
        return f"{self.answer}: {self.condition.text}: {self.reason}"


def parse_conditions(texts: Sequence[str]) -> list[Condition]:
    """Returns the conditions of `--fail-on`. Raises `ConfigError` with all problems at once."""
    problems: list[str] = []
    conditions: list[Condition] = []
    for text in texts:
        match = CONDITION.fullmatch(text)
        key, sign, number, percent = match.groups() if match else ("", "", "0", "")
        metric, allowed = METRICS.get(key), ""
        if not match:
            allowed = GRAMMAR
        elif metric is None:
            allowed = "a key of a record before < or >"
        elif key in RETURNS and percent:
            allowed = f"a change without %, such as {key}{sign}{number}: the zero of returns is arbitrary"
        elif key not in RETURNS and (metric.kind not in JUDGED or metric.unit == "text"):
            allowed = f"a phase, a rate or one of {', '.join(RETURNS)}"
        if allowed:
            problems.append(f"--fail-on: got {text!r}, allowed {allowed}")
        bound = float(number) / (100.0 if percent else 1.0)
        conditions.append(Condition(text.strip(), key, sign == "<", bound, is_relative=bool(percent)))
    if problems:
        raise ConfigError(problems)
    return conditions


def check_conditions(conditions: Sequence[Condition], compared: Sequence[LabelledRuns]) -> list[ConditionResult]:
    """Returns the answer to each condition for each label but the baseline."""
    return [_checked(condition, compared, index) for condition in conditions for index in range(1, len(compared))]


def _checked(condition: Condition, compared: Sequence[LabelledRuns], index: int) -> ConditionResult:
    key, first, other = condition.key, compared[0], compared[index]
    is_return = key in RETURNS
    end = common_end(compared)
    found = [final_values(each, key, end) if is_return else steady_values(each, key) for each in (first, other)]
    baseline, cell = compared_row(key, found, AMOUNT, is_relative=condition.is_relative).cells
    is_of_time = not is_return and METRICS[key].unit not in COUNTS
    busy = [f"{each.label} ({each.descheduled_text})" for each in (first, other) if each.is_contended and is_of_time]
    refusal = ""
    if math.isnan(baseline.value + cell.value):
        refusal = f"{(first if math.isnan(baseline.value) else other).label} has not recorded it"
    elif is_unlike(first, other, key):
        refusal = f"{key} holds other work in one of {first.label}, {other.label}"
    elif busy:
        refusal = f"more than {MAX_DESCHEDULED:.0%} of the wall without a core: {', '.join(busy)}"
    elif condition.is_relative and baseline.value <= 0.0:
        refusal = f"{first.label} has {baseline.value:g}: no % of it; write no %"
    elif cell.change is None:
        refusal = f"a side has a single value, which has no {LEVEL:.0%} interval; give seeds: label=RUN label=RUN"
    if refusal or cell.change is None:
        return ConditionResult(condition, Answer.REFUSED, refusal)
    value, low, high = (f"{part:+.1%}" if condition.is_relative else f"{part:+,.4g}" for part in cell.change)
    means = f"{other.label} {quantity(cell.value)} against {first.label} {quantity(baseline.value)}"
    bound, change = condition.bound, cell.change
    is_beyond = change.high < bound if condition.is_below else change.low > bound
    return ConditionResult(
        condition, Answer.FAILED if is_beyond else Answer.PASSED, f"{means}, {value} [{low}, {high}]"
    )
