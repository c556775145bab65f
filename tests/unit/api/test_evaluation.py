"""`evaluate` and `compare` of Python: labels, the trust check, and results as arrays and text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.api.evaluation import compare, evaluate
from offpolicy.api.runs import TrainedRun
from offpolicy.commands import evaluate as command
from offpolicy.errors import ConfigError
from offpolicy.types import Episodes

MakeRun = Callable[..., Path]
ONE_RUN = "a directory, latest, the beginning of a run's name, or a TrainedRun"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What the command was asked to evaluate, in a directory with the runs a/x, b/x and y."""
    monkeypatch.chdir(tmp_path)
    for name in ("a/x", "b/x", "y"):
        Path(name).mkdir(parents=True)
        Path(name, "config.yaml").touch()
    calls: list[Any] = []

    def evaluated(paths: dict[str, Path], choice: Any, **options: Any) -> SimpleNamespace:
        calls.append((paths, choice, options))
        one = Episodes(np.array([1.0, 3.0]), np.array([5.0, 5.0]), np.array([np.nan, np.nan]))
        return SimpleNamespace(episodes=dict.fromkeys(paths, one), seed=4)

    monkeypatch.setattr(command, "evaluated", evaluated)
    return calls


def test_one_run_has_one_evaluation(asked: list[Any]) -> None:
    found = evaluate("y", episodes=2, device="cpu")
    assert (found.label, found.mean_reward, found.std_reward, found.seed) == ("y", 2.0, 1.0, 4)
    ((paths, choice, options),) = asked
    assert paths == {"y": Path("y")}
    assert (choice.device, options) == ("cpu", {"episodes": 2, "with_random": False})
    assert repr(found) == "Evaluation('y', mean_reward=2.00, std_reward=1.00, episodes=2, seed=4)"


def test_several_runs_have_labels_of_their_own(asked: list[Any]) -> None:
    assert list(evaluate(["a/x", TrainedRun(Path("b/x")), Path("y")])) == ["x", "x-2", "y"]
    assert list(evaluate({"mine": "y"}, random=True)) == ["mine"]
    assert asked[1][2]["with_random"]


def test_options_are_checked_as_those_of_the_command_before_anything_is_read(asked: list[Any]) -> None:
    number = "allowed a whole number in"
    several = "allowed with a list or a mapping: evaluate([run], random=True)"
    given: list[tuple[Any, dict[str, Any], str]] = [
        ("y", {"episodes": 0}, f"episodes: got 0, {number} [1, inf)"),
        ("y", {"seed": -1}, f"seed: got -1, {number} [0, inf)"),
        ("y", {"step": "300"}, f"step: got '300', {number} [0, inf)"),
        ("y", {"changes": "x"}, 'changes: got a str, allowed a mapping such as {"env": {"kwargs": {"g": 9.0}}}'),
        ("y", {"random": True}, f"random: got True with one run, {several}"),
        ([], {}, "run: got none, allowed one or more"),
        (None, {}, f"run: got None, allowed {ONE_RUN}"),
        ({"x": 3}, {}, f"run: got a int, allowed {ONE_RUN}"),
    ]
    for run, options, problem in given:
        with pytest.raises(ConfigError) as caught:
            evaluate(run, **options)
        assert caught.value.problems == (problem,)
    assert asked == []


def test_what_cannot_be_compared_is_refused_by_name(asked: list[Any]) -> None:
    several = "allowed a list or a mapping of two or more: compare([run, other])"
    given: list[tuple[Any, str]] = [
        ("a/x", f"run: got one, {several}"),
        (None, f"run: got None, {several}"),
        ({"one": "a/x", "two": []}, "run: got none with the label 'two', allowed one or more"),
        ({1: "a/x", "1": "y"}, "run: the label '1' is given twice; write another one"),
        ({"one": "a/x", "two": None}, f"run: got None, allowed {ONE_RUN}"),
        (["a/x", 3], f"run: got a int, allowed {ONE_RUN}"),
    ]
    for runs, problem in given:
        with pytest.raises(ConfigError) as caught:
            compare(runs)
        assert caught.value.problems == (problem,)
    assert asked == []


def test_a_score_to_reach_is_finite(make_run: MakeRun) -> None:
    runs = [make_run("one"), make_run("two")]
    assert "env steps to -30" in str(compare(runs, reference=-30))
    for wrong in (float("nan"), "best"):
        with pytest.raises(ConfigError, match=f"reference: got {wrong!r}, allowed a finite number"):
            compare(runs, reference=wrong)  # type: ignore[arg-type]  # a wrong one
