"""The page of runs: its sections, and that it needs nothing else."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from offpolicy.analysis.page import page
from offpolicy.analysis.reported_run import read_reported
from tests.unit.analysis.test_reported_run import record, recorded_run

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


def test_a_change_below_the_error_of_the_runs_predictions_is_none(tmp_path: Path) -> None:
    run = with_curve(tmp_path / "one", gain=1.0)
    summary = json.loads((run / "summary.json").read_text())
    summary["rates"]["prediction_error"] = 0.2
    (run / "summary.json").write_text(json.dumps(summary))
    assert "<td>train 20 % faster</td><td>112</td><td>none</td>" in page_of(str(run))


def test_two_runs_are_told_apart_by_the_options_that_differ(tmp_path: Path) -> None:
    runs = [with_curve(tmp_path / name, gain=1.0) for name in ("one", "two")]
    config = (runs[1] / "config.yaml").read_text()
    (runs[1] / "config.yaml").write_text(config.replace("gamma: 0.99\n", "gamma: 0.95\n"))
    text = page_of(f"a={runs[0]}", f"b={runs[1]}")
    assert "<td>algo.gamma</td><td>0.99</td><td>0.95</td>" in text
    assert "algo.tau" not in text


def test_a_single_run_is_held_against_the_defaults(tmp_path: Path) -> None:
    text = page_of(str(with_curve(tmp_path / "one", gain=1.0)))
    assert "<td>collect.mode</td><td>overlap</td>" in text
    assert "algo.tau" not in text


def test_an_unfinished_run_says_so_instead_of_a_verdict(tmp_path: Path) -> None:
    run = with_curve(tmp_path / "one", gain=1.0)
    (run / "summary.json").unlink()
    text = page_of(str(run))
    assert "<td>not ended</td>" in text
    assert "which is written when a run ends" in text
    assert "What a change would bring" not in text


def test_labels_are_text_and_no_markup(tmp_path: Path) -> None:
    text = page_of(f"<b>x</b>={with_curve(tmp_path / 'one', gain=1.0)}")
    assert "<b>" not in text
    assert "&lt;b&gt;x" in text


@pytest.mark.parametrize(("mean", "std", "shown"), [(None, None, "–"), (-3.0, None, "-3.0"), (-3.0, 0.5, "-3.0 ± 0.5")])
def test_a_run_that_diverged_has_a_page(tmp_path: Path, mean: float | None, std: float | None, shown: str) -> None:
    rows = [record(number, **{"eval/mean_reward": float("inf"), "eval/env_steps": 100 * number}) for number in (1, 2)]
    run = recorded_run(tmp_path / "a", *rows)
    summary = json.loads((run / "summary.json").read_text())
    summary["eval"] = {"episodes": 5, "mean_reward": mean, "std_reward": std}
    (run / "summary.json").write_text(json.dumps(summary))
    assert f"<td>{shown}</td>" in page_of(str(run))


def test_a_return_that_is_no_number_is_left_open(tmp_path: Path) -> None:
    rows = [record(number, **{"eval/mean_reward": float("nan"), "eval/env_steps": 100 * number}) for number in (1, 2)]
    run = recorded_run(tmp_path / "a", *rows)
    (run / "summary.json").unlink()
    assert "nan" not in page_of(str(run))
