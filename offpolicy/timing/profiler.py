"""torch.profiler, attached for a window of a learner's iterations; its events get onto the clock of our traces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from offpolicy.timing.clock import MonotonicClock
from offpolicy.timing.trace_writer import PROFILE, PROFILER_CLOCK

if TYPE_CHECKING:
    import torch

NUM_MARKS = 10  # clock events; the first ones are late, while the profiler is cold


class Profiler:
    """Profiles the `count` iterations after iteration `at` and writes the result into `directory`; with 0 none.

    A profile that cannot be made or written is a warning, and nothing is profiled from there on.
    """

    def __init__(self, directory: Path, at: int, count: int, warn: Callable[[str], None]) -> None:
        self._path, self._at, self._last, self._warn = directory / PROFILE, at, at + count, warn
        self._iteration = 0
        self._running: torch.profiler.profile | None = None

    def step(self) -> None:
        """Counts an iteration that has ended; begins before the first one of the window and writes after its last."""
        self._iteration += 1
        if self._iteration == self._at:
            import torch  # noqa: PLC0415  # torch-free processes import this package too

            with self._warned_of():
                running = torch.profiler.profile()
                running.start()
                self._running = running
                for _ in range(NUM_MARKS):
                    with torch.profiler.record_function(f"{PROFILER_CLOCK}{MonotonicClock.now_ns()}"):
                        pass
        elif self._iteration == self._last:
            self.close()

    def close(self) -> None:
        """Writes the profile, if there is one; a second call does nothing. What torch has begun on a full disk goes."""
        running, self._running = self._running, None
        if running is None:
            return
        unfinished = self._path.with_name(f"unfinished-{PROFILE}")
        with self._warned_of():
            try:
                running.stop()
                running.export_chrome_trace(str(unfinished))
                unfinished.replace(self._path)  # of a full disk torch only logs
            finally:
                with contextlib.suppress(OSError):
                    for left in self._path.parent.glob(f"{unfinished.name}*"):
                        left.unlink()

    @contextlib.contextmanager
    def _warned_of(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:  # of the disk, and of torch: the run does not depend on its profile
            self._warn(f"timing.profile_at: there is no {PROFILE}: {type(error).__name__}: {error}")
