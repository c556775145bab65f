"""The trace of a run, kept on disk while it happens: what every thread did, and when.

Each thread has a track: a file of fixed size, mapped into memory, in which the newest records replace the oldest. It
holds everything that a killed process wrote. All tracks of a machine share its monotonic clock.
`offpolicy/analysis/chrome_trace.py` converts them to the format of trace viewers.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import struct
from collections.abc import Sequence
from enum import IntEnum, StrEnum
from pathlib import Path

from offpolicy.errors import ConfigError
from offpolicy.timing.clock import unix_minus_monotonic_ns

MAGIC = b"offpolicy trace1"
HEADER_NBYTES = 4096
HEADER = struct.Struct("<16sQQ")  # magic, records written, bytes of the JSON text that follows
COUNT = struct.Struct("<Q")  # the second and the third field of the header, on their own
COUNT_AT, LENGTH_AT = 16, 24
RECORD = struct.Struct("<qqHHI")  # at, value, name, kind, unused: `RECORD_TYPE` of the reader
JSON_NBYTES = 96  # bytes of a record in trace.json, its part of an arrow included; rounded up
SHORTEST_NS = 1_000  # shortest span that is written: shorter ones are many and cannot be seen
SUFFIX = ".lane"  # file names: part of the format
PROFILE = "profile.json"  # of torch.profiler, beside the tracks
PROFILER_CLOCK = "offpolicy clock "  # start of the name of a mark in it, which ends with our clock at the mark's start
TRACES = "trace"  # directory, inside that of the run, with one directory for each traced start


class Kind(IntEnum):
    """The meaning of a record's value."""

    SPAN = 0  # its length in ns
    MARK = 1  # what was marked, such as a version
    COUNTER = 2  # the level, in thousandths


class Mark(StrEnum):
    """Instants that belong together across processes."""

    PUBLISHED = "weights published"  # value: the version
    APPLIED = "weights applied"  # value: the version
    ITERATION = "iteration"  # the end of one; value: how many have ended


def traced_starts(run_dir: Path) -> list[int]:
    """The numbers of the starts of a run that were traced, in ascending order."""
    return sorted(int(path.name) for path in (run_dir / TRACES).glob("*") if path.name.isdigit())


def begin_trace(run_dir: Path, names: Sequence[str], total_mb: int) -> Path:
    """Creates the tracks `names`, and the supervisor's, of a new start of the run; returns their directory.

    Raises `ConfigError` without room on the disk.
    """
    directory = run_dir / TRACES / str(max(traced_starts(run_dir), default=-1) + 1)
    create_tracks(directory, names, total_mb, quiet=["supervisor"])
    return directory


def create_tracks(directory: Path, names: Sequence[str], total_mb: int, quiet: Sequence[str] = ()) -> None:
    """Reserves disk for the tracks of a run so that together they make at most `total_mb` MB of JSON.

    `quiet` are tracks of threads that write a few records per second; each takes a twentieth of it. Raises
    `ConfigError` where the disk has no room: found now, not as a dead process later.
    """
    records = max(total_mb * 10**6 // JSON_NBYTES, 1)
    capacities = dict.fromkeys(quiet, records // 20)
    capacities |= dict.fromkeys(names, max((records - sum(capacities.values())) // max(len(names), 1), 1))
    try:
        directory.mkdir(parents=True)
        for name, capacity in capacities.items():
            with (directory / f"{name}{SUFFIX}").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, HEADER_NBYTES + capacity * RECORD.size)
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        nbytes = sum(HEADER_NBYTES + capacity * RECORD.size for capacity in capacities.values())
        raise ConfigError(
            f"timing.trace: {nbytes / 1e6:.1f} MB for {len(capacities)} tracks cannot be reserved in {directory}:"
            f" {error.strerror}; lower timing.trace_mb"
        ) from error


class TraceTrack:
    """One thread's track. Only that thread writes; any process may read the file, at any time."""

    __slots__ = ("_buffer", "_capacity", "_names", "_written")

    def __init__(self, path: Path, names: Sequence[str], process: str, thread: str) -> None:
        """Opens a track that `create_tracks` has reserved. `names` are all names that its records can have."""
        with path.open("r+b") as file:
            self._buffer = mmap.mmap(file.fileno(), 0)
        self._capacity = (len(self._buffer) - HEADER_NBYTES) // RECORD.size
        self._names = {name: index for index, name in enumerate(names)}
        self._written = 0
        header = {
            "process": process,
            "thread": thread,
            "pid": os.getpid(),
            "names": list(names),
            "unix_minus_monotonic_ns": unix_minus_monotonic_ns(),
        }
        text = json.dumps(header).encode()
        self._buffer[HEADER.size : HEADER.size + len(text)] = text
        COUNT.pack_into(self._buffer, LENGTH_AT, len(text))
        self._buffer[: len(MAGIC)] = MAGIC  # last: from here on the track exists

    def span(self, name: int, start_ns: int, stop_ns: int) -> None:
        """Writes a span from one instant to another; `name` is an index of the names."""
        if stop_ns - start_ns >= SHORTEST_NS:
            self._put(start_ns, stop_ns - start_ns, name, Kind.SPAN)

    def mark(self, name: str, at_ns: int, value: int) -> None:
        """Writes an instant."""
        self._put(at_ns, value, self._names[name], Kind.MARK)

    def count(self, name: str, at_ns: int, level: float) -> None:
        """Writes a level, in force until the next one."""
        self._put(at_ns, round(level * 1000.0), self._names[name], Kind.COUNTER)

    def _put(self, at_ns: int, value: int, name: int, kind: int) -> None:
        written = self._written
        RECORD.pack_into(
            self._buffer, HEADER_NBYTES + written % self._capacity * RECORD.size, at_ns, value, name, kind, 0
        )
        self._written = written + 1
        COUNT.pack_into(self._buffer, COUNT_AT, self._written)  # after the record: what is counted is whole


def open_track(
    directory: str | None, name: str, names: Sequence[str], process: str, thread: str = ""
) -> TraceTrack | None:
    """The track `name` of a traced run; None where `directory` is None, because the run is not traced."""
    if directory is None:
        return None
    return TraceTrack(Path(directory) / f"{name}{SUFFIX}", names, process, thread or process)
