"""What every thread of a run did and when, kept on disk while it happens.

Each thread has a lane of its own: a file of fixed size, mapped into memory, in which the newest records replace the
oldest. A record is two integers and a name, so that writing one is a few hundred nanoseconds; nothing is flushed, and
what a killed process wrote is in the file nevertheless. All lanes of a machine share its monotonic clock.
`offpolicy/timing/chrome_trace.py` makes of them what trace viewers read.
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
RECORD = struct.Struct("<qqHHI")  # when, value, name, kind, nothing
COUNT = struct.Struct("<Q")
COUNT_AT = len(MAGIC)
LENGTH_AT = COUNT_AT + COUNT.size
TEXT_AT = LENGTH_AT + COUNT.size
JSON_NBYTES = 96  # what a record takes in trace.json, an arrow's two ends shared out; rounded up
SHORTEST_NS = 1_000  # spans below a microsecond are left out: nobody can see them, and there are many
SUFFIX = ".lane"


class Kind(IntEnum):
    """What a record means."""

    SPAN = 0  # `value` is its length in ns
    MARK = 1  # `value` is what was marked, such as a version
    COUNTER = 2  # `value` is the level, in thousandths


class Mark(StrEnum):
    """Instants that belong together across processes."""

    PUBLISHED = "weights published"  # value: the version
    APPLIED = "weights applied"  # value: the version
    ITERATION = "iteration"  # it ended; value: how many have
    EPISODE_ENDED = "episode ended"  # value: its number
    EPISODE_HOOKED = "episode hooked"  # the hook began with it; value: its number


# Where arrows lead from and to, and what they are called.
ARROWS = ((Mark.PUBLISHED, Mark.APPLIED, "weights"), (Mark.EPISODE_ENDED, Mark.EPISODE_HOOKED, "episode"))


def create_lanes(directory: Path, names: Sequence[str], total_mb: int, quiet: Sequence[str] = ()) -> None:
    """Reserve disk for the lanes of a run so that together they make at most `total_mb` MB of JSON.

    `quiet` are lanes of threads that write a few records per second; each takes a twentieth of it. Raises
    `ConfigError` where the disk has no room: found now, not as a dead process later.
    """
    records = max(total_mb * 10**6 // JSON_NBYTES, 1)
    shares = dict.fromkeys(quiet, records // 20)
    shares |= dict.fromkeys(names, max((records - sum(shares.values())) // max(len(names), 1), 1))
    try:
        directory.mkdir(parents=True)
        for name, capacity in shares.items():
            with (directory / f"{name}{SUFFIX}").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, HEADER_NBYTES + capacity * RECORD.size)
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        nbytes = sum(HEADER_NBYTES + capacity * RECORD.size for capacity in shares.values())
        raise ConfigError(
            f"timing.trace: {nbytes / 1e6:.1f} MB for {len(shares)} lanes cannot be had in {directory}:"
            f" {error.strerror}; lower timing.trace_mb"
        ) from error


class TraceLane:
    """One thread's lane. Only that thread writes; anybody may read the file, at any time."""

    __slots__ = ("_buffer", "_capacity", "_names", "_written")

    def __init__(self, path: Path, names: Sequence[str], process: str, thread: str) -> None:
        """Open a lane that `create_lanes` has reserved. `names` are what its records may be called."""
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
        self._buffer[TEXT_AT : TEXT_AT + len(text)] = text
        COUNT.pack_into(self._buffer, LENGTH_AT, len(text))
        self._buffer[: len(MAGIC)] = MAGIC  # last: from here on the lane exists

    def span(self, name: int, start_ns: int, stop_ns: int) -> None:
        """Something took from one instant to another; `name` is its place in the names."""
        if stop_ns - start_ns >= SHORTEST_NS:
            self._put(start_ns, stop_ns - start_ns, name, Kind.SPAN)

    def mark(self, name: str, at_ns: int, value: int) -> None:
        """Something happened."""
        self._put(at_ns, value, self._names[name], Kind.MARK)

    def count(self, name: str, at_ns: int, level: float) -> None:
        """A level, as it is from now on."""
        self._put(at_ns, round(level * 1000.0), self._names[name], Kind.COUNTER)

    def _put(self, at_ns: int, value: int, name: int, kind: int) -> None:
        written = self._written
        RECORD.pack_into(
            self._buffer, HEADER_NBYTES + written % self._capacity * RECORD.size, at_ns, value, name, kind, 0
        )
        self._written = written + 1
        COUNT.pack_into(self._buffer, COUNT_AT, self._written)  # after the record: what is counted is whole


def open_lane(
    directory: str | None, name: str, names: Sequence[str], process: str, thread: str = ""
) -> TraceLane | None:
    """The lane `name` of a run that is traced; None where `directory` is, because it is not."""
    if directory is None:
        return None
    return TraceLane(Path(directory) / f"{name}{SUFFIX}", names, process, thread or process)
