"""The page of runs, its charts, and the runs that it reports."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from offpolicy.analysis.page import page
from offpolicy.analysis.reported_run import read_reported
from tests.unit.analysis.finished_run import finished_run, goes_on_after_its_end


def record(number: int, **keys: Any) -> dict[str, Any]:
    """Record `number` of a learner that trains for 8 ms of 10, and of a collector that steps for 3 of 4."""
    return {
        "env_steps": 100 * number,
        "iteration": 100 * number,
        "wall_s": 2.0 * number,
        "train/n_updates": 100 * number,
        "timing/learner_train_ms": 8.0,
        "timing/learner_other_ms": 2.0,
        "timing/collector_env_step_ms": 3.0,
        "timing/collector_other_ms": 1.0,
    } | keys


def recorded_run(path: Path, *records: dict[str, Any]) -> Path:
    """A finished run with records, one for each of its 12 intervals unless others are given."""
    run = finished_run(path)
    rows = records or [record(number) for number in range(1, 13)]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return run


def test_a_run_that_went_on_after_its_end_is_not_reported_with_the_outcome_of_an_earlier_start(tmp_path: Path) -> None:
    path = recorded_run(tmp_path / "a")
    goes_on_after_its_end(path)
    (run,) = read_reported([str(path)])
    assert (run.summary, run.finished) == ({}, None)
    assert run.problem == f"run: {path} was started again, and has not ended since"


VOID = {"meta", "br", "img"}


class Balance(HTMLParser):
    """The tags that are open, and the names of all."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(*words: str) -> str:
    return page(read_reported(words))


def with_curve(path: Path, *, gain: float) -> Path:
    """A run whose evaluations rise, with the percentiles and versions that a run of today has."""
    rows = [
        record(number, **{"eval/mean_reward": gain * number, "eval/env_steps": 100 * number}) for number in range(1, 13)
    ]
    run = recorded_run(path, *rows)
    summary = json.loads((run / "summary.json").read_text())
    spread = {"whole": {"p50": 10.0, "p95": 12.5, "p99": 20.0, "max": 31.0}}
    summary["timing"]["learner"]["spread_ms"] = spread
    summary["versions"] = {"torch": "9.9.9"}
    (run / "summary.json").write_text(json.dumps(summary))
    return run


def test_a_page_of_two_runs_has_every_section_and_needs_no_network(tmp_path: Path) -> None:
    runs = [with_curve(tmp_path / name, gain=gain) for name, gain in (("one", 1.0), ("two", 2.0))]
    text = page_of(f"slow={runs[0]}", f"fast={runs[1]}")
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    assert balance.seen.isdisjoint({"script", "link", "img", "iframe"})
    assert re.findall(r"(?:https?:|src=|url\(|@import)", text) == []
    for title in (
        "Learning",
        "Where the time went",
        "The account over time",
        "How even it was",
        "Versions and machine",
    ):
        assert f"<h2>{title}</h2>" in text
    assert text.count("<polyline") == 4  # two runs over env steps, and over wall time
    assert "<td>12.50</td>" in text
    assert "<td>9.9.9</td><td>9.9.9</td>" in text


def test_numbers_are_those_of_the_run(tmp_path: Path) -> None:
    text = page_of(str(with_curve(tmp_path / "one", gain=1.0)))
    assert "<td>final return</td><td>12.0</td>" in text
    assert "<td>train, % of the learner&#x27;s wall</td><td>80.0</td>" in text
    assert "Train: 80.0 %" in text
    assert "min(I, T): 100.0" in text
    assert "<td>train 20 % faster</td><td>112</td><td>+18%</td>" in text


def test_an_unfinished_run_says_so_instead_of_a_verdict(tmp_path: Path) -> None:
    run = with_curve(tmp_path / "one", gain=1.0)
    (run / "summary.json").unlink()
    text = page_of(str(run))
    assert "<td>not ended</td>" in text
    assert "which is written when a run ends" in text
    assert "What a change would bring" not in text
