"""Tells a process that the kernel killed because memory ran out from one that somebody killed."""

from __future__ import annotations

import contextlib
from pathlib import Path

from offpolicy.machine import memory_cgroups, memory_limits

VMSTAT = Path("/proc/vmstat")  # counts the kills on the whole machine
COUNTERS = ("memory.events", "memory.oom_control")  # of a cgroup, by version
# How willingly the kernel kills a process of the run when memory runs out, in thousandths of that memory: first one
# without which the learner can still save. The supervisor, which reports it, comes last.
KILL_FIRST = {"collector": 500, "evaluator": 500, "learner": 200}


def be_killed_first(role: str) -> None:
    """Makes this process, and those it starts, likelier to be chosen than its supervisor; where that is allowed."""
    with contextlib.suppress(OSError, ValueError):
        own = Path("/proc/self/oom_score_adj")
        own.write_text(str(max(KILL_FIRST.get(role, 0), int(own.read_text()))))


class OomWatch:
    """Counts the processes that the kernel has killed since it was made, in this process's cgroups and elsewhere."""

    def __init__(self) -> None:
        self._files = [directory / name for directory in memory_cgroups() for name in COUNTERS]
        self._before = {file: _kills(file) for file in (*self._files, VMSTAT)}

    def cause(self) -> str | None:
        """Returns why the kernel killed a process, with the limit that was reached; None if it killed none."""
        grown = [file for file, before in self._before.items() if _kills(file) > before]
        if not grown:
            return None
        self._before = {file: _kills(file) for file in self._before}
        limits = {limit.directory: limit for limit in memory_limits()}
        for file in grown:
            if limit := limits.get(file.parent):
                return (
                    f"was killed by the kernel: out of memory; the limit of {limit.directory} is"
                    f" {limit.limit / 2**20:,.0f} MiB, of which {limit.used / 2**20:,.0f} MiB are used now"
                )
        return "was killed by the kernel: the machine ran out of memory"


def _kills(file: Path) -> int:
    """Returns how many processes the kernel has killed by the count in `file`; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(dict(line.split(maxsplit=1) for line in file.read_text().splitlines())["oom_kill"])
    return 0
