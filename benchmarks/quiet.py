"""How busy others keep the cores: before a repeat, which waits for them, and during it, which is marked if they are."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

NOISY = 0.05  # share of the cores' time
LOOK_S = 1.0  # of one look at the cores
WAIT_S = 60.0  # for quiet, before a repeat
PROCESSES = Path("/proc")
BUSY_COLUMNS = (1, 2, 3, 6, 7, 8)  # user, nice, system, irq, softirq, steal; idle is 4, iowait 5


@dataclass(frozen=True, slots=True)
class Usage:
    """Clocks at one instant, in seconds."""

    wall_s: float
    own_s: float  # CPU of this process and of its children that have ended
    busy_s: float  # CPU of all programs on the cores

    @classmethod
    def now(cls, cores: Sequence[int]) -> Usage:
        """Returns the clocks now."""
        used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return cls._read(cores, sum(one.ru_utime + one.ru_stime for one in used))

    @classmethod
    def of_tree(cls, cores: Sequence[int]) -> Usage:
        """Returns the clocks now; `own_s` has also the children, and theirs, that have not ended."""
        return cls._read(cores, _tree_cpu_s(os.getpid()))

    @classmethod
    def _read(cls, cores: Sequence[int], own_s: float) -> Usage:
        busy = busy_ticks((PROCESSES / "stat").read_text(), cores)
        return cls(time.monotonic(), own_s, busy / os.sysconf("SC_CLK_TCK"))

    def since(self, before: Usage) -> Usage:
        """Returns what has passed on each clock."""
        return Usage(self.wall_s - before.wall_s, self.own_s - before.own_s, self.busy_s - before.busy_s)

    def others_share(self, num_cores: int) -> float:
        """Returns the part of the cores' time that others took, of what has passed; counts may lag by a tick."""
        return max(self.busy_s - self.own_s, 0.0) / max(self.wall_s * num_cores, 1e-9)


def busy_ticks(stat: str, cores: Sequence[int]) -> int:
    """Returns the ticks that the cores were busy since the machine started, of the text of /proc/stat."""
    names = {f"cpu{core}" for core in cores}
    lines = [line.split() for line in stat.splitlines()]
    return sum(int(line[column]) for line in lines if line and line[0] in names for column in BUSY_COLUMNS)


def _tree_cpu_s(root: int) -> float:
    """Returns the CPU seconds of a process and all below it, with those that have ended and were waited for."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for stat in PROCESSES.glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()  # a name may hold anything before it
        except OSError:  # ended meanwhile
            continue
        pid = int(stat.parent.name)
        ticks[pid] = sum(map(int, fields[11:15]))  # user and system, own and of ended children
        children.setdefault(int(fields[1]), []).append(pid)
    total, left = 0, [root]
    while left:
        pid = left.pop()
        total += ticks.get(pid, 0)
        left += children.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


def look(cores: Sequence[int]) -> float:
    """Returns the part of the cores' time that others take in the next second."""
    before = Usage.now(cores)
    time.sleep(LOOK_S)
    return Usage.now(cores).since(before).others_share(len(cores))


def wait_until_quiet(look_once: Callable[[], float], limit_s: float = WAIT_S) -> float:
    """Looks until others take at most `NOISY` of the cores, or for `limit_s`. Returns the last share seen."""
    share = look_once()
    for _ in range(int(limit_s / LOOK_S)):
        if share <= NOISY:
            break
        share = look_once()
    return share
