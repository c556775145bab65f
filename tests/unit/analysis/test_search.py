"""The search of `offpolicy tune` among machines whose speeds are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from offpolicy.analysis.explain import FinishedRun
from offpolicy.analysis.search import EvaluationPlan, Search, Tuning, evaluation_share, predicted_steps_per_sec
from offpolicy.analysis.tuning import Measured, Move, TrialFailed, Values
from tests.unit.analysis.finished_run import finished_run

START: Values = {"a": 1, "b": "x"}
TRIAL_S = 10.0


def steps_of(a: int) -> list[Move]:
    """Twice `a`, and the other `b`."""
    return [Move({"a": 2 * a}), Move({"b": "y"}), Move({"b": "x"})]


class FakeMachine:
    """Trials of a known rate and of ten seconds each; the second list of a setting is that of its repetition."""

    def __init__(
        self, rates: Callable[[Values], tuple[float, ...]], busy: Callable[[int], float] = lambda n: 0.0
    ) -> None:
        self.rates, self.busy, self.tried = rates, busy, list[tuple[dict[str, str | int], int]]()

    def run_trial(self, values: Values, every: int) -> Measured:
        self.tried.append((dict(values), every))
        return Measured(self.rates({**START, **values}), self.busy(len(self.tried)), episode_steps=200.0)

    def elapsed_s(self) -> float:
        return TRIAL_S * len(self.tried)

    def search(
        self,
        budget_s: float = 1e9,
        predict: Callable[[Measured, Move], float | None] = lambda measured, move: None,
        evaluations: EvaluationPlan | None = None,
    ) -> Search:
        def moves_from(values: Values) -> list[Move]:
            return steps_of(int(values.get("a", 1)))

        return Search(START, self.run_trial, moves_from, self.elapsed_s, budget_s, evaluations, predict)

    @property
    def settings(self) -> list[dict[str, str | int]]:
        return [values for values, _ in self.tried]


def steady(rate: float) -> tuple[float, ...]:
    return (0.99 * rate, rate, 1.01 * rate)


def four_is_best(values: Values) -> tuple[float, ...]:
    """a = 4 and b = y are the fastest, and only together twice as fast."""
    return steady({1: 100.0, 2: 120.0, 4: 150.0, 8: 90.0}[int(values["a"])] * (1.3 if values["b"] == "y" else 1.0))


def test_the_fastest_setting_is_found_one_change_after_the_other() -> None:
    machine = FakeMachine(four_is_best)
    assert machine.search().run().values == {"a": 4, "b": "y"}
    assert machine.settings[-2:] == [{}, {"a": 4, "b": "y"}]  # start and result once more


def test_no_setting_is_tried_twice_but_start_and_result() -> None:
    machine = FakeMachine(four_is_best)
    machine.search().run()
    once = machine.settings[:-2]
    assert len({frozenset(values.items()) for values in once}) == len(once)


def test_the_most_promising_change_comes_first_and_one_that_cannot_matter_is_not_tried() -> None:
    machine = FakeMachine(four_is_best)
    promise: Mapping[str, float] = {"a=2": 1.2, "a=4": 1.02, "b=y": 1.4}
    tuning = machine.search(predict=lambda now, move: promise.get(move.text, 1.0) * now.rate).run()
    assert machine.settings[:3] == [{}, {"b": "y"}, {"b": "y", "a": 2}]
    assert {"a": 4, "b": "y"} not in machine.settings
    assert tuning.not_tried["a=4"] == "+2% at best: the other side bounds the run"
    assert [row.predicted for row in tuning.rows[:2]] == [None, pytest.approx(140.0)]


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("learner", "learner (train) bounds the run"),
        ("collector", "collector (train) bounds the run"),
        ("balanced", "the verdict is balanced (train)"),
        ("contention", "the verdict is contention (train)"),
    ],
)
def test_why_a_change_is_not_tried_names_the_side_or_the_verdict(tmp_path: Path, verdict: str, words: str) -> None:
    bottleneck = {"verdict": verdict, "phase": "train", "reason": "", "advice": []}
    run = FinishedRun.read(finished_run(tmp_path / "run", bottleneck=bottleneck))
    measured = Measured(steady(100.0), run=run)
    search = Search(START, lambda values, every: measured, lambda values: steps_of(1), lambda: 0.0, 1e9,
                    predict=lambda now, move: now.rate)  # fmt: skip
    assert search.run().not_tried["a=2"] == f"+0% at best: {words}"


def test_a_difference_within_the_spread_is_no_win() -> None:
    machine = FakeMachine(lambda values: (60.0, 100.0, 140.0) if values["a"] == 1 else (80.0, 120.0, 160.0))
    tuning = machine.search().run()
    assert tuning.values == {}
    assert {row.verdict for row in tuning.rows[1:]} == {"noise"}


def test_a_win_that_does_not_repeat_is_not_kept() -> None:
    machine = FakeMachine(lambda values: steady(100.0))
    machine.rates = lambda values: steady(150.0 if values["a"] == 2 and len(machine.tried) == 2 else 100.0)
    tuning = machine.search().run()
    assert tuning.rows[1].verdict == "faster"
    assert (tuning.rows[-1].change, tuning.rows[-1].verdict) == ("(result) again", "noise")
    assert tuning.values == {}


def test_trials_that_other_programs_disturbed_unequally_are_not_judged() -> None:
    machine = FakeMachine(four_is_best, busy=lambda number: 0.5 if number == 1 else 0.0)
    tuning = machine.search().run()
    assert {row.verdict for row in tuning.rows[1:]} == {"not judged"}
    assert tuning.values == {}


@pytest.mark.parametrize(("budget_s", "trials"), [(1.0, 1), (45.0, 4), (65.0, 6)])
def test_the_budget_holds_with_the_repetition(budget_s: float, trials: int) -> None:
    machine = FakeMachine(four_is_best)
    tuning = machine.search(budget_s).run()
    assert len(machine.tried) == trials
    assert tuning.rows[-1].change == ("(start)" if trials == 1 else "(result) again")
    assert machine.elapsed_s() <= max(budget_s, TRIAL_S)
    assert "no time left" in tuning.not_tried.values()


def test_a_failing_trial_is_one_row_and_the_search_goes_on() -> None:
    machine = FakeMachine(four_is_best)

    def rates(values: Values) -> tuple[float, ...]:
        if values["b"] == "y":
            raise TrialFailed("env: no such thing")
        return four_is_best(values)

    machine.rates = rates
    tuning = machine.search().run()
    assert tuning.values == {"a": 4}
    failed = [row for row in tuning.rows if row.measured is None]
    assert {row.verdict for row in failed} == {"failed: env: no such thing"}


def test_a_start_that_fails_ends_the_search() -> None:
    def rates(values: Values) -> tuple[float, ...]:
        raise TrialFailed("no update within 90 s")

    with pytest.raises(TrialFailed, match="no update"):
        FakeMachine(rates).search().run()


def placed(machine: FakeMachine, share: float | None, monkeypatch: pytest.MonkeyPatch) -> Tuning:
    monkeypatch.setattr("offpolicy.analysis.search.evaluation_share", lambda best, plan: share)
    return machine.search(predict=lambda now, move: 0.0, evaluations=EvaluationPlan("false", 5000, 10)).run()


def beside_is_faster(values: Values) -> tuple[float, ...]:
    return steady(90.0 if values.get("eval.beside") == "true" else 60.0 if "eval.beside" in values else 100.0)


def test_evaluations_that_take_time_are_tried_in_both_places(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(beside_is_faster)
    assert placed(machine, 0.2, monkeypatch).values == {"eval.beside": "true"}
    assert machine.tried[1:] == [({"eval.beside": "false"}, 200), ({"eval.beside": "true"}, 200)]


def test_the_place_of_short_evaluations_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(beside_is_faster)
    tuning = placed(machine, 0.016, monkeypatch)
    assert machine.settings == [{}]
    assert tuning.not_tried["eval.beside"] == "evaluations take at most 1.6% of the time"


def test_predictions_are_those_of_the_finished_run_scaled_to_its_measured_rate(tmp_path: Path) -> None:
    run = FinishedRun.read(finished_run(tmp_path / "run", "collect.mode=alternate"))
    measured = Measured((80.0,), run=run)
    # In turns 1 / (1/100 + 1/250) = 71.4 env steps/s; at the same time 100; without 1 of the learner's 10 ms 76.9.
    overlap = Move({"collect.mode": "overlap"}, what_if="collect.mode=overlap")
    assert predicted_steps_per_sec(measured, overlap) == pytest.approx(80.0 * 100.0 / 71.43, rel=1e-3)
    hidden = Move({"replay.source": "prefetch"}, factors={"replay_sample": 0.0})
    assert predicted_steps_per_sec(measured, hidden) == pytest.approx(80.0 * 76.92 / 71.43, rel=1e-3)
    assert predicted_steps_per_sec(measured, Move({"threads.learner": 1})) is None
    assert predicted_steps_per_sec(measured, Move({"x": 1}, what_if="a what-if that is none")) is None


def test_the_share_of_evaluations_follows_from_the_cost_of_a_step(tmp_path: Path) -> None:
    run = FinishedRun.read(finished_run(tmp_path / "run"))
    plan = EvaluationPlan("false", every=1000, episodes=10)
    # 10 episodes of 125 steps of 4 ms are 5 s, between them 1000 steps at 100 per second are 10 s.
    assert evaluation_share(Measured((100.0,), episode_steps=125.0, run=run), plan) == pytest.approx(1 / 3)
    assert evaluation_share(Measured((100.0,), run=run), plan) is None
