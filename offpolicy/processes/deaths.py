"""Deaths of processes: how many a run survives, and whether the kernel has killed one because memory ran out."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path

from offpolicy.errors import CrashLoopError
from offpolicy.machine import cgroups, memory_limits

WINDOW_S = 600.0  # in which more than `runner.max_restarts` deaths are a crash loop
VMSTAT = Path("/proc/vmstat")  # counts the kills on the whole machine
SCORE = Path("/proc/self/oom_score_adj")  # how willingly the kernel kills this process
COUNTERS = ("memory.events", "memory.oom_control")  # of a cgroup, by version
RECENT_S = 5.0  # from a kill to the end of a process with much memory, at most
# How willingly the kernel kills a process of the run when memory runs out, in thousandths of that memory: first one
# without which the learner can still save. The supervisor, which reports it, comes last.
KILL_FIRST = {"collector": 500, "evaluator": 500, "learner": 200}


class Restarts:
    """Counts the restarts of a run, or of the environments of a collector."""

    def __init__(self, limit: int, elapsed_s: Callable[[], float]) -> None:
        """`limit`: `runner.max_restarts`; 0 where no death is survived."""
        self.limit, self._elapsed_s = limit, elapsed_s
        self._deaths: list[tuple[float, str]] = []  # within the window: when, and what has happened
        self.total = 0

    def add(self, death: str) -> str:
        """Counts a death; returns the number of its restart in words. Raises `CrashLoopError` if there are too many."""
        now_s = self._elapsed_s()
        self._deaths = [(at_s, text) for at_s, text in self._deaths if at_s >= now_s - WINDOW_S] + [(now_s, death)]
        if len(self._deaths) > self.limit:
            causes = "; ".join(text for _, text in self._deaths)
            raise CrashLoopError(
                f"crash loop: {len(self._deaths)} deaths within {WINDOW_S / 60:g} minutes, more than"
                f" runner.max_restarts={self.limit}: {causes}"
            )
        self.total += 1
        return f"restart {len(self._deaths)} of at most {self.limit}"


def be_killed_first(role: str) -> None:
    """Makes this process, and those it starts, likelier to be chosen than its supervisor; where that is allowed."""
    with contextlib.suppress(OSError, ValueError):
        SCORE.write_text(str(max(KILL_FIRST.get(role, 0), int(SCORE.read_text()))))


class OomWatch:
    """Counts the processes that the kernel has killed since it was made, in this process's cgroups and elsewhere."""

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self._elapsed_s = elapsed_s
        files = [directory / name for directory in cgroups("memory") for name in COUNTERS]
        self._counts = {file: _kills(file) for file in (*files, VMSTAT)}
        self._grown_s: dict[Path, float] = {}  # when counts grew of which no process has the cause yet

    def look(self) -> None:
        """Reads the counts, several times a second: they say nothing of a process that is killed later."""
        for file, before in self._counts.items():
            self._counts[file] = count = _kills(file)
            if count > before:
                self._grown_s[file] = self._elapsed_s()

    def cause(self) -> str | None:
        """Returns why the kernel killed a process just now, with the limit that was reached; None if it killed none."""
        self.look()
        since_s = self._elapsed_s() - RECENT_S
        grown = [file for file in self._counts if self._grown_s.pop(file, -math.inf) >= since_s]
        limits = {limit.directory: limit for limit in memory_limits()} if grown else {}
        for file in grown:
            if limit := limits.get(file.parent):
                return (
                    f"was killed by the kernel: out of memory; the limit of {limit.directory} is"
                    f" {limit.limit / 2**20:,.0f} MiB, of which {limit.used / 2**20:,.0f} MiB are used now"
                )
        return "was killed by the kernel: the machine ran out of memory" if grown else None


def _kills(file: Path) -> int:
    """Returns how many processes the kernel has killed by the count in `file`; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(dict(line.split(maxsplit=1) for line in file.read_text().splitlines())["oom_kill"])
    return 0
