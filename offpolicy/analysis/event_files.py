"""Scalars of TensorBoard event files, whoever wrote them, as records: one per env step."""

# pyright: reportAttributeAccessIssue=false
# protobuf makes its classes when it is imported, where a type checker cannot see them

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from tensorboard.compat.proto import event_pb2
from tensorboard.util import tensor_util

PATTERN = "events.out.tfevents.*"
HEADER, FOOTER = 12, 4  # length and its checksum; checksum of the event
BEGINNING = 1024  # bytes: the version of the file and the start of a session take less than a hundred
Row = dict[str, float]


def event_paths(run: Path) -> list[Path]:
    """The event files of a directory in the order they were begun."""
    return sorted(run.glob(PATTERN), key=lambda path: (_stamp(path), path.name))


def read_event_rows(paths: list[Path]) -> list[Row]:
    """One mapping per step, ascending: the scalars written there, `step`, and `wall_s` since the first event.

    What a file ends with in the middle of an event is left out. Where a session starts anew (`SessionLog.START`, as
    writers with a purge step write it), what came before from that step on is dropped and the pause does not count.
    """
    rows: dict[int, Row] = {}
    first_s = last_s = math.nan
    for path in paths:
        for event in _events(path.read_bytes()):
            if math.isnan(first_s):
                first_s = last_s = event.wall_time
            if event.HasField("session_log") and event.session_log.status == event.session_log.START:
                rows = {step: row for step, row in rows.items() if step < event.step}
                first_s += max(0.0, event.wall_time - last_s)
            last_s = max(last_s, event.wall_time)
            scalars = dict(_scalars(event))
            if scalars:
                row = rows.setdefault(event.step, {"step": float(event.step), "wall_s": event.wall_time - first_s})
                row |= {tag: value for tag, value in scalars.items() if tag not in row}
    return [rows[step] for step in sorted(rows)]


def session_starts(paths: list[Path]) -> list[int]:
    """The steps from which processes that resumed a run wrote, ascending; of one that was gone back over, none.

    From the beginning of each file, where writers with a purge step say so (`SessionLog.START`).
    """
    starts: list[int] = []
    for path in paths:
        with path.open("rb") as file:
            beginning = file.read(BEGINNING)
        for event in _events(beginning):
            if event.HasField("session_log") and event.session_log.status == event.session_log.START:
                starts = [*(start for start in starts if start < event.step), event.step]
    return starts


def _stamp(path: Path) -> int:
    match = re.search(r"tfevents\.(\d+)", path.name)
    return int(match.group(1)) if match else 0


def _events(content: bytes) -> Iterator[Any]:  # Any: protobuf's classes exist at run time only
    """The whole events of a file. Its checksums are left alone: in Python they cost more than all the rest."""
    start = 0
    while start + HEADER <= len(content):
        (length,) = struct.unpack_from("<Q", content, start)
        end = start + HEADER + length
        if end + FOOTER > len(content):
            return
        try:
            yield event_pb2.Event.FromString(content[start + HEADER : end])
        except DecodeError:
            return
        start = end + FOOTER


def _scalars(event: Any) -> Iterator[tuple[str, float]]:
    """Tag and value of the numbers in an event: plain ones, and tensors of one number as TensorFlow 2 writes them."""
    for value in event.summary.value:
        if value.HasField("simple_value"):
            yield value.tag, float(value.simple_value)
        elif value.HasField("tensor") and value.metadata.plugin_data.plugin_name == "scalars":
            array = tensor_util.make_ndarray(value.tensor)
            if array.size == 1:
                yield value.tag, float(array.reshape(()))
