"""Comparisons: rows and verdicts, what is left open, and their tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from offpolicy.analysis.bootstrap import Interval
from offpolicy.analysis.compare import Cell, ComparedRow, ComparedSection, sections
from offpolicy.analysis.learning_curves import first_reach
from offpolicy.analysis.report import Report, markdown, quantity
from offpolicy.analysis.runs import LabelledRuns, read_runs

MakeRun = Callable[..., Path]


def rows(compared: list[LabelledRuns], reference: float | None = None) -> dict[str, ComparedRow]:
    return {row.title: row for section in sections(compared, reference) for row in section.rows}


def read(*words: str | Path) -> list[LabelledRuns]:
    return read_runs([str(word) for word in words])


def test_less_time_is_faster_and_less_throughput_slower(make_run: MakeRun) -> None:
    found = rows(read(make_run("one"), make_run("two", train=13.0)))
    assert [found[title].cells[1].verdict for title in ("Train", "Iter Wall", "thru, env steps/s")] == ["slower"] * 3
    found = rows(read(make_run("three"), make_run("four", train=7.0)))
    assert [found[title].cells[1].verdict for title in ("Train", "Iter Wall", "thru, env steps/s")] == ["faster"] * 3
    assert found["Train"].cells[1].change is not None
    assert found["Train"].cells[1].change.value == pytest.approx(-0.3, abs=0.02)


def test_equal_runs_are_noise(make_run: MakeRun) -> None:
    found = rows(read(make_run("one"), make_run("two")))
    assert {found[title].cells[1].verdict for title in ("Train", "Iter Wall", "Collector Wait")} == {"noise"}
    assert "Checkpoint" not in found, "which is zero in all runs"


def test_a_sure_change_that_does_not_matter_is_noise(make_run: MakeRun) -> None:
    small = {"timing/learner_log_ms": 0.010}
    found = rows(read(make_run("one", extra=small), make_run("two", extra={"timing/learner_log_ms": 0.020})))
    assert found["Log"].cells[1].verdict == "noise", "0.01 ms of an iteration of 12 ms"
    found = rows(read(make_run("three"), make_run("four", extra={"timing/learner_log_ms": 2.0})))
    assert found["Log"].cells[0].verdict == ""


def test_returns_of_one_run_that_share_their_episodes_get_no_verdict(make_run: MakeRun) -> None:
    episodes = {"rollout/episodes": 30.0}
    one, two = make_run("one", extra=episodes), make_run("two", returns=np.zeros(40), extra=episodes)
    cell = rows(read(one, two))["training return, end"].cells[1]
    assert (cell.value, cell.change, cell.verdict) == (0.0, None, "")


def test_returns_a_hundred_episodes_apart_are_drawn(make_run: MakeRun) -> None:
    path = make_run("counted", count=80, returns=np.arange(80.0))
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps(record | {"rollout/episodes": 50.0 * index}) for index, record in enumerate(records)]
    (path / "metrics.jsonl").write_text("\n".join(lines))
    found = rows(read(path, f"again={path}"))["training return, end"].cells
    assert found[0].value == np.arange(79.0, 59.0, -2.0).mean()
    assert found[1].verdict == "noise"


def test_returns_are_compared_up_to_where_all_runs_have_got(make_run: MakeRun) -> None:
    long = make_run("long", count=80, returns=np.arange(80.0))
    cells = rows(read(make_run("short", returns=np.arange(40.0)), long))["training return, end"].cells
    assert cells[0].value == cells[1].value == np.arange(30.0, 40.0).mean()


def test_the_way_to_a_score_is_in_env_steps_and_in_seconds(make_run: MakeRun) -> None:
    found = rows(read(make_run("one"), make_run("two")), reference=-30.5)
    assert found["env steps to -30.5"].cells[0].value == pytest.approx(2050.0)
    assert found["wall seconds to -30.5"].cells[0].value == pytest.approx(20.5)
    assert found["env steps to -30.5"].cells[1].verdict == "", "one run on each side"


def test_a_score_that_a_run_never_reached_says_so(make_run: MakeRun) -> None:
    seeds = [f"b={make_run(f's{seed}', returns=np.full(40, float(seed)), changes={'seed': seed})}" for seed in (0, 9)]
    cells = rows(read(make_run("one"), *seeds), reference=5.0)["env steps to 5"].cells
    assert [cell.remark for cell in cells] == ["not reached", "1 of 2 runs"]


@pytest.mark.promise("metric-names")
def test_an_old_mixed_wait_is_compared_with_the_same_sum_of_ours(make_run: MakeRun) -> None:
    old = make_run("old")
    keys = {"timing/learner_wait_ms": 4.0, "perf/iter_ms": 9.0, "timing/learner_train_ms": 7.0}
    records = [keys | {"env_steps": 10.0 * k, "wall_s": float(k)} for k in range(1, 30)]
    (old / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    found = rows(read(make_run("ours"), old))
    assert [cell.value for cell in found["Waits, mixed"].cells] == [2.0, 4.0]
    assert found["Waits, mixed"].cells[1].verdict == "slower"
    assert np.isnan(found["Collector Wait"].cells[1].value)
    assert np.isnan(found["Iter Wall"].cells[1].value), "its iteration left the wait out"
    assert found["Pipeline (no waits)"].cells[1].value == 9.0


def test_no_time_is_judged_where_a_run_was_without_its_cores(make_run: MakeRun) -> None:
    busy = {"cpu/learner_descheduled_pct": 87.0, "cpu/collector_descheduled_pct": 3.0}
    for first, second in ((None, busy), (busy, None)):
        name = "a" if first else "b"
        quiet, other = make_run(f"{name}1", extra=first), make_run(f"{name}2", train=18.0, extra=second)
        found = rows(read(quiet, other))
        assert {found[title].cells[1].verdict for title in ("Train", "Iter Wall", "thru, env steps/s")} == {"busy"}
        assert found["Train"].cells[1].change is not None, "the numbers stay"
    assert found["Learner"].cells[0].value == 87.0, "the share is a row"
    assert found["Learner"].cells[1].verdict == "", "a share of time is no verdict on time"


def test_higher_returns_of_three_seeds_are_better_though_a_run_was_without_its_cores(make_run: MakeRun) -> None:
    words = [
        f"{label}={make_run(f'{label}{seed}', returns=np.full(40, level + seed), changes={'seed': seed}, extra=busy)}"
        for label, level, busy in (("low", -50.0, {"cpu/learner_descheduled_pct": 50.0}), ("high", 0.0, None))
        for seed in range(3)
    ]
    found = rows(read(*words), reference=-49.0)
    cell = found["training return, end"].cells[1]
    assert (cell.value, cell.verdict) == (1.0, "better")
    assert cell.change is not None
    assert cell.change.value == 50.0
    assert found["wall seconds to -49"].cells[0].remark == "2 of 3 runs"


def test_a_row_of_markdown_has_one_cell_per_label() -> None:
    row = ComparedRow("Train", (Cell(10.0), Cell(5.0, Interval(-0.5, -0.6, -0.4), "faster")))
    text = markdown(Report(("a", "b|c"), (ComparedSection("ms", [row]),), ("a | note",)), None)
    assert "| ms | a | b\\|c |\n| --- | ---: | ---: |\n| Train | 10.0 | 5.000 -50% [-60, -40] **faster** |" in text
    assert "- a \\| note" in text


def test_a_quantity_has_few_characters() -> None:
    texts = {0.0012: "0.001", 123.456: "123.5", 12345.6: "12,346", 999_999.7: "1M", -9.996e11: "-1T", np.nan: "-"}
    assert [quantity(value) for value in texts] == list(texts.values())


def test_a_score_between_two_points_is_reached_between_them() -> None:
    curve = np.array([10.0, 20.0, 30.0]), np.array([0.0, 10.0, 2.0])
    assert [first_reach(*curve, score) for score in (0.0, 5.0, 10.0)] == [10.0, 15.0, 20.0]
    assert np.isnan(first_reach(*curve, 11.0))
