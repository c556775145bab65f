"""Reading the lanes of a trace: what each thread did, how long its phases were, how far two sides overlapped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offpolicy.errors import ConfigError
from offpolicy.timing.phases import LEARNER_WAITS, CollectorPhase
from offpolicy.timing.trace_writer import (
    COUNT,
    COUNT_AT,
    HEADER_NBYTES,
    LENGTH_AT,
    MAGIC,
    RECORD,
    SUFFIX,
    TEXT_AT,
    Kind,
)

Times = NDArray[np.int64]
RECORD_TYPE = np.dtype([("at", "<i8"), ("value", "<i8"), ("name", "<u2"), ("kind", "<u2"), ("unused", "<u4")])
# A side that is in one of these is not working.
WAITS = frozenset((*LEARNER_WAITS, CollectorPhase.LEARNER_WAIT))


@dataclass(frozen=True, slots=True)
class Lane:
    """The records of one thread, by time. `num_lost` older ones were replaced by newer."""

    name: str  # of the file: collector-0
    process: str
    thread: str
    pid: int
    names: tuple[str, ...]
    records: NDArray[np.void]
    num_lost: int
    unix_minus_monotonic_ns: int

    def spans(self, *phases: str) -> tuple[Times, Times]:
        """Starts and stops, in ns, of the spans of these names; of all names where none is given."""
        of_name = np.isin(self.records["name"], [self.names.index(phase) for phase in phases])
        chosen = self.records[(self.records["kind"] == Kind.SPAN) & (of_name | (not phases))]
        return chosen["at"], chosen["at"] + chosen["value"]

    def marks(self, name: str) -> list[tuple[int, int]]:
        """Instants, in ns, and values of a mark."""
        if name not in self.names:
            return []
        chosen = (self.records["kind"] == Kind.MARK) & (self.records["name"] == self.names.index(name))
        return [(int(at), int(value)) for at, value in self.records[chosen][["at", "value"]].tolist()]

    def work(self) -> tuple[Times, Times]:
        """The spans in which the thread worked rather than waited."""
        return self.spans(*(name for name in self.names if name not in WAITS))

    @property
    def has_spans(self) -> bool:
        """Whether the thread has been in any phase; without, it has no window."""
        return len(self.spans()[0]) > 0

    @property
    def window(self) -> tuple[int, int]:
        """From the first record that is left to the end of the last."""
        starts, stops = self.spans()
        return int(starts.min()), int(stops.max())


def read_lanes(directory: Path) -> list[Lane]:
    """The lanes of a trace that hold something, learners first. Raises `ConfigError` if there is none."""
    lanes = [lane for path in sorted(directory.glob(f"*{SUFFIX}")) if (lane := _read(path)) is not None]
    if not lanes:
        raise ConfigError(f"run: {directory} holds no trace; train with timing.trace=true")
    return sorted(lanes, key=_place)


def _in_order(ring: NDArray[np.void], written: int, written_since: int) -> NDArray[np.void]:
    """The records of a ring, oldest first, without those that were replaced, or being replaced, while it was read."""
    if written <= len(ring):
        return ring
    replaced = min(written_since - written + 1, len(ring))
    return np.roll(ring, -(written % len(ring)))[replaced:]


def shrink_lanes(directory: Path) -> None:
    """Give back the disk that a run has reserved and not needed.

    Only when no process has a lane open any more: one that writes into what was cut off is killed.
    """
    for path in directory.glob(f"*{SUFFIX}"):
        with path.open("r+b") as file:
            header = file.read(HEADER_NBYTES)
            (written,) = COUNT.unpack_from(header, COUNT_AT)
            if HEADER_NBYTES + written * RECORD.size < path.stat().st_size:
                file.truncate(HEADER_NBYTES + written * RECORD.size)
        if not header.startswith(MAGIC):
            path.unlink()


ORDER = ("learner", "collector", "evaluator", "supervisor")


def _place(lane: Lane) -> tuple[int, int, bool]:
    role, _, index = lane.process.partition(" ")
    return ORDER.index(role) if role in ORDER else len(ORDER), int(index or 0), lane.thread != lane.process


def _read(path: Path) -> Lane | None:
    """None for a lane that nobody opened, or that is empty."""
    with path.open("rb") as file:
        header = file.read(HEADER_NBYTES)
        if not header.startswith(MAGIC):
            return None
        (written,), (length,) = COUNT.unpack_from(header, COUNT_AT), COUNT.unpack_from(header, LENGTH_AT)
        ring = np.fromfile(file, dtype=RECORD_TYPE, count=written)  # as many as are there
        file.seek(COUNT_AT)
        (written_since,) = COUNT.unpack(file.read(COUNT.size))
    told = json.loads(header[TEXT_AT : TEXT_AT + length])
    records = _in_order(ring, written, written_since)
    if len(records) == 0:
        return None
    return Lane(
        name=path.name.removesuffix(SUFFIX),
        process=told["process"],
        thread=told["thread"],
        pid=told["pid"],
        names=tuple(told["names"]),
        records=records,
        num_lost=written - len(records),
        unix_minus_monotonic_ns=told["unix_minus_monotonic_ns"],
    )


def union(spans: Sequence[tuple[Times, Times]], window: tuple[int, int]) -> tuple[Times, Times]:
    """The times, inside the window, that any of the spans covers, as spans that do not touch each other."""
    starts = np.clip(np.concatenate([start for start, _ in spans]), *window)
    stops = np.clip(np.concatenate([stop for _, stop in spans]), *window)
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    if len(starts) == 0:
        return starts, stops
    is_new = np.concatenate(([True], starts[1:] > stops[:-1]))
    return starts[is_new], stops[np.append(np.flatnonzero(is_new)[1:] - 1, len(stops) - 1)]


def total_ns(spans: tuple[Times, Times]) -> int:
    """The length of spans that do not overlap."""
    return int((spans[1] - spans[0]).sum())


@dataclass(frozen=True, slots=True)
class Overlap:
    """How two sides shared the time in which both are known, in ns."""

    one_ns: int  # the one side worked
    other_ns: int  # the other side worked
    either_ns: int  # at least one of them did

    @property
    def both_ns(self) -> int:
        """Both worked at the same time."""
        return self.one_ns + self.other_ns - self.either_ns

    @property
    def ratio(self) -> float:
        """The share of the lesser side's work that happened during the other's: 0 in turns, 1 hidden entirely."""
        least = min(self.one_ns, self.other_ns)
        return self.both_ns / least if least else 0.0


def overlap_of(one: Sequence[Lane], other: Sequence[Lane]) -> Overlap | None:
    """The overlap of two groups of threads, each busy when any of its threads is; None if never seen together."""
    begin = max(lane.window[0] for lane in (*one, *other))
    end = min(lane.window[1] for lane in (*one, *other))
    if begin >= end:
        return None
    window = begin, end
    first, second = (union([lane.work() for lane in lanes], window) for lanes in (one, other))
    return Overlap(total_ns(first), total_ns(second), total_ns(union([first, second], window)))


def share_inside(inner: tuple[Times, Times], outer: Sequence[Lane]) -> float | None:
    """The share of the `inner` spans during which a thread of `outer` worked, where all are known; None of nothing."""
    window = max(lane.window[0] for lane in outer), min(lane.window[1] for lane in outer)
    if window[0] >= window[1]:
        return None
    inside, work = union([inner], window), union([lane.work() for lane in outer], window)
    total = total_ns(inside)
    return (total + total_ns(work) - total_ns(union([inside, work], window))) / total if total else None
