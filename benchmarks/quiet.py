"""How busy others keep the cores: before a round, which waits for them, and during it, which is marked if they are.

A round during which others took more than `NOISY` of the cores is shown, but is left out of medians.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

NOISY = 0.05  # share of the cores' time
LOOK_S = 1.0  # of one look at the cores
WAIT_S = 60.0  # for quiet, before a round
PROCESSES = Path("/proc")
STAT = PROCESSES / "stat"
BUSY_COLUMNS = (1, 2, 3, 6, 7, 8)  # user, nice, system, irq, softirq, steal; idle is 4, iowait 5


@dataclass(frozen=True, slots=True)
class Usage:
    """Clocks at one instant, in seconds."""

    wall_s: float
    own_s: float  # CPU of this process and of its children that have ended
    busy_s: float  # CPU of everybody on the cores

    @classmethod
    def now(cls, cores: Sequence[int]) -> Usage:
        """The clocks now."""
        used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        own_s = sum(one.ru_utime + one.ru_stime for one in used)
        return cls(time.monotonic(), own_s, busy_ticks(STAT.read_text(), cores) / os.sysconf("SC_CLK_TCK"))

    def since(self, before: Usage) -> Usage:
        """What has passed on each clock."""
        return Usage(self.wall_s - before.wall_s, self.own_s - before.own_s, self.busy_s - before.busy_s)

    def others_share(self, num_cores: int) -> float:
        """The part of the cores' time that others took, of what has passed. The kernel's counts may lag by a tick."""
        return max(self.busy_s - self.own_s, 0.0) / max(self.wall_s * num_cores, 1e-9)

    @classmethod
    def of_tree(cls, cores: Sequence[int]) -> Usage:
        """The clocks now; `own_s` has also the children, and theirs, that have not ended."""
        return replace(cls.now(cores), own_s=tree_cpu_s(os.getpid()))


def busy_ticks(stat: str, cores: Sequence[int]) -> int:
    """Ticks that the cores were busy since the machine started, of the text of /proc/stat."""
    names = {f"cpu{core}" for core in cores}
    lines = [line.split() for line in stat.splitlines()]
    return sum(int(line[column]) for line in lines if line and line[0] in names for column in BUSY_COLUMNS)


def tree_cpu_s(root: int) -> float:
    """CPU seconds of a process and all below it, with those that have ended and were waited for."""
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


def share_between(samples: Sequence[Usage], start_s: float, end_s: float, num_cores: int) -> float:
    """The part of the cores' time that others took from the last sample before `start_s` to the first after `end_s`.

    Where there is none before or after, it is the first or the last one. `samples` are in the order of time.
    """
    before = [sample for sample in samples if sample.wall_s <= start_s] or samples[:1]
    after = [sample for sample in samples if sample.wall_s >= end_s] or samples[-1:]
    return after[0].since(before[-1]).others_share(num_cores)


class Watch:
    """What others take of the cores from now on."""

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores, self._before = tuple(cores), Usage.now(cores)

    def passed(self) -> Usage:
        """What has passed since the start."""
        return Usage.now(self._cores).since(self._before)

    def others_share(self) -> float:
        """The part of the cores' time that others took since the start."""
        return self.passed().others_share(len(self._cores))


def look(cores: Sequence[int]) -> float:
    """The part of the cores' time that others take in the next second."""
    watch = Watch(cores)
    time.sleep(LOOK_S)
    return watch.others_share()


def wait_until_quiet(look_once: Callable[[], float], limit_s: float = WAIT_S) -> float:
    """Looks until others take at most `NOISY` of the cores, or for `limit_s`. Returns the last share seen."""
    share = look_once()
    for _ in range(int(limit_s / LOOK_S)):
        if share <= NOISY:
            break
        share = look_once()
    return share
