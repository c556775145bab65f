"""The search of `offpolicy tune`: the order in which settings of a run are tried, and which of them to keep.

The model of the fastest trial so far predicts the next one, at best. The most promising change is tried first; one that
cannot matter is not tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from offpolicy.analysis.tuning import WORTHWHILE, Measured, Move, TrialFailed, Values
from offpolicy.timing.bottleneck import Bottleneck
from offpolicy.timing.phases import CollectorPhase

EVALUATION_S = 2.0  # seconds between two evaluations in a trial of their placement
REPEATED = 2  # trials at the end: start and result once more
OTHER_PLACE = {"true": "false", "false": "true"}
NO_TIME = "no time left"  # why something was not tried


@dataclass(frozen=True, slots=True)
class Row:
    """A trial: what was changed, predicted and measured."""

    change: str
    predicted: float | None
    measured: Measured | None
    verdict: str


@dataclass(slots=True)
class Tuning:
    """The rows so far, the values to write, and the reasons why something was not tried."""

    rows: list[Row] = field(default_factory=list)
    values: dict[str, str | int] = field(default_factory=dict)
    not_tried: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """The evaluations of a run while it trains, for the choice of their place."""

    beside: str  # as `eval.beside` is decided without a choice
    every: int
    episodes: int


def predicted_steps_per_sec(measured: Measured, move: Move) -> float | None:
    """Returns env steps per second after a change, at best; None where the model knows nothing about it."""
    run = measured.run
    if run is None or (move.what_if and move.what_if not in run.what_ifs):
        return None
    if not move.what_if and move.factors is None:
        return None
    then = run.what_ifs[move.what_if] if move.what_if else run.pipeline.scaled(move.factors or {})
    return measured.rate * run.predicted(then) / run.between_pauses


def evaluation_share(measured: Measured, plan: EvaluationPlan) -> float | None:
    """Returns the share of the time that rank 0 would spend on evaluations, at most; None where it is not known."""
    if measured.run is None or measured.episode_steps is None:
        return None
    costs = measured.run.pipeline.collector_s
    step_s = costs[CollectorPhase.ENV_STEP] + costs[CollectorPhase.ACTION_SELECT]
    evaluation_s = plan.episodes * measured.episode_steps * step_s
    return evaluation_s / (evaluation_s + plan.every / measured.rate)


class Search:
    """Tries one change after the other from the best setting so far, and keeps those that are faster."""

    def __init__(  # noqa: PLR0913  # the parts of the world that a test replaces, and the limit
        self,
        start: Values,
        run_trial: Callable[[Values, int], Measured],
        moves_from: Callable[[Values], list[Move]],
        elapsed_s: Callable[[], float],
        budget_s: float,
        evaluations: EvaluationPlan | None = None,
        predict: Callable[[Measured, Move], float | None] = predicted_steps_per_sec,
        report: Callable[[Row], None] = lambda row: None,
    ) -> None:
        """`run_trial` takes values and the env steps between evaluations, 0 for none; `start`: the values of the start.

        `moves_from` returns the changes from given values. `evaluations` is None where their place is not to be chosen.
        """
        self._start, self._evaluations = start, evaluations
        self._run_trial, self._moves_from, self._predict = run_trial, moves_from, predict
        self._elapsed_s, self._budget_s, self._report = elapsed_s, budget_s, report
        self._longest_s = 0.0
        self._tried: set[frozenset[tuple[str, str | int]]] = set()
        self.result = Tuning()

    def run(self) -> Tuning:
        """Searches until no change is left or the time is over. Raises `TrialFailed` if the start itself fails."""
        best = self._measure({})
        self._add(Row("(start)", None, best, "start"))
        while (found := self._next(best)) is not None:
            move, predicted = found
            values = self._after(move)
            measured = self._try(values, move.text, predicted, best)
            if measured is not None and measured.is_faster(best):
                best, self.result.values = measured, values
        if self._is_evaluation_worth_it(best):
            self._place_evaluation(best)
        if self.result.values.keys() - {"eval.beside"}:
            self._repeat()
        return self.result

    def _next(self, best: Measured) -> tuple[Move, float | None] | None:
        """Returns the most promising change that was not tried, those without a prediction last; None: none is left."""
        left: list[tuple[Move, float | None]] = []
        for move in self._moves_from(self.result.values):
            if frozenset(self._after(move).items()) in self._tried:
                continue
            predicted = self._predict(best, move)
            if predicted is not None and predicted < WORTHWHILE * best.rate:
                gain = round(predicted / best.rate - 1.0, 2) + 0.0  # no -0 %
                self.result.not_tried[move.text] = f"{gain:+.0%} at best: {_bounding_side(best)}"
            else:
                self.result.not_tried.pop(move.text, None)  # as it may have been, before another change
                left.append((move, predicted))
        if left and not self._has_time(1 + REPEATED):
            self.result.not_tried |= {move.text: NO_TIME for move, _ in left}
            return None
        return max(left, key=lambda found: found[1] or 0.0, default=None)

    def _after(self, move: Move) -> dict[str, str | int]:
        """Returns the best values so far with those of a change, as far as they differ from the start."""
        values = {**self.result.values, **move.values}
        return {key: value for key, value in values.items() if self._start.get(key) != value}

    def _is_evaluation_worth_it(self, best: Measured) -> bool:
        """True if the place of evaluations is to be chosen and may matter."""
        if self._evaluations is None:
            return False
        share = evaluation_share(best, self._evaluations)
        if share is not None and share < WORTHWHILE - 1.0:
            self.result.not_tried["eval.beside"] = f"evaluations take at most {share:.1%} of the time"
            return False
        return True

    def _place_evaluation(self, best: Measured) -> None:
        """Compares both places of evaluations that come one soon after the other."""
        assert self._evaluations is not None
        now, every = self._evaluations.beside, max(round(EVALUATION_S * best.rate), 1)
        if not self._has_time(2 + (REPEATED if self.result.values else 0)):
            self.result.not_tried["eval.beside"] = NO_TIME
            return
        first: Measured | None = None
        for beside in (now, OTHER_PLACE[now]):
            change = f"eval.beside={beside} eval.every={every}"
            found = self._try({**self.result.values, "eval.beside": beside}, change, None, first, every)
            if found is None:
                return
            if first is not None and found.is_faster(first):
                self.result.values["eval.beside"] = beside
            first = first or found

    def _repeat(self) -> None:
        """Measures start and result once more, one after the other; what is not faster again is not kept."""
        if not self._has_time(REPEATED):
            self.result.not_tried["a repetition"] = NO_TIME
            return
        placed = {key: value for key, value in self.result.values.items() if key == "eval.beside"}
        chosen = {key: value for key, value in self.result.values.items() if key not in placed}
        start = self._try({}, "(start) again", None, None)
        result = self._try(chosen, "(result) again", None, start)
        if start is None or result is None or not result.is_faster(start):
            self.result.values = placed

    def _try(
        self, values: Values, change: str, predicted: float | None, than: Measured | None, every: int = 0
    ) -> Measured | None:
        """Runs a trial and adds its row, with the verdict against `than`; None if it failed."""
        try:
            measured = self._measure(values, every)
        except TrialFailed as failure:
            self._add(Row(change, predicted, None, f"failed: {failure}"))
            return None
        self._add(Row(change, predicted, measured, "to compare" if than is None else measured.verdict(than)))
        return measured

    def _has_time(self, num_trials: int) -> bool:
        return self._elapsed_s() + num_trials * self._longest_s <= self._budget_s

    def _measure(self, values: Values, every: int = 0) -> Measured:
        self._tried.add(frozenset(values.items()))
        begun_s = self._elapsed_s()
        try:
            return self._run_trial(values, every)
        finally:
            self._longest_s = max(self._longest_s, self._elapsed_s() - begun_s)

    def _add(self, row: Row) -> None:
        self.result.rows.append(row)
        self._report(row)


def _bounding_side(measured: Measured) -> str:
    """Returns what bounds a run, in the words of its verdict, which names no side where both do as much."""
    bottleneck = {} if measured.run is None else measured.run.summary["bottleneck"]
    if not bottleneck:
        return "the other side bounds the run"
    phase = f" ({bottleneck['phase']})" if bottleneck.get("phase") else ""
    verdict = f"{bottleneck['verdict']}{phase}"
    is_side = bottleneck["verdict"] in (Bottleneck.LEARNER, Bottleneck.COLLECTOR)
    return f"{verdict} bounds the run" if is_side else f"the verdict is {verdict}"
