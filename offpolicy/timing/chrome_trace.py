"""A trace as trace viewers read it: the Trace Event Format of Chrome, which Perfetto and TensorBoard open too.

Every process and thread is named, all share one clock, an arrow leads from the publication of weights to whoever
applies them and from an episode's end to its hook, counters have a row of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

from offpolicy.files import atomic_file
from offpolicy.timing.trace_reader import Lane
from offpolicy.timing.trace_writer import ARROWS, Kind

Event = dict[str, Any]  # Any: numbers, text, and the mapping `args`


def write_chrome_trace(path: Path, lanes: Sequence[Lane], more: Iterable[Event] = ()) -> None:
    """Write the lanes, and events that are already in the format and on their clock, as JSON. Raises OSError.

    The file is replaced at once: a reader sees the old one or the new one.
    """
    start_ns = origin_ns(lanes)
    with atomic_file(path, durable=False) as file:
        text = TextIOWrapper(file, encoding="ascii")
        _write(text, lanes, start_ns, more)
        text.detach()  # flushed, and not closed before its time


def origin_ns(lanes: Sequence[Lane]) -> int:
    """The instant that counts as 0 in the file: the first record of all lanes."""
    return min(int(lane.records["at"].min()) for lane in lanes)


def _write(file: IO[str], lanes: Sequence[Lane], start_ns: int, more: Iterable[Event]) -> None:
    clock = {"clock": "CLOCK_MONOTONIC", "start_unix_ns": start_ns + lanes[0].unix_minus_monotonic_ns}
    file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(clock)},"traceEvents":[\n')
    separator = ""
    for text in _events(lanes, start_ns, more):
        file.write(separator + text)
        separator = ",\n"
    file.write("\n]}\n")


def _events(lanes: Sequence[Lane], start_ns: int, more: Iterable[Event]) -> Iterator[str]:
    for event in _names(lanes):
        yield json.dumps(event)
    for tid, lane in _with_tid(lanes):
        yield from _spans(lane, tid, start_ns)
    yield from _arrows(lanes, start_ns)
    for event in more:
        yield json.dumps(event)


def _with_tid(lanes: Sequence[Lane]) -> list[tuple[int, Lane]]:
    """Threads numbered inside their process."""
    seen: dict[int, int] = {}
    numbered: list[tuple[int, Lane]] = []
    for lane in lanes:
        seen[lane.pid] = seen.get(lane.pid, 0) + 1
        numbered.append((seen[lane.pid], lane))
    return numbered


def _names(lanes: Sequence[Lane]) -> Iterator[Event]:
    """Metadata: what processes and threads are called and in which order they are shown."""
    for place, (tid, lane) in enumerate(_with_tid(lanes)):
        where = {"ph": "M", "pid": lane.pid, "tid": tid}
        if tid == 1:
            yield {**where, "name": "process_name", "args": {"name": lane.process}}
            yield {**where, "name": "process_sort_index", "args": {"sort_index": place}}
        yield {**where, "name": "thread_name", "args": {"name": lane.thread}}
        yield {**where, "name": "thread_sort_index", "args": {"sort_index": tid}}


def us(ns: int) -> str:
    """Nanoseconds as microseconds, exactly."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _spans(lane: Lane, tid: int, start_ns: int) -> Iterator[str]:
    """Spans and counters. Text, not dictionaries: there can be two million."""
    place = f'"pid":{lane.pid},"tid":{tid}'
    names = [json.dumps(name) for name in lane.names]
    for at, value, name, kind, _ in lane.records.tolist():
        when = us(at - start_ns)
        if kind == Kind.SPAN:
            yield f'{{"ph":"X",{place},"ts":{when},"dur":{us(value)},"name":{names[name]}}}'
        elif kind == Kind.COUNTER:
            level = f"{{{names[name]}:{value / 1000.0:g}}}"
            yield f'{{"ph":"C",{place},"ts":{when},"name":{names[name]},"args":{level}}}'


def _arrows(lanes: Sequence[Lane], start_ns: int) -> Iterator[str]:
    """From where something was handed over to each place where it was taken; the name tells its number."""
    arrow_id = 0
    for begins, ends, what in ARROWS:
        given = {
            number: (f'"pid":{lane.pid},"tid":{tid}', at)
            for tid, lane in _with_tid(lanes)
            for at, number in lane.marks(begins)
        }
        for tid, lane in _with_tid(lanes):
            for at, number in lane.marks(ends):
                if number not in given:
                    continue
                place, given_at = given[number]
                arrow_id += 1
                arrow = f'"cat":"{what}","name":"{what} {number}","id":{arrow_id}'
                yield f'{{"ph":"s",{place},"ts":{us(given_at - start_ns)},{arrow}}}'
                yield f'{{"ph":"f","bp":"e","pid":{lane.pid},"tid":{tid},"ts":{us(at - start_ns)},{arrow}}}'
