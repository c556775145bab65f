"""The records of a run: whole lines and events, one axis, the warm-up and the resumes recognised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter

from offpolicy.analysis.records import RunRecords, event_paths, read_event_rows, read_run
from offpolicy.errors import ConfigError


def record(steps: float, **values: float) -> dict[str, float]:
    """A record of ours at `steps` env steps, one iteration each; seconds as steps by ten."""
    base = {"env_steps": steps, "iteration": steps, "wall_s": steps / 10.0, "timing/learner_checkpoint_ms": 0.0}
    return base | {key.replace("__", "/"): value for key, value in values.items()}


def write(path: Path, *records: dict[str, float], torn: str = "") -> RunRecords:
    (path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records) + torn)
    return read_run(path)


def session(path: Path, index: int, *, after: int | None) -> None:
    """The event file of a process that has resumed `after` env steps; None: that has begun."""
    with (path / f"events.out.tfevents.{index}.host").open("wb") as file:
        writer = RecordWriter(file)
        writer.write(event_pb2.Event(file_version="brain.Event:2").SerializeToString())
        if after is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            writer.write(event_pb2.Event(step=after + 1, session_log=start).SerializeToString())


def test_a_line_that_is_no_whole_record_is_left_out(tmp_path: Path) -> None:
    for torn, steps in (('{"env_steps": 30, "wall_', [10.0]), (f"7\n[1]\n{json.dumps(record(30))}\n", [10.0, 30.0])):
        assert write(tmp_path, record(10), torn=torn).columns["env_steps"].tolist() == steps


def test_steps_that_a_resume_went_back_over_are_those_of_the_resumed_run(tmp_path: Path) -> None:
    before = [record(10, perf__utd=1.0), record(20, perf__utd=1.0), record(30, perf__utd=1.0)]
    run = write(tmp_path, *before, record(25, perf__utd=2.0))
    assert run.columns["env_steps"].tolist() == [10.0, 20.0, 25.0]
    assert run.columns["perf/utd"].tolist() == [1.0, 1.0, 2.0]


def test_seconds_continue_after_a_resume(tmp_path: Path) -> None:
    resumed = record(30) | {"wall_s": 0.5, "iteration": 5.0}
    run = write(tmp_path, record(10), record(20), resumed)
    assert run.columns["wall_s"].tolist() == [1.0, 2.0, 2.5]
    for index, start in ((1, None), (2, 200), (3, 300)):  # a process may record where it resumes
        session(tmp_path, index, after=start)
    rows = [(200, 90, 3.0), (200, 0, 4.0), (300, 50, 5.0), (400, 60, 6.0)]
    run = write(tmp_path, *(record(steps) | {"iteration": it, "wall_s": s} for steps, it, s in rows))
    assert run.columns["wall_s"].tolist() == [3.0, 7.0, 8.0, 14.0]


def test_a_resume_that_no_counter_shows_is_read_from_the_event_files(tmp_path: Path) -> None:
    session(tmp_path, 1, after=None)
    session(tmp_path, 2, after=150)
    rows = [(100, 50, 2.0), (200, 90, 3.0), (300, 140, 4.0)]
    run = write(
        tmp_path, *(record(steps, train__n_updates=it) | {"iteration": it, "wall_s": s} for steps, it, s in rows)
    )
    assert run.columns["wall_s"].tolist() == [2.0, 5.0, 6.0]
    assert run.is_steady.tolist() == [False, False, True]


def test_the_first_record_after_a_resume_is_a_warm_up_again(tmp_path: Path) -> None:
    rows = [record(10 * k, train__n_updates=float(k)) for k in range(1, 7)]
    rows[3]["iteration"] = 1.0  # a resumed process counts its own iterations
    rows[4]["iteration"], rows[5]["iteration"] = 11.0, 21.0
    assert write(tmp_path, *rows).is_steady.tolist() == [False, True, True, False, True, True]


def test_an_evaluation_counts_once_and_where_its_policy_was(tmp_path: Path) -> None:
    first = {"eval/mean_reward": -5.0, "eval/env_steps": 8.0}
    second = {"eval/mean_reward": -3.0, "eval/env_steps": 28.0}
    run = write(tmp_path, record(10) | first, record(20) | first, record(30) | second)
    curve = run.curve("eval/mean_reward")
    assert (curve.env_steps.tolist(), curve.value.tolist()) == ([8.0, 28.0], [-5.0, -3.0])
    assert curve.wall_s.tolist() == [1.0, 3.0]


def test_a_phase_is_weighed_by_iterations_and_a_rate_by_seconds(tmp_path: Path) -> None:
    rows = [record(steps, perf__iter_ms=1.0, perf__utd=1.0, perf__samples_per_sec=9.0) for steps in (10, 20, 60)]
    rows = [row | {"iteration": row["env_steps"] ** 2, "train/n_updates": 1.0} for row in rows]
    run = write(tmp_path, *rows)
    assert run.steady("perf/iter_ms").weight.tolist() == [300.0, 3200.0]
    assert run.steady("perf/samples_per_sec").weight.tolist() == [1.0, 4.0]
    assert run.steady("perf/utd").weight.tolist() == [10.0, 40.0]  # updates per env step


def test_what_is_per_active_second_is_all_by_all_active_seconds(tmp_path: Path) -> None:
    """900 env steps in 0.9 active seconds, and then in 9: 1,800 in 9.9. FLOP are those of as many updates."""
    keys = ("perf/collector_capacity", "perf/learner_capacity", "perf/flops_per_sec")
    rows = [record(900.0 * number, train__n_updates=900.0 * number + 1.0) for number in range(4)]
    rows[2] |= dict.fromkeys(keys, 1000.0)
    rows[3] |= dict.fromkeys(keys, 100.0)
    run = write(tmp_path, *rows)
    assert [run.steady(key).mean for key in keys] == pytest.approx([1800 / 9.9] * 3)


def test_the_evaluation_at_the_end_of_a_process_weighs_no_rate(tmp_path: Path) -> None:
    windows = [(10, 100.0), (20, 100.0), (50.3, 60.0), (0.2, 100.0), (10.2, 100.0), (40.5, 60.0)]
    steps = [100.0, 2100.0, 2118.0, 2138.0, 3138.0, 3156.0]  # 18 in the last 0.3 s before each evaluation of 30 s
    rows = [
        record(count, perf__steps_per_sec=rate, perf__updates_per_sec=rate, cpu__learner_pct=50.0, train__n_updates=9.0)
        | {"wall_s": wall_s}
        for count, (wall_s, rate) in zip(steps, windows, strict=True)
    ]
    run = write(tmp_path, *rows)
    assert run.is_last.tolist() == [False, False, True, False, False, True]
    for key in ("perf/steps_per_sec", "perf/updates_per_sec"):
        assert run.steady(key).weight.tolist() == pytest.approx([10.0, 0.3, 10.0, 0.3])
        assert run.steady(key).mean == pytest.approx(98.8, abs=0.1)
    assert run.steady("cpu/learner_pct").weight.tolist() == pytest.approx([10.0, 30.3, 10.0, 30.3])


def test_a_directory_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither metrics.jsonl nor events.out.tfevents"):
        read_run(tmp_path)
    for name in ("events.out.tfevents.1.x", "config.yaml", "metrics.jsonl"):
        (tmp_path / name).touch()
        with pytest.raises(ConfigError, match="has no records yet"):
            read_run(tmp_path)


def write_events(directory: Path, *events: dict[str, Any], suffix: str = "") -> None:
    """Events by keyword: `step`, `wall_time`, `scalars`, or what an event may hold itself."""
    writer = EventFileWriter(str(directory), filename_suffix=suffix)
    for given in events:
        rest = {key: value for key, value in given.items() if key != "scalars"}
        values = [summary_pb2.Summary.Value(tag=tag, simple_value=x) for tag, x in given.get("scalars", {}).items()]
        summary = {"summary": summary_pb2.Summary(value=values)} if values else {}
        writer.add_event(event_pb2.Event(**summary, **rest))
    writer.close()


def event_rows(directory: Path) -> list[dict[str, float]]:
    return read_event_rows(event_paths(directory))


STARTED_S = 2e9  # later than the event that a writer begins its file with


def scalars(step: int, wall_s: float, **values: float) -> dict[str, Any]:
    return {"step": step, "wall_time": STARTED_S + wall_s, "scalars": values}


def test_scalars_of_one_step_are_one_row(tmp_path: Path) -> None:
    write_events(tmp_path, scalars(20, 3.0, a=2.0), scalars(10, 0.0, a=1.0), scalars(20, 3.0, b=4.0))
    first, second = event_rows(tmp_path)
    assert {key: first[key] for key in ("step", "a")} == {"step": 10.0, "a": 1.0}
    assert {key: second[key] for key in ("step", "a", "b")} == {"step": 20.0, "a": 2.0, "b": 4.0}
    assert second["wall_s"] - first["wall_s"] == 3.0


def test_a_torn_event_file_keeps_the_events_before(tmp_path: Path) -> None:
    write_events(tmp_path, scalars(10, 0.0, a=1.0), scalars(20, 1.0, a=2.0))
    (path,) = event_paths(tmp_path)
    for lost in (1, 5, 20):
        path.write_bytes(path.read_bytes()[:-lost])
        assert [row["a"] for row in event_rows(tmp_path)] == [1.0]


def test_steps_that_a_restart_repeats_are_dropped_and_its_pause_does_not_count(tmp_path: Path) -> None:
    write_events(tmp_path, scalars(10, 0.0, a=1.0), scalars(20, 2.0, a=2.0), scalars(30, 4.0, a=3.0))
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    later = [{"step": 21, "wall_time": STARTED_S + 900.0, "session_log": start}, scalars(25, 901.0, a=9.0)]
    (path,) = event_paths(tmp_path)
    path.rename(tmp_path / "events.out.tfevents.0000000001.host")
    write_events(tmp_path, *later)
    found = event_rows(tmp_path)
    assert [(row["step"], row["a"]) for row in found] == [(10.0, 1.0), (20.0, 2.0), (25.0, 9.0)]
    assert found[-1]["wall_s"] - found[1]["wall_s"] == 3.0
