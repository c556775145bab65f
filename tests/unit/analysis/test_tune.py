"""`offpolicy tune`: the search among machines of known speeds, its settings, and the verdict on two trials."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from offpolicy.analysis.search import EvaluationPlan, Search
from offpolicy.analysis.tuning import KEYS, Machine, Measured, Move, TrialFailed, Values, held_keys, moves
from offpolicy.config.overrides import load_config
from offpolicy.config.schema import all_keys

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


def test_a_difference_within_the_spread_is_no_win() -> None:
    machine = FakeMachine(lambda values: (60.0, 100.0, 140.0) if values["a"] == 1 else (80.0, 120.0, 160.0))
    tuning = machine.search().run()
    assert tuning.values == {}
    assert {row.verdict for row in tuning.rows[1:]} == {"noise"}


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


FOUR_CORES = Machine(num_cores=4, learns_on_gpu=False)


def changes(*words: str, machine: Machine = FOUR_CORES, typed: tuple[str, ...] = (), threads: int = 4) -> list[str]:
    cfg = load_config(words)
    return [move.text for move in moves(cfg, held_keys(cfg, typed, ()), machine, threads)]


def test_every_key_exists_and_none_changes_what_an_update_learns() -> None:
    assert KEYS.keys() <= set(all_keys())
    assert [key for key in KEYS if key.split(".")[0] in ("algo", "seed", "rollout", "device", "runner")] == []


def test_keys_that_were_typed_or_are_to_be_kept_are_not_changed() -> None:
    cfg = load_config(["env.num_envs=3"])
    held = held_keys(cfg, ["env.num_envs"], ["collect"])
    assert held["env.num_envs"] == "given on the command line"
    assert held["collect.mode"] == held["collect.num_collectors"] == "--keep"
    touched = {key for move in moves(cfg, held, FOUR_CORES, 4) for key in move.values}
    assert touched == {"env.vectorization", "replay.source", "threads.collector"}


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ((120.0, 121.0, 122.0), "faster"),
        ((80.0, 81.0, 82.0), "slower"),
        ((100.0, 120.0, 140.0), "noise"),  # its middle half begins below the end of the other's
        ((102.4, 102.5, 102.6), "noise"),  # beyond the spread, and too little to be worth it
    ],
)
def test_a_verdict_needs_more_than_the_spread_of_both(rates: tuple[float, ...], verdict: str) -> None:
    other = Measured((98.0, 100.0, 102.0, *[100.0] * 20)) if rates[0] == 102.4 else Measured((90.0, 100.0, 130.0))
    assert Measured(rates).verdict(other) == verdict
