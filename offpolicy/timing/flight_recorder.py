"""The iterations around an outlier as a trace, without a trace of the run.

The ledger notes the time of every phase in every iteration for its percentiles; the notes around the longest outlier
are kept. So a file costs nothing until it is written: boundaries of iterations and lengths of phases are exact, and the
phases stand in the order of the loop, one span each, `other` at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offpolicy.timing.chrome_trace import write_chrome_trace
from offpolicy.timing.clock import unix_minus_monotonic_ns
from offpolicy.timing.ledger import trace_names
from offpolicy.timing.time_account import Outlier
from offpolicy.timing.trace_reader import RECORD_TYPE, ThreadTrack
from offpolicy.timing.trace_writer import SHORTEST_NS, Kind, Mark

MOST_FILES = 3  # the newest are kept
PAUSE_NS = 60_000_000_000  # shortest time between two files
SUFFIX = ".trace.json.gz"


class FlightRecorder:
    """Writes outliers as `<prefix>-<n>.trace.json.gz` into a run's directory; `tell` is given the line of the first."""

    def __init__(
        self, directory: Path, prefix: str, process: str, phases: type[StrEnum], order: Sequence[StrEnum]
    ) -> None:
        """`order` is that of the phases in the loop."""
        self._directory, self._prefix, self._process = directory, prefix, process
        self._names = trace_names(phases)
        self._order = [self._names.index(phase) for phase in order]
        self._written_ns: int | None = None  # end of the iterations of the last file

    def save(self, outlier: Outlier | None, tell: Callable[[str], None]) -> None:
        """Writes an outlier, unless the last file is too fresh. A disk that refuses it costs the file alone."""
        if outlier is None:
            return
        end_ns = outlier.start_ns + int((outlier.totals_ns[-1] - outlier.totals_ns[0]).sum())
        if self._written_ns is not None and end_ns - self._written_ns < PAUSE_NS:
            return
        try:
            path = self._next_path()
            write_chrome_trace(path, [self._track(outlier)])
        except OSError:
            return
        if self._written_ns is None:
            took_ms, count = outlier.duration_ns / 1e6, len(outlier.totals_ns) - 1
            tell(
                f"{self._process}: an iteration took {took_ms:,.1f} ms, more than 5 times the p99 of those before it;"
                f" {path} has the phases of {count:,} around it (https://ui.perfetto.dev)"
            )
        self._written_ns = end_ns

    def _next_path(self) -> Path:
        """Returns the path of the next file, and deletes the oldest ones."""
        numbered = {int(path.name[len(self._prefix) + 1 : -len(SUFFIX)]): path for path in self._paths()}
        for number in sorted(numbered)[: max(0, len(numbered) - MOST_FILES + 1)]:
            numbered[number].unlink(missing_ok=True)
        return self._directory / f"{self._prefix}-{max(numbered, default=-1) + 1}{SUFFIX}"

    def _paths(self) -> list[Path]:
        paths = self._directory.glob(f"{self._prefix}-*{SUFFIX}")
        return [path for path in paths if path.name[len(self._prefix) + 1 : -len(SUFFIX)].isdigit()]

    def _track(self, outlier: Outlier) -> ThreadTrack:
        return ThreadTrack(
            name=self._prefix,
            process=self._process,
            thread=self._process,
            pid=os.getpid(),
            names=self._names,
            records=self._records(outlier),
            num_lost=0,
            unix_minus_monotonic_ns=unix_minus_monotonic_ns(),
        )

    def _records(self, outlier: Outlier) -> NDArray[np.void]:
        """Returns a span for every phase of every iteration, and a mark at each boundary."""
        took_ns = np.diff(outlier.totals_ns, axis=0)  # [n, phases]
        ends_ns = outlier.start_ns + np.cumsum(took_ns.sum(axis=1))
        lengths_ns = took_ns[:, self._order]
        starts_ns = (ends_ns - took_ns.sum(axis=1))[:, None] + np.cumsum(lengths_ns, axis=1) - lengths_ns
        is_long = (lengths_ns >= SHORTEST_NS) & (np.array(self._order) != self._names.index("other"))
        spans = np.zeros(int(is_long.sum()), RECORD_TYPE)
        spans["at"], spans["value"], spans["kind"] = starts_ns[is_long], lengths_ns[is_long], Kind.SPAN
        spans["name"] = np.broadcast_to(self._order, lengths_ns.shape)[is_long]
        marks = np.zeros(len(ends_ns), RECORD_TYPE)
        marks["at"], marks["value"], marks["kind"] = ends_ns, np.arange(len(ends_ns)), Kind.MARK
        marks["name"] = self._names.index(Mark.ITERATION)
        records = np.concatenate((spans, marks))
        return records[np.argsort(records["at"], kind="stable")]
