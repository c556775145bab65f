"""Scalars out of event files: whole events only, in order, and after a restart what the restart left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.scalar import metadata as scalar_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util import tensor_util

from offpolicy.analysis.event_files import event_paths, read_event_rows


def write(directory: Path, *events: dict[str, Any], suffix: str = "") -> None:
    """Events by keyword: `step`, `wall_time`, `scalars`, or what an event may hold itself."""
    writer = EventFileWriter(str(directory), filename_suffix=suffix)
    for given in events:
        rest = {key: value for key, value in given.items() if key != "scalars"}
        values = [summary_pb2.Summary.Value(tag=tag, simple_value=x) for tag, x in given.get("scalars", {}).items()]
        summary = {"summary": summary_pb2.Summary(value=values)} if values else {}
        writer.add_event(event_pb2.Event(**summary, **rest))
    writer.close()


def rows(directory: Path) -> list[dict[str, float]]:
    return read_event_rows(event_paths(directory))


STARTED_S = 2e9  # later than the event that a writer begins its file with


def scalars(step: int, wall_s: float, **values: float) -> dict[str, Any]:
    return {"step": step, "wall_time": STARTED_S + wall_s, "scalars": values}


def test_scalars_of_one_step_are_one_row(tmp_path: Path) -> None:
    write(tmp_path, scalars(20, 3.0, a=2.0), scalars(10, 0.0, a=1.0), scalars(20, 3.0, b=4.0))
    first, second = rows(tmp_path)
    assert {key: first[key] for key in ("step", "a")} == {"step": 10.0, "a": 1.0}
    assert {key: second[key] for key in ("step", "a", "b")} == {"step": 20.0, "a": 2.0, "b": 4.0}
    assert second["wall_s"] - first["wall_s"] == 3.0


def test_a_file_that_ends_within_an_event_keeps_the_ones_before(tmp_path: Path) -> None:
    write(tmp_path, scalars(10, 0.0, a=1.0), scalars(20, 1.0, a=2.0))
    (path,) = event_paths(tmp_path)
    for lost in (1, 5, 20):
        path.write_bytes(path.read_bytes()[:-lost])
        assert [row["a"] for row in rows(tmp_path)] == [1.0]


def test_what_a_restart_repeats_is_dropped_and_its_pause_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, scalars(10, 0.0, a=1.0), scalars(20, 2.0, a=2.0), scalars(30, 4.0, a=3.0))
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    later = [{"step": 21, "wall_time": STARTED_S + 900.0, "session_log": start}, scalars(25, 901.0, a=9.0)]
    (path,) = event_paths(tmp_path)
    path.rename(tmp_path / "events.out.tfevents.0000000001.host")
    write(tmp_path, *later)
    found = rows(tmp_path)
    assert [(row["step"], row["a"]) for row in found] == [(10.0, 1.0), (20.0, 2.0), (25.0, 9.0)]
    assert found[-1]["wall_s"] - found[1]["wall_s"] == 3.0


def test_tensors_of_one_number_are_scalars_too(tmp_path: Path) -> None:
    value = summary_pb2.Summary.Value(tag="a", tensor=tensor_util.make_tensor_proto(np.float32(1.5)))
    value.metadata.CopyFrom(scalar_metadata.create_summary_metadata("a", ""))
    text = summary_pb2.Summary.Value(tag="t", tensor=tensor_util.make_tensor_proto("no number"))
    write(tmp_path, {"step": 7, "wall_time": 1.0, "summary": summary_pb2.Summary(value=[value, text])})
    ((row),) = rows(tmp_path)
    assert {key: row[key] for key in row if key != "wall_s"} == {"step": 7.0, "a": 1.5}


def test_files_are_read_in_the_order_they_were_begun(tmp_path: Path) -> None:
    for name in ("events.out.tfevents.999.b", "events.out.tfevents.1000.a"):
        (tmp_path / name).touch()
    assert [path.name.split(".")[3] for path in event_paths(tmp_path)] == ["999", "1000"]
