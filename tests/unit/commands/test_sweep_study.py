"""The study survives its process, knows its space, and prunes what is worse than the others at the same point."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.analysis.space import Parameter, Space
from offpolicy.commands.sweep_study import STARTUP_TRIALS, SweepStudy
from offpolicy.errors import ConfigError

GAMMA = Parameter("algo.gamma", (), 0.9, 0.99)
DIMS = Parameter("algo.hidden_dims", ((64, 64), (256, 256)))
DELAY = Parameter("algo.policy_delay", (), 1, 9, step=4, is_whole=True)
SPACE = Space((GAMMA, DIMS, DELAY))


def opened(directory: Path, space: Space = SPACE, words: tuple[str, ...] = (), *, prunes: bool = True) -> SweepStudy:
    return SweepStudy(directory, space, words, prunes=prunes)


def test_values_are_within_the_space(tmp_path: Path) -> None:
    study = opened(tmp_path)
    for _ in range(12):
        trial = study.ask()
        values = study.values_of(trial.params)
        assert all(each.holds(values[each.key]) for each in SPACE.parameters)
        assert isinstance(values["algo.hidden_dims"], tuple)
        study.complete(trial, 1.0)


def test_the_defaults_come_first_and_once(tmp_path: Path) -> None:
    values = {"algo.gamma": 0.95, "algo.hidden_dims": (256, 256), "algo.policy_delay": 5}
    for _ in range(2):
        study = opened(tmp_path)
        study.suggest_first(values)
    first, second = study.ask(), study.ask()
    assert study.values_of(first.params) == values
    assert study.values_of(second.params) != values


def test_a_study_goes_on_where_its_process_was_killed(tmp_path: Path) -> None:
    study = opened(tmp_path)
    done, cut = study.ask(), study.ask()
    study.complete(done, -3.0)
    cut.report(-4.0, 0)
    again = opened(tmp_path)
    (found,) = again.begun()
    assert (again.num_trials, found.number, found.params) == (2, cut.number, cut.params)
    again.complete(found, -2.0)
    assert [(row.number, row.state, row.mean) for row in again.rows()] == [
        (1, "complete", -2.0),
        (0, "complete", -3.0),
    ]


def test_the_evaluations_of_an_earlier_process_are_counted(tmp_path: Path) -> None:
    trial = opened(tmp_path).ask()
    for step in range(2):
        trial.report(-1.0, step)
    study = opened(tmp_path)
    assert [study.num_reports(each) for each in study.begun()] == [2]


def test_a_trial_without_a_return_comes_after_one_with_a_bad_one(tmp_path: Path) -> None:
    study = opened(tmp_path)
    trials = [study.ask() for _ in range(4)]
    study.fail(trials[0], "why")
    for trial, mean in zip(trials[1:3], (-900.0, float("nan")), strict=True):
        trial.report(mean, 0)
        study.prune(trial)
    study.complete(trials[3], -1.0)
    assert [row.number for row in study.rows()] == [3, 1, 0, 2]


@pytest.mark.parametrize(("space", "words"), [(Space((GAMMA,)), ()), (SPACE, ("algo=td3",))])
def test_a_directory_of_another_sweep_is_refused(tmp_path: Path, space: Space, words: tuple[str, ...]) -> None:
    opened(tmp_path)
    with pytest.raises(ConfigError, match="--out: .* holds a sweep of another space or command"):
        opened(tmp_path, space, words)


def test_a_file_that_is_no_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_bytes(b"garbage" * 100)
    with pytest.raises(ConfigError, match="--out: .*study.db cannot be opened: file is not a database; write another"):
        opened(tmp_path)


@pytest.mark.parametrize("prunes", [True, False])
def test_what_is_worse_than_the_median_is_pruned(tmp_path: Path, prunes: bool) -> None:
    study = opened(tmp_path, prunes=prunes)
    for number in range(STARTUP_TRIALS):
        trial = study.ask()
        for step in range(3):
            trial.report(-100.0 - number, step)
        study.complete(trial, -100.0)
    bad = study.ask()
    bad.report(-900.0, 0)
    assert not bad.should_prune()  # the first evaluation says too little
    bad.report(-900.0, 1)
    assert bad.should_prune() == prunes
