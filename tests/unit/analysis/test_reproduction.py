"""A repetition is held against its run: circumstances, the reasons for other bits, and each result."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.analysis import reproduction
from offpolicy.analysis.reproduction import (
    Circumstances,
    Outcome,
    changed_since,
    episode_lines,
    outcomes,
    require_checkpoint,
    why_not_bitwise,
)
from offpolicy.config.overrides import load_config
from offpolicy.errors import CheckpointError, ConfigError
from tests.unit.analysis.finished_run import goes_on_after_its_end

HERE = Circumstances({"torch": "2.13.0", "mujoco": "3.17.0"}, "abc", "Some CPU", 2)
START = "# offpolicy 0.1.0, 2026-11-23T06:29:21+00:00 on vm, commit abc\n# offpolicy train algo=sac\n"
SUMMARY: dict[str, Any] = {
    "status": "completed", "env_steps": 600, "updates": 500, "restarts": 0, "learner_restarts": 0,
    "eval": {"mean_reward": -100.0, "std_reward": 2.0},
    "versions": HERE.versions, "hardware": {"cpu": "Some CPU", "cores": 2, "gpu": None}, "run": {"git_commit": "abc"},
}  # fmt: skip


class SavedTensors:
    """A checkpoint whose learner holds one tensor."""

    def __init__(self, *values: float) -> None:
        self._values = values

    def tensors(self, name: str) -> dict[str, Any]:
        assert name == "learner"
        return {"policy.weight": np.array(self._values, np.float32)}

    def newest_valid(self, *, reads_rows: bool) -> SavedTensors:
        return self


def make(path: Path, episodes: tuple[float, ...] = (-9.0,), **changes: Any) -> Path:
    path.mkdir()
    (path / "summary.json").write_text(json.dumps(SUMMARY | changes))
    (path / "config.yaml").write_text(f"seed: 1\n{START}")
    lines = [json.dumps({"env_steps": 200 * n, "env_index": 0, "ep_return": each}) for n, each in enumerate(episodes)]
    (path / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    return path


def results(monkeypatch: pytest.MonkeyPatch, run: Path, again: Path, **saved: SavedTensors) -> dict[str, Outcome]:
    monkeypatch.setattr(reproduction, "run_store", lambda path: saved.get(path.name, SavedTensors(1.0, 2.0)))
    return {each.name: each for each in outcomes(run, again)}


def test_circumstances_are_those_of_the_summary(tmp_path: Path) -> None:
    assert Circumstances.of_run(make(tmp_path / "a")) == HERE


def test_a_run_that_went_on_after_its_end_has_no_results_to_compare_with(tmp_path: Path) -> None:
    run = make(tmp_path / "a")
    goes_on_after_its_end(run)
    with pytest.raises(ConfigError, match="no summary.json of its last start"):
        Circumstances.of_run(run)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"cpu": "Other CPU"}, ["cpu was Some CPU, is Other CPU"]),
        ({"cores": 8}, ["cores was 2, is 8"]),
        ({"commit": "def"}, ["commit was abc, is def"]),
        (
            {"versions": {"torch": "2.14.0", "mujoco": None}},
            ["torch was 2.13.0, is 2.14.0", "mujoco was 3.17.0, is not installed"],
        ),
    ],
)  # fmt: skip
def test_what_differs_is_named_with_both_values(changes: dict[str, Any], words: list[str]) -> None:
    assert HERE.differences(replace(HERE, **changes)) == words


def reasons(
    run: Path,
    *words: str,
    changed: tuple[str, ...] = (),
    has_gpu: bool = False,
    cores: int = 2,
    has_evaluator: bool = False,
) -> list[str]:
    cfg = load_config(words)
    return why_not_bitwise(run, cfg, changed, has_gpu=has_gpu, cores=cores, has_evaluator=has_evaluator)


def test_equal_bits_are_promised_with_threads_that_are_given(tmp_path: Path) -> None:
    assert reasons(make(tmp_path / "a"), "threads.learner=1") == []


@pytest.mark.parametrize(
    ("words", "options", "reason"),
    [
        (("threads.learner=1", "collect.mode=overlap"), {}, "collect.mode=overlap"),
        (("threads.learner=1", "collect.mode=auto"), {}, "collect.mode=auto"),
        ((), {}, "threads.learner=auto"),
        (("threads.learner=1",), {"has_gpu": True}, "a GPU"),
        (("threads.learner=1",), {"changed": ("algo.gamma", "run_dir")}, "algo.gamma: changed"),
        (("threads.learner=1", "stop.reward=-9", "eval.every=500"), {"has_evaluator": True}, "stop.reward, stop.patie"),
        (("threads.learner=1", "stop.patience=3", "eval.every=500"), {"has_evaluator": True}, "stop.reward, stop.pat"),
    ],
)
def test_every_reason_for_other_bits_is_named(
    tmp_path: Path, words: tuple[str, ...], options: dict[str, Any], reason: str
) -> None:
    (found,) = reasons(make(tmp_path / "a"), *words, **options)
    assert found.startswith(reason)


def test_files_that_were_written_after_the_run_had_begun_are_named(tmp_path: Path) -> None:
    run = make(tmp_path / "a", run={"started": "2026-11-23T06:29:21+00:00"})
    began_s = 1_795_415_361
    older, newer = tmp_path / "older.py", tmp_path / "newer.npz"
    for path, written_s in ((older, began_s - 5), (newer, began_s + 5)):
        path.touch()
        os.utime(path, (written_s, written_s))
    found = changed_since(run, {"env.id": [older, tmp_path / "gone.py"], "replay.demos": [newer]})
    assert found == [f"replay.demos: {newer} was written after the run had begun"]
    assert changed_since(make(tmp_path / "b"), {"replay.demos": [newer]}) == []  # it does not say when it began


@pytest.mark.parametrize(("changes", "word"), [({"status": "interrupted"}, "interrupted"), ({"restarts": 1}, "died")])
def test_a_run_that_did_not_go_through_promises_nothing(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    (found,) = reasons(make(tmp_path / "a", **changes), "threads.learner=1")
    assert word in found


def test_a_run_without_a_checkpoint_has_no_parameters_to_compare_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path / "a")
    (run / "checkpoints/step-000000000600").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"no usable checkpoint is left\nrun: .*a/checkpoints holds no usable"):
        require_checkpoint(run)
    monkeypatch.setattr(reproduction, "run_store", lambda path: SavedTensors(1.0))
    require_checkpoint(run)


def test_equal_runs_are_equal_in_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = results(monkeypatch, make(tmp_path / "a"), make(tmp_path / "b"))
    assert {each.is_equal for each in found.values()} == {True}
    assert found["parameters"].text == "1 tensors, bit for bit"


def test_a_last_bit_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = float(np.nextafter(np.float32(2.0), np.float32(3.0)))
    found = results(monkeypatch, make(tmp_path / "a"), make(tmp_path / "b"), b=SavedTensors(1.0, last))
    assert not found["parameters"].is_equal
    assert "1 of 1 tensors differ, by at most 2.38e-07 (policy.weight)" in found["parameters"].text


def test_the_first_episode_that_differs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, again = make(tmp_path / "a", (-9.0, -8.0)), make(tmp_path / "b", (-9.0, -7.5))
    text = results(monkeypatch, run, again)["training episodes"].text
    assert text == "2, again 2; episode 2 ended at env step 200 with -8.0, again -7.5"
    fewer = make(tmp_path / "c", (-9.0,))
    assert results(monkeypatch, run, fewer)["training episodes"] == Outcome("training episodes", False, "2, again 1")


def test_counts_and_evaluations_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = make(tmp_path / "b", updates=499, eval={"mean_reward": -101.0, "std_reward": 2.0})
    found = results(monkeypatch, make(tmp_path / "a"), again)
    assert found["updates"].text == "500, again 499"
    assert not found["evaluation mean_reward"].is_equal
    assert found["evaluation std_reward"].is_equal


def test_a_torn_line_of_an_episode_is_left_out(tmp_path: Path) -> None:
    """A crash of the machine may leave one: the command ended in a traceback, after the whole repetition."""
    (tmp_path / "episodes.jsonl").write_bytes(b'{"env_steps": 2}\n{"env_st\n\xff\n')
    assert episode_lines(tmp_path / "episodes.jsonl") == [{"env_steps": 2}]
