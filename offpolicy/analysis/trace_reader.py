"""Reads the tracks of a trace: what each thread did, how long its phases were, how far two sides overlapped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offpolicy import fault
from offpolicy.errors import ConfigError
from offpolicy.timing.phases import LEARNER_WAITS, CollectorPhase
from offpolicy.timing.trace_writer import HEADER, HEADER_NBYTES, MAGIC, SUFFIX, Kind

Times = NDArray[np.int64]
# As `RECORD`, which writes one in a fraction of the time that numpy takes.
RECORD_TYPE = np.dtype([("at", "<i8"), ("value", "<i8"), ("name", "<u2"), ("kind", "<u2"), ("unused", "<u4")])
# Phases in which a thread does not work.
WAITS = frozenset((*LEARNER_WAITS, CollectorPhase.LEARNER_WAIT))
ROLES = ("learner", "collector", "evaluator", "supervisor")  # in the order in which their tracks are shown


@dataclass(frozen=True, slots=True)
class ThreadTrack:
    """The records of one thread, by time. `num_lost` older ones were replaced by newer."""

    name: str  # of the file: collector-0
    process: str
    thread: str
    pid: int
    names: tuple[str, ...]
    records: NDArray[np.void]  # of `RECORD_TYPE`
    num_lost: int
    unix_minus_monotonic_ns: int

    def spans(self, *phases: str) -> tuple[Times, Times]:
        """Returns starts and stops, in ns, of the spans of these names; of all names where none is given."""
        chosen = self._of(Kind.SPAN, phases or self.names)
        return chosen["at"], chosen["at"] + chosen["value"]

    def marks(self, name: str) -> list[tuple[int, int]]:
        """Returns instants, in ns, and values of a mark."""
        found: list[tuple[int, int]] = self._of(Kind.MARK, (name,))[["at", "value"]].tolist()
        return found

    def _of(self, kind: Kind, names: Sequence[str]) -> NDArray[np.void]:
        numbers = [number for number, name in enumerate(self.names) if name in names]
        is_chosen: NDArray[np.bool_] = (self.records["kind"] == kind) & np.isin(self.records["name"], numbers)
        return self.records[is_chosen]

    def work(self) -> tuple[Times, Times]:
        """Returns the spans in which the thread worked rather than waited."""
        return self.spans(*(name for name in self.names if name not in WAITS))

    @property
    def has_spans(self) -> bool:
        """True if the thread has been in any phase; without, it has no window."""
        return len(self.spans()[0]) > 0

    @property
    def window(self) -> tuple[int, int]:
        """From the first record that is left to the end of the last."""
        starts, stops = self.spans()
        return int(starts.min()), int(stops.max())


def read_tracks(directory: Path) -> list[ThreadTrack]:
    """Returns the tracks of a trace that hold something, learners first. Raises `ConfigError` if there is none."""

    def order(track: ThreadTrack) -> tuple[int, int, bool]:
        role, _, index = track.process.partition(" ")
        return ROLES.index(role) if role in ROLES else len(ROLES), int(index or 0), track.thread != track.process

    tracks = [track for path in sorted(directory.glob(f"*{SUFFIX}")) if (track := _read(path)) is not None]
    if not tracks:
        raise ConfigError(f"run: {directory} holds no trace; train with timing.trace=true")
    return sorted(tracks, key=order)


def _read(path: Path) -> ThreadTrack | None:
    """Returns a track, oldest record first; None if it was never opened, or is empty."""
    with path.open("rb") as file:
        text = file.read(HEADER_NBYTES)
        if not text.startswith(MAGIC):
            return None
        _, written, length = HEADER.unpack_from(text)
        records = np.fromfile(file, dtype=RECORD_TYPE, count=written)  # as many as are there
        file.seek(0)
        _, written_since, _ = HEADER.unpack(file.read(HEADER.size))
    if written > len(records):  # without those replaced, or being replaced, while the ring was read
        replaced = min(written_since - written + 1, len(records))
        records = np.roll(records, -(written % len(records)))[replaced:]
    if len(records) == 0:
        return None
    header = json.loads(text[HEADER.size : HEADER.size + length])
    header["names"] = tuple(header["names"])
    return ThreadTrack(name=path.name.removesuffix(SUFFIX), records=records, num_lost=written - len(records), **header)


def shrink_tracks(directory: Path) -> None:
    """Returns the disk that a run has reserved and not needed, once no process has a track open any more.

    A process that wrote into what was cut off would be killed.
    """
    for path in directory.glob(f"*{SUFFIX}"):
        fault.hit("trace.write")
        with path.open("r+b") as file:
            magic, written, _ = HEADER.unpack(file.read(HEADER.size))
            nbytes = HEADER_NBYTES + written * RECORD_TYPE.itemsize
            if nbytes < path.stat().st_size:
                file.truncate(nbytes)
        if magic != MAGIC:
            path.unlink()


def _union(spans: Sequence[tuple[Times, Times]], window: tuple[int, int]) -> tuple[Times, Times]:
    """Returns the times, inside the window, that any of the spans covers, as spans that do not touch each other."""
    starts = np.clip(np.concatenate([start for start, _ in spans]), *window)
    stops = np.clip(np.concatenate([stop for _, stop in spans]), *window)
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    if len(starts) == 0:
        return starts, stops
    is_new = np.concatenate(([True], starts[1:] > stops[:-1]))
    return starts[is_new], stops[np.append(np.flatnonzero(is_new)[1:] - 1, len(stops) - 1)]


@dataclass(frozen=True, slots=True)
class Overlap:
    """The work of two sides in the time in which both are known, in ns."""

    one_ns: int  # the one side worked
    other_ns: int  # the other side worked
    both_ns: int  # both worked at the same time

    @property
    def ratio(self) -> float:
        """The share of the lesser side's work that happened during the other's: 0 in turns, 1 hidden entirely."""
        least = min(self.one_ns, self.other_ns)
        return self.both_ns / least if least else 0.0


def overlap_of(one: Sequence[ThreadTrack], other: Sequence[ThreadTrack]) -> Overlap | None:
    """The overlap of two groups of threads, each busy when any of its threads is; None if never seen together."""
    return _overlap([track.work() for track in one], [track.work() for track in other], (*one, *other))


def share_inside(inner: tuple[Times, Times], outer: Sequence[ThreadTrack]) -> float | None:
    """The share of the `inner` spans in which a thread of `outer` worked, while all are known; None without spans."""
    found = _overlap([inner], [track.work() for track in outer], outer)
    return found.both_ns / found.one_ns if found is not None and found.one_ns else None


def _overlap(
    one: Sequence[tuple[Times, Times]], other: Sequence[tuple[Times, Times]], known: Sequence[ThreadTrack]
) -> Overlap | None:
    """Returns the overlap of two groups of spans in the time that every track of `known` covers."""
    window = max(track.window[0] for track in known), min(track.window[1] for track in known)
    if window[0] >= window[1]:
        return None
    first, second = _union(one, window), _union(other, window)
    covered = (first, second, _union([first, second], window))
    one_ns, other_ns, either_ns = (int((stops - starts).sum()) for starts, stops in covered)
    return Overlap(one_ns, other_ns, one_ns + other_ns - either_ns)
