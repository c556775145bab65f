"""torch.profiler for a window of a learner's iterations, on the clock of the trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offpolicy.timing.clock import MonotonicClock

if TYPE_CHECKING:
    import torch

PROFILE = "profile.json"
CLOCK = "offpolicy clock "  # start of the name of an event, which ends with the monotonic clock at the event's start
NUM_MARKS = 10  # clock events; the first ones are late, while the profiler is cold
NAMES_OF_PROCESSES = ("process_name", "process_labels", "process_sort_index")


class Profiler:
    """Profiles `count` iterations from iteration `first` on and writes the result into `directory`."""

    def __init__(self, directory: Path, first: int, count: int) -> None:
        self._path, self._first, self._last = directory / PROFILE, first, first + count
        self._iteration = 0
        self._running: torch.profiler.profile | None = None

    def step(self) -> None:
        """Called at the end of every iteration."""
        self._iteration += 1
        if self._iteration == self._first:
            self._start()
        elif self._iteration == self._last:
            self.close()

    def _start(self) -> None:
        import torch  # noqa: PLC0415  # torch-free processes import this package too

        self._running = torch.profiler.profile()
        self._running.start()
        for _ in range(NUM_MARKS):
            with torch.profiler.record_function(f"{CLOCK}{MonotonicClock.now_ns()}"):
                pass

    def close(self) -> None:
        """Writes the profile, if there is one; a second call does nothing."""
        if self._running is not None:
            running, self._running = self._running, None
            running.stop()
            unfinished = self._path.with_name(f"unfinished-{PROFILE}")
            running.export_chrome_trace(str(unfinished))
            unfinished.replace(self._path)


class NoProfiler:
    """The profiler of a run that is not profiled."""

    def step(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


def read_profile(
    profile: Mapping[str, Any],
    origin_ns: int,
    pids: set[int],  # Any: the format's nested values
) -> Iterator[dict[str, Any]]:
    """Yields the events of a profile on a clock on which `origin_ns` is 0; the processes `pids` keep their names."""
    events = profile["traceEvents"]
    marks = [event for event in events if str(event.get("name", "")).startswith(CLOCK) and event.get("ph") == "X"]
    if not marks:
        return
    # A mark starts a little after the clock was read for it; the one with the least delay gives the shift.
    shift_us = max((int(mark["name"].removeprefix(CLOCK)) - origin_ns) / 1000.0 - mark["ts"] for mark in marks)
    for event in events:
        if event.get("ph") == "M" and event.get("name") in NAMES_OF_PROCESSES and event.get("pid") in pids:
            continue
        yield {**event, "ts": event["ts"] + shift_us} if "ts" in event else event
