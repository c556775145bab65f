"""Deaths of processes: how many a run survives, and whether the kernel has killed one because memory ran out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
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


def kernel_kills() -> dict[Path, int]:
    """Returns how many processes the kernel has killed for want of memory, by each file that counts them."""
    files = [directory / name for directory in cgroups("memory") for name in COUNTERS]
    return {file: _kills(file) for file in (*files, VMSTAT)}


def out_of_memory(before: Mapping[Path, int]) -> str | None:
    """Returns why the kernel has killed a process since `before`, with the limit that was reached; None if it has not.

    `before` is what `kernel_kills` returned then.
    """
    grown = [file for file, count in kernel_kills().items() if count > before.get(file, count)]
    limits = {limit.directory: limit for limit in memory_limits()} if grown else {}
    for file in grown:
        if limit := limits.get(file.parent):
            return (
                f"was killed by the kernel: out of memory; the limit of {limit.directory} is"
                f" {limit.limit / 2**20:,.0f} MiB, of which {limit.used / 2**20:,.0f} MiB are used now"
            )
    return "was killed by the kernel: the machine ran out of memory" if grown else None


def _kills(file: Path) -> int:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(dict(line.split(maxsplit=1) for line in file.read_text().splitlines())["oom_kill"])
    return 0
