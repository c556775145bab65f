"""Rows and verdicts: what is called faster, better or noise, and what is left open."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from offpolicy.analysis.compare import Row, sections
from offpolicy.analysis.runs import LabelledRuns, read_runs

MakeRun = Callable[..., Path]


def rows(compared: list[LabelledRuns], reference: float | None = None) -> dict[str, Row]:
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


def test_a_sure_change_that_does_not_matter_is_noise(make_run: MakeRun) -> None:
    small = {"timing/learner_log_ms": 0.010}
    found = rows(read(make_run("one", extra=small), make_run("two", extra={"timing/learner_log_ms": 0.020})))
    assert found["Log"].cells[1].verdict == "noise", "0.01 ms of an iteration of 12 ms"
    found = rows(read(make_run("three"), make_run("four", extra={"timing/learner_log_ms": 2.0})))
    assert found["Log"].cells[0].verdict == ""


def test_a_phase_that_is_zero_in_all_runs_is_left_out(make_run: MakeRun) -> None:
    assert "Checkpoint" not in rows(read(make_run("one"), make_run("two")))


def test_three_seeds_with_higher_returns_are_better(make_run: MakeRun) -> None:
    low = [
        f"low={make_run(f'l{seed}', returns=np.full(40, -50.0 + seed), changes={'seed': seed})}" for seed in range(3)
    ]
    high = [
        f"high={make_run(f'h{seed}', returns=np.full(40, 0.0 + seed), changes={'seed': seed})}" for seed in range(3)
    ]
    cell = rows(read(*low, *high))["training return, end"].cells[1]
    assert (cell.value, cell.verdict) == (1.0, "better")
    assert cell.change is not None
    assert cell.change.value == 50.0


def test_returns_that_differ_by_less_than_a_fiftieth_may_be_better(make_run: MakeRun) -> None:
    words = [
        f"{label}={make_run(f'{label}{seed}', returns=np.full(40, level + 0.01 * seed), changes={'seed': seed})}"
        for label, level in (("low", 100.0), ("high", 101.0))
        for seed in range(3)
    ]
    assert rows(read(*words))["training return, end"].cells[1].verdict == "better"


def test_returns_of_one_run_that_share_their_episodes_get_no_verdict(make_run: MakeRun) -> None:
    episodes = {"rollout/episodes": 30.0}
    one, two = make_run("one", extra=episodes), make_run("two", returns=np.zeros(40), extra=episodes)
    cell = rows(read(one, two))["training return, end"].cells[1]
    assert (cell.value, cell.change, cell.verdict) == (0.0, None, "")


def test_means_over_episodes_that_are_not_counted_get_no_verdict_from_one_run(make_run: MakeRun) -> None:
    cell = rows(read(make_run("one"), make_run("two", returns=np.arange(40.0))))["training return, end"].cells[1]
    assert (cell.value, cell.change, cell.verdict) == (34.5, None, "")


def test_returns_a_hundred_episodes_apart_are_drawn(make_run: MakeRun) -> None:
    path = make_run("counted", count=80, returns=np.arange(80.0))
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps(record | {"rollout/episodes": 50.0 * index}) for index, record in enumerate(records)]
    (path / "metrics.jsonl").write_text("\n".join(lines))
    found = rows(read(path, f"again={path}"))["training return, end"].cells
    assert found[0].value == np.arange(79.0, 59.0, -2.0).mean()
    assert found[1].verdict == "noise"


def test_returns_before_a_resume_are_drawn_too(make_run: MakeRun) -> None:
    """The episodes are counted anew from there."""
    path = make_run("resumed", count=80, returns=np.arange(80.0))
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    counts = [50.0 * (index if index < 76 else index - 76) for index in range(80)]
    lines = [json.dumps(each | {"rollout/episodes": count}) for each, count in zip(records, counts, strict=True)]
    (path / "metrics.jsonl").write_text("\n".join(lines))
    found = rows(read(path, f"again={path}"))["training return, end"].cells
    assert found[0].value == np.arange(79.0, 59.0, -2.0).mean()


def test_returns_are_drawn_though_the_first_records_have_no_mean_yet(make_run: MakeRun) -> None:
    path, key = make_run("late", count=80, returns=np.arange(80.0)), "rollout/ep_rew_mean"
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    counted = [record | {"rollout/episodes": 50.0 * index} for index, record in enumerate(records)]
    for record in counted[:3]:
        del record[key]  # no episode has ended
    (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, counted)))
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


def test_without_a_value_in_the_common_range_there_is_no_score_to_reach(make_run: MakeRun) -> None:
    late, key = make_run("late", count=80), "rollout/ep_rew_mean"
    records = [json.loads(line) for line in (late / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps(record | {key: record[key] if index > 50 else None}) for index, record in enumerate(records)]
    (late / "metrics.jsonl").write_text("\n".join(lines))
    found = rows(read(make_run("early", count=20), late))
    assert [title for title in found if "steps to" in title] == []
    assert np.isnan(found["training return, end"].cells[1].value)


def test_without_a_score_that_all_labels_reach_there_is_none_to_reach(make_run: MakeRun) -> None:
    low, high = make_run("low", returns=-100.0 + np.arange(40.0)), make_run("high", returns=np.arange(40.0))
    found = rows(read(low, high))
    assert [title for title in found if "steps to" in title] == []
    assert "env steps to 20" in rows(read(low, high), reference=20.0), "a score that is asked for has a row"


def test_an_old_mixed_wait_is_held_against_the_same_sum_of_ours(make_run: MakeRun) -> None:
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


def test_the_learner_wait_of_an_older_version_is_held_against_the_sum_of_what_was_in_it(make_run: MakeRun) -> None:
    cycle, parts = "perf/collector_cycle_ms", {"learner_wait": 2.0, "handshake": 1.5, "snapshot": 0.5}
    before = {"timing/collector_learner_wait_ms": 5.0, "timing/learner_checkpoint_ms": 0.1, cycle: 9.0}
    now = {f"timing/collector_{phase}_ms": value for phase, value in parts.items()} | {cycle: 8.0}
    runs = [make_run("before"), make_run("now")]
    for run, phases in zip(runs, (before, now), strict=True):
        records = [phases | {"env_steps": 10.0 * k, "wall_s": float(k), "train/n_updates": k} for k in range(1, 30)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    compared = read(*runs)
    found = rows(compared)
    assert [cell.value for cell in found["Waits for learner, mixed"].cells] == [5.0, 4.0]
    assert found["Waits for learner, mixed"].cells[1].verdict == "faster"
    assert np.isnan(found["Waits for learner"].cells[0].value)
    assert found["Waits for learner"].cells[1].value == 2.0
    assert [
        section.title for section in sections(compared, None) if found["Waits for learner, mixed"] in section.rows
    ] == ["Collector, ms/vec step"]


def test_other_amounts_of_work_per_iteration_have_a_row(make_run: MakeRun) -> None:
    compared = read(make_run("one"), make_run("two"))
    assert "env steps/iteration" not in rows(compared)
    wide = make_run("wide")
    records = [json.loads(line) for line in (wide / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps(record | {"iteration": record["iteration"] / 4}) for record in records]
    (wide / "metrics.jsonl").write_text("\n".join(lines))
    found = rows([*compared, *read(make_run("three"), wide)[1:]])["env steps/iteration"]
    assert [cell.value for cell in found.cells] == [1.0, 1.0, 4.0]


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


def test_runs_on_their_own_cores_are_judged(make_run: MakeRun) -> None:
    some = {"cpu/learner_descheduled_pct": 9.0, "cpu/collector_descheduled_pct": 9.0}
    found = rows(read(make_run("one", extra=some), make_run("two", train=18.0, extra=some)))
    assert found["Train"].cells[1].verdict == "slower"


def test_returns_of_runs_without_their_cores_are_judged(make_run: MakeRun) -> None:
    words = [
        f"{label}={make_run(f'{label}{seed}', returns=np.full(40, level + seed), changes={'seed': seed}, extra=busy)}"
        for label, level, busy in (("low", -50.0, {"cpu/learner_descheduled_pct": 50.0}), ("high", 0.0, None))
        for seed in range(3)
    ]
    found = rows(read(*words), reference=-49.0)
    assert found["training return, end"].cells[1].verdict == "better"
    assert found["wall seconds to -49"].cells[0].remark == "2 of 3 runs"


UNILAB = {"timing/learner_weight_sync_ms": 0.5, "timing/learner_collector_wait_ms": 1.0, "perf/iter_ms": 12.0}


def unilab(path: Path, train: float, **keys: float) -> Path:
    """A run of UniLab: from #636 on, with `timing/learner_wait_ms` before it."""
    noise = np.random.default_rng(int(train)).normal(size=40)
    records = [
        {"timing/learner_train_ms": train + 0.1 * noise[k], "env_steps": 10.0 * k, "wall_s": float(k), **keys}
        for k in range(1, 40)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("first_is_old", [True, False])
def test_train_from_before_the_split_gets_no_verdict_against_train_alone(make_run: MakeRun, first_is_old: bool) -> None:
    before = {"timing/learner_wait_ms": 4.0, "perf/learner_pipeline_ms": 9.0, "distributed/world_size": 2.0}
    old, new = unilab(make_run("old"), 12.0, **before), unilab(make_run("new"), 10.0, **UNILAB)
    found = rows(read(old, new) if first_is_old else read(new, old))
    assert found["Train"].cells[1].verdict == "unlike"
    assert found["Train"].cells[1].change is not None


def test_train_from_before_the_split_is_judged_between_its_own_kind_and_on_one_gpu(make_run: MakeRun) -> None:
    before = {"timing/learner_wait_ms": 4.0, "perf/learner_pipeline_ms": 9.0}
    old, older = (unilab(make_run(f"{train}"), train, **before) for train in (12.0, 10.0))
    assert rows(read(old, older))["Train"].cells[1].verdict == "faster"
    alone = unilab(make_run("alone"), 12.0, **before, **{"distributed/world_size": 1.0})
    assert rows(read(alone, unilab(make_run("new"), 10.0, **UNILAB)))["Train"].cells[1].verdict == "faster"


def test_a_sure_change_of_a_return_that_does_not_matter_is_noise(make_run: MakeRun) -> None:
    words = [
        f"{label}={make_run(f'{label}{seed}', returns=-1507.0 - less + 0.001 * seed + drop, changes={'seed': seed})}"
        for label, less in (("first", 0.0), ("second", 0.3))
        for seed in range(3)
        for drop in (np.append(np.full(30, -100.0), np.zeros(10)),)
    ]
    cell = rows(read(*words))["training return, end"].cells[1]
    assert cell.change is not None
    assert cell.change.high < 0.0, "it is sure that it is less"
    assert cell.verdict == "noise"


def test_no_time_is_judged_where_a_run_was_slowed_on_purpose(make_run: MakeRun) -> None:
    slowed = make_run("two", train=18.0, changes={"timing": {"virtual_speedup": True}})
    found = rows(read(make_run("one"), slowed))
    assert {found[title].cells[1].verdict for title in ("Train", "Iter Wall", "thru, env steps/s")} == {"slowed"}
