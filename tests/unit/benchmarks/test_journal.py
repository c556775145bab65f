from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import journal
from benchmarks.journal import Budget, Journal, Task
from benchmarks.parts.measurement import measurements_of
from benchmarks.results import all_entries, read_entries

AT_ONCE = Budget(1e9, wait_s=0.0)  # begins when the tests are collected, which may be hours before


@pytest.fixture(autouse=True)
def clean_commit(monkeypatch: pytest.MonkeyPatch, results_directory: Path) -> Path:
    """A tree without changes, in which nobody else runs."""
    monkeypatch.setattr("benchmarks.results.commit", lambda: "abc")
    monkeypatch.setattr(journal, "look", lambda cores: 0.0)
    return results_directory


def run(keys: str, settings: dict[str, Any], *, resume: bool = True, budget: Budget = AT_ONCE) -> list[str]:
    """What is measured by a call that is asked for these tasks."""
    measured: list[str] = []
    tasks = [Task(key, 1.0, lambda key=key: measured.append(key)) for key in keys]
    Journal("toy", settings, [0], resume=resume).run(tasks, budget, lambda task, outcome: None)
    return measured


def test_a_task_is_done_once(clean_commit: Path) -> None:
    assert run("ab", {"x": 1}) == ["a", "b"]
    assert run("abc", {"x": 1}) == ["c"]
    ((_, _, entry),) = all_entries(clean_commit)
    assert list(entry["tasks"]) == ["a", "b", "c"]


def test_other_settings_begin_anew() -> None:
    run("a", {"x": 1})
    assert run("a", {"x": 2}) == ["a"]
    assert run("a", {"x": 1}, resume=False) == ["a"]


def test_another_commit_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    run("a", {})
    monkeypatch.setattr("benchmarks.results.commit", lambda: "def")
    assert run("a", {}) == ["a"]


def test_a_tree_with_changes_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.results.commit", lambda: "abc-dirty")
    run("a", {})
    assert run("a", {}) == ["a"]


def test_another_machine_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    run("a", {})
    monkeypatch.setattr("benchmarks.results.cpu_model", lambda: "another")
    assert run("a", {}) == ["a"]


def test_a_task_that_does_not_fit_is_left(clean_commit: Path) -> None:
    tasks = [Task("short", 1.0, lambda: 1), Task("long", 60.0, lambda: 2)]
    left = Journal("toy", {}, [0], resume=True).run(tasks, Budget(30.0, 0.0), lambda task, outcome: None)
    assert [task.key for task in left] == ["long"]


def test_a_commit_that_changes_ends_the_call(clean_commit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure() -> int:
        monkeypatch.setattr("benchmarks.results.commit", lambda: "def")
        return 1

    tasks = [Task("a", 1.0, measure), Task("b", 1.0, lambda: 2)]
    with pytest.raises(SystemExit, match="commit: got def, allowed abc"):
        Journal("toy", {}, [0], resume=True).run(tasks, AT_ONCE, lambda task, outcome: None)
    ((_, _, entry),) = all_entries(clean_commit)
    assert list(entry["tasks"]) == ["a"]


def test_what_is_left_needs_the_wait_that_was_asked_for() -> None:
    assert "a budget of 42 s" in journal.continues([Task("a", 40.0, lambda: 1)], wait_s=2.0)


def test_entries_of_others_stay(clean_commit: Path) -> None:
    run("a", {"x": 1})
    run("b", {"x": 2})
    run("c", {"x": 1})
    (path,) = clean_commit.glob("*.json")
    assert sorted(sorted(entry["tasks"]) for entry in read_entries(path)) == [["a", "c"], ["b"]]


def one(value: float, share: float) -> dict[str, Any]:
    data = [{"part": "p", "name": "n", "unit": "ms", "samples": [value], "limit": None}]
    return {"others_share": share, "data": data}


def test_a_marked_round_is_left_out_of_medians() -> None:
    tasks = {"p/1": one(1.0, 0.0), "p/2": one(9.0, 0.06), "p/3": one(3.0, 0.05)}
    (found,) = measurements_of({"tasks": tasks})
    assert found.spread.median == 2.0
    assert found.has_quiet_round


def test_marked_rounds_are_shown_where_no_other_is() -> None:
    (found,) = measurements_of({"tasks": {"p/1": one(9.0, 0.5)}})
    assert list(found.samples) == [9.0]
    assert not found.has_quiet_round


def test_a_task_that_raises_stops_no_other(clean_commit: Path) -> None:
    tasks = [Task("a", 1.0, lambda: 1 // 0), Task("b", 1.0, lambda: 2)]
    for _ in range(2):
        own = Journal("toy", {}, [0], resume=True)
        assert own.run(tasks, AT_ONCE, lambda task, outcome: None) == []
        assert own.failures == {"a": "ZeroDivisionError: integer division or modulo by zero"}
        assert own.done["b"]["data"] == 2
    assert own.done["a"]["attempts"] == 1


def test_a_marked_task_is_repeated_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.5, 0.0, 0.9, 0.9, 0.9])
    monkeypatch.setattr("benchmarks.quiet.Usage.others_share", lambda self, cores: next(shares))
    own = Journal("toy", {}, [0], resume=True)
    own.run([Task(key, 1.0, lambda: 1, is_repeated=True) for key in "ab"], AT_ONCE, lambda task, outcome: None)
    assert [own.done[key]["attempts"] for key in "ab"] == [2, 3]


def test_the_wait_for_quiet_counts() -> None:
    assert Budget(90.0, wait_s=60.0).has(20.0)
    assert not Budget(90.0, wait_s=60.0).has(40.0)


def test_a_tree_with_changes_cannot_be_measured_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    assert journal.why_not_in_pieces() is None
    monkeypatch.setattr("benchmarks.results.commit", lambda: "abc-dirty")
    monkeypatch.setattr("benchmarks.results.changed_files", lambda: ["a.py", "b.py"])
    assert journal.why_not_in_pieces() == (
        "budget: got a tree with changes (a.py, b.py), allowed none: commit them, or leave `budget` out"
    )


def test_a_repeat_is_judged_by_its_window(clean_commit: Path) -> None:
    own = Journal("toy", {}, [0], resume=True)
    found = {"busy": {"others_share": 0.12}, "changed": {"others_share": 0.0, "has_changed": True}}
    found["clean"] = {"others_share": 0.0, "has_changed": False}
    tasks = [Task(key, 1.0, lambda data=data: data) for key, data in found.items()]  # type: ignore[misc]
    own.run(tasks, AT_ONCE, lambda task, outcome: None)
    assert [journal.is_marked(own.done[key]) for key in found] == [True, True, False]
