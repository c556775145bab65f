"""A trace as trace viewers read it: the Trace Event Format of Chrome, which Perfetto and TensorBoard open too.

Every process and thread is named, all share one clock, an arrow leads from the publication of weights to each process
that applies them, counters have rows. torch.profiler, attached for a window of a learner's iterations, adds its events
on the same clock.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from offpolicy.analysis.trace_reader import ThreadTrack, read_tracks
from offpolicy.errors import ConfigError
from offpolicy.files import atomic_file
from offpolicy.timing.trace_writer import PROFILE, PROFILER_CLOCK, Kind, Mark

TRACE_JSON = "trace.json"
NAMES_OF_PROCESSES = ("process_name", "process_labels", "process_sort_index")

Event = dict[str, Any]  # Any: numbers, text, and the mapping `args`


def export_trace(directory: Path, run_dir: Path) -> bool:
    """Writes `trace.json` from the tracks of one start; one without an iteration does not replace that of another.

    Returns True if it was written. Raises OSError, or `ConfigError` if nothing was traced.
    """
    path, tracks = run_dir / TRACE_JSON, read_tracks(directory)
    if path.exists() and not any(track.marks(Mark.ITERATION) for track in tracks):
        return False
    profile = read_profile(directory / PROFILE, _origin_ns(tracks), {track.pid for track in tracks})
    write_chrome_trace(path, tracks, profile)
    return True


def read_profile(path: Path, origin_ns: int, pids: set[int]) -> Iterator[Event]:
    """Yields the events of a profile, if there is one, on a clock on which `origin_ns` is 0.

    The processes `pids` keep their names. Raises `ConfigError` if the file is damaged.
    """
    if not path.is_file():
        return
    try:
        events = json.loads(path.read_text())["traceEvents"]
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}); delete it") from None
    marks = [
        event for event in events if str(event.get("name", "")).startswith(PROFILER_CLOCK) and event.get("ph") == "X"
    ]
    if not marks:
        return
    # A mark starts a little after the clock was read for it; the one with the least delay gives the shift.
    shift_us = max((int(mark["name"].removeprefix(PROFILER_CLOCK)) - origin_ns) / 1000.0 - mark["ts"] for mark in marks)
    for event in events:
        if event.get("ph") == "M" and event.get("name") in NAMES_OF_PROCESSES and event.get("pid") in pids:
            continue
        yield {**event, "ts": event["ts"] + shift_us} if "ts" in event else event


def write_chrome_trace(path: Path, tracks: Sequence[ThreadTrack], more: Iterable[Event] = ()) -> None:
    """Writes the tracks, and events that are already in the format and on their clock, as JSON. Raises OSError.

    The file is replaced at once: a reader sees the old one or the new one.
    """
    start_ns, separator = _origin_ns(tracks), ""
    clock = {"clock": "CLOCK_MONOTONIC", "start_unix_ns": start_ns + tracks[0].unix_minus_monotonic_ns}
    with atomic_file(path, durable=False) as file:
        text = TextIOWrapper(file, encoding="ascii")
        text.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(clock)},"traceEvents":[\n')
        for event in _events(tracks, start_ns, more):
            text.write(separator + event)
            separator = ",\n"
        text.write("\n]}\n")
        text.detach()  # flushed, and closed only by the one who opened it


def _origin_ns(tracks: Sequence[ThreadTrack]) -> int:
    """Returns the instant that counts as 0 in the file: that of the first record of all tracks."""
    return min(int(track.records["at"].min()) for track in tracks)


def _events(tracks: Sequence[ThreadTrack], start_ns: int, more: Iterable[Event]) -> Iterator[str]:
    """Yields the names of processes and threads, the order in which they are shown, and what happened."""
    threads = Counter[int]()  # seen so far, by process
    places: list[str] = []
    published: dict[int, tuple[str, int]] = {}  # where and when, by version
    for number, track in enumerate(tracks):
        threads[track.pid] += 1
        tid = threads[track.pid]
        where = {"ph": "M", "pid": track.pid, "tid": tid}
        if tid == 1:
            yield json.dumps({**where, "name": "process_name", "args": {"name": track.process}})
            yield json.dumps({**where, "name": "process_sort_index", "args": {"sort_index": number}})
        yield json.dumps({**where, "name": "thread_name", "args": {"name": track.thread}})
        yield json.dumps({**where, "name": "thread_sort_index", "args": {"sort_index": tid}})
        places.append(f'"pid":{track.pid},"tid":{tid}')
        published |= {version: (places[-1], at) for at, version in track.marks(Mark.PUBLISHED)}
    arrows = itertools.count(1)
    for place, track in zip(places, tracks, strict=True):
        names = [json.dumps(name) for name in track.names]
        for at, value, name, kind, _ in track.records.tolist():  # as text, not dictionaries: there can be two million
            when = us(at - start_ns)
            if kind == Kind.SPAN:
                yield f'{{"ph":"X",{place},"ts":{when},"dur":{us(value)},"name":{names[name]}}}'
            elif kind == Kind.COUNTER:
                level = f"{{{names[name]}:{value / 1000.0:g}}}"
                yield f'{{"ph":"C",{place},"ts":{when},"name":{names[name]},"args":{level}}}'
            elif track.names[name] == Mark.APPLIED and value in published:
                begins, begins_at = published[value]
                arrow = f'"cat":"weights","name":"weights {value}","id":{next(arrows)}'
                yield f'{{"ph":"s",{begins},"ts":{us(begins_at - start_ns)},{arrow}}}'
                yield f'{{"ph":"f","bp":"e",{place},"ts":{when},{arrow}}}'
    yield from map(json.dumps, more)


def us(ns: int) -> str:
    """Returns nanoseconds as microseconds, exactly."""
    return f"{ns // 1000}.{ns % 1000:03d}"
