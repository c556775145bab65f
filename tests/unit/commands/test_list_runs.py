"""`offpolicy list`: a row per run, the newest first; what a run has not written is left open."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from offpolicy.commands.list_runs import row
from offpolicy.runs import find_run
from tests.unit.commands.conftest import Typed

SUMMARY = {
    "status": "completed",
    "env_steps": 20000,
    "eval": {"mean_reward": -151.26},
    "rates": {"steps_per_sec": 99.7},
}


def make(run: Path, **files: object) -> Path:
    run.mkdir(parents=True)
    (run / "config.yaml").touch()
    for name, content in files.items():
        (run / {"summary": "summary.json", "metrics": "metrics.jsonl", "lock": ".lock"}[name]).write_text(
            content if isinstance(content, str) else json.dumps(content)
        )
    return run


def test_a_finished_run_has_its_outcome(tmp_path: Path) -> None:
    assert row(make(tmp_path / "a", summary=SUMMARY)) == ("completed", "20,000", "-151.3", "99.7")


def test_a_run_in_progress_is_read_from_its_last_record(tmp_path: Path) -> None:
    lines = '{"env_steps": 100}\n{"env_steps": 200, "rollout/ep_rew_mean": -9.0, "perf/steps_per_sec": 50.0}\n{"env_st'
    holder = {"pid": os.getpid(), "host": socket.gethostname()}
    run = make(tmp_path / "a", summary=SUMMARY, metrics=lines, lock=holder)  # resumed: the summary is an older one
    assert row(run) == ("running", "200", "-9.00*", "50.0")
    run = make(tmp_path / "b", summary=SUMMARY, metrics='{"env_steps": 7}', lock={"pid": 1, "host": "elsewhere"})
    assert row(run) == ("unknown", "7", "-", "-")


def test_a_run_that_ended_without_an_evaluation_keeps_its_return_of_training(tmp_path: Path, printed: Typed) -> None:
    """It had one while it ran, and none once it had ended; which of the two a column shows was not said."""
    evaluated = SUMMARY | {"rollout": {"ep_rew_mean": -9.0}}
    trained = evaluated | {"eval": {"mean_reward": None, "episodes": 0}}
    assert row(make(tmp_path / "evaluated", summary=evaluated))[2] == "-151.3"
    assert "*" not in printed("list", tmp_path)
    assert row(make(tmp_path / "trained", summary=trained))[2] == "-9.00*"
    assert printed("list", tmp_path).splitlines()[-1].startswith("* mean of the last training episodes")


def test_a_run_without_an_end_was_killed_and_one_that_was_resumed_and_killed_too(tmp_path: Path) -> None:
    """Its summary is that of its end before."""
    dead = {"pid": 2**30, "host": socket.gethostname()}
    assert row(make(tmp_path / "without", lock=dead)) == ("killed", "-", "-", "-")
    run = make(tmp_path / "a", summary=SUMMARY, metrics='{"env_steps": 250}', lock=dead)
    os.utime(run / "summary.json", (1.0, 1.0))
    assert row(run)[:2] == ("killed", "250")
    (run / ".lock").write_text(json.dumps({"parent": 1, "host": socket.gethostname()}))  # it has ended otherwise
    assert row(run)[0] == "completed"


def test_the_newest_are_shown_and_the_others_counted(tmp_path: Path, printed: Typed) -> None:
    for age in range(3):
        run = make(tmp_path / f"sac/Pendulum-v1/run-{age}", summary=SUMMARY)
        os.utime(run / "config.yaml", (1e9 - age, 1e9 - age))
    shown = printed("list", tmp_path, "--most", "2")
    assert shown.index("run-0") < shown.index("run-1")
    assert "run-2" not in shown
    assert f"1 older run: offpolicy list {tmp_path} --most 3" in shown


def test_the_name_of_a_run_is_whole_and_is_one_that_commands_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Typed
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["sac/a_very_long_module_name:Env-v0/20261122-143042-s1", "sac/Env-v1/20261122-143042-s12", "td3/X/b", "b"]
    for name in names:
        make(Path("runs") / name, summary=SUMMARY)
    monkeypatch.setenv("COLUMNS", "80")
    lines = [words for line in printed("list").splitlines()[3:] if len(words := line.split()) > 1]
    assert all(words[-4:] == ["completed", "20,000", "-151.3", "99.7"] for words in lines)
    assert {str(find_run(words[0]).relative_to("runs")) for words in lines} == set(names)


def test_a_directory_without_runs_is_refused(tmp_path: Path, refused: Typed) -> None:
    assert "which holds no run; offpolicy train starts one" in refused("list", tmp_path)
