"""`offpolicy eval`: labels and environments that are refused, and the table of policies side by side."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from offpolicy.cli import main
from offpolicy.commands.evaluate import comparison
from offpolicy.config.schema import RunConfig
from offpolicy.config.sections import EnvConfig
from offpolicy.errors import EnvFailure
from offpolicy.types import Episodes
from tests.unit.commands.conftest import Typed


def shown(labelled: dict[str, Episodes], measure: str | None = None, width: int = 80) -> list[str]:
    out = io.StringIO()
    Console(width=width, file=out).print(comparison(labelled, measure))
    return out.getvalue().splitlines()


def episodes(*returns: float) -> Episodes:
    values = np.array(returns)
    return Episodes(values, np.full(len(values), 7.0), values / 10.0)


def test_every_policy_has_its_interval_and_the_others_their_difference_from_the_first() -> None:
    lines = shown({"teacher": episodes(10.0, 10.0), "student": episodes(5.0, 5.0)})
    (teacher,) = [line for line in lines if line.strip().startswith("teacher ")]
    assert "10.0 [10.0, 10.0]" in teacher
    assert teacher.split()[-1] == "7.0"
    against = [line for line in lines if "student" in line][1]
    assert against.split() == ["student", "return", "5.0", "[5.0,", "5.0]", "0.50", "[0.50,", "0.50]"]


def test_the_table_fits_80_columns_with_large_numbers() -> None:
    rng = np.random.default_rng(0)
    many = {name: episodes(*rng.normal(-12345.6, 900.0, 20)) for name in ("reference", "another", "random")}
    lines = shown(many, measure="net_rotation")
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if line.split()[:2] in (["another", "return"], ["random", "return"])]
    assert all(row.count("[") == row.count("]") == 2 for row in rows), "an interval is broken over two lines"


def saved_run(
    path: Path, monkeypatch: pytest.MonkeyPatch, *found: Episodes | EnvFailure, measure: str | None = None
) -> None:
    """Runs whose evaluations, one after another, find these."""
    path.mkdir(exist_ok=True)
    (path / "config.yaml").touch()
    run = SimpleNamespace(
        path=path, env=EnvConfig(measure=measure), cfg=RunConfig(seed=3),
        checkpoint=SimpleNamespace(env_steps=50), actor=lambda: None, require_spaces=lambda spec: None, seed=3,
    )  # fmt: skip
    monkeypatch.setattr("offpolicy.commands.saved_run.SavedRun", SimpleNamespace(find=lambda path, choice: run))
    left = iter(found)

    def run_episodes(*_: object, **__: object) -> Episodes:
        if isinstance(one := next(left), EnvFailure):
            raise one
        return one

    monkeypatch.setattr("offpolicy.collect.evaluation.run_episodes", run_episodes)


WITHOUT = Episodes(np.array([1.0, 2.0]), np.array([7.0, 7.0]), np.full(2, math.nan))


@pytest.mark.filterwarnings("error")
def test_a_policy_without_the_measure_has_a_dash_beside_one_that_has_it() -> None:
    """Random actions never reach a goal: the evaluations of all others were thrown away."""
    lines = shown({"a": episodes(20.0, 20.0), "random": WITHOUT}, measure="goal_time")
    assert "2.0 [2.0, 2.0]" in next(line for line in lines if line.strip().startswith("a "))
    rows = [line.split() for line in lines if line.split()[:1] == ["random"]]
    assert (rows[0][-2:], rows[2]) == (["-", "7.0"], ["random", "goal_time", "-", "-"])


def test_a_measure_that_no_policy_has_is_refused_and_the_returns_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Typed
) -> None:
    saved_run(tmp_path, monkeypatch, WITHOUT, measure="typo")
    assert "env.measure: got 'typo', which the info of no episode's end holds" in refused("eval", tmp_path)
    assert json.loads((tmp_path / "eval.jsonl").read_text())["mean_reward"] == 1.5


def test_the_results_before_one_that_fails_are_recorded_and_never_glued_to_a_torn_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Typed
) -> None:
    """A disk that was full took a part of a line; the next record was lost with it."""
    saved_run(tmp_path, monkeypatch, episodes(1.0, math.nan), EnvFailure("it broke"))
    (tmp_path / "eval.jsonl").write_text('{"env_steps": 40, "mean_reward": 7.0}\n{"env_steps": 45, "mean')
    assert "it broke" in refused("eval", f"a={tmp_path}", f"b={tmp_path}", code=1)
    records = [json.loads(line) for line in (tmp_path / "eval.jsonl").read_text().splitlines()]
    assert [(one["env_steps"], one["mean_reward"]) for one in records] == [(40, 7.0), (50, None)]


def test_the_evaluation_of_a_run_that_cannot_be_written_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be somebody else's, or on a full disk."""
    saved_run(tmp_path, monkeypatch, episodes(1.0, 3.0))
    (tmp_path / "eval.jsonl").mkdir()
    assert main(["eval", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "2.00" in captured.out
    assert "eval.jsonl cannot be written: Is a directory; the evaluation is not recorded" in captured.err
