"""A benchmark as tasks that are done once each, in one entry of the results.

Before each task the cores are watched until others leave them alone, or for a minute. A task during which others took
more than 5 % of them is marked: what it measured stays in the results, and out of medians.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.results import Entry, all_entries, commit, facts_now, machine_kind, save

NOISY = 0.05  # share of the cores' time
LOOK_S = 1.0  # of one look at the cores
WAIT_S = 60.0  # for quiet, before a repeat
PROCESSES = Path("/proc")
BUSY_COLUMNS = (1, 2, 3, 6, 7, 8)  # user, nice, system, irq, softirq, steal; idle is 4, iowait 5
MORE_LEFT = 75  # exit code of a call whose time was up before all was measured: the same command continues


@dataclass(frozen=True, slots=True)
class Usage:
    """Clocks at one instant, in seconds."""

    wall_s: float
    own_s: float  # CPU of this process and of all below it
    busy_s: float  # CPU of all programs on the cores

    @classmethod
    def now(cls, cores: Sequence[int]) -> Usage:
        """Returns the clocks now."""
        busy = busy_ticks((PROCESSES / "stat").read_text(), cores)
        return cls(time.monotonic(), _tree_cpu_s(os.getpid()), busy / os.sysconf("SC_CLK_TCK"))

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


class Task(NamedTuple):
    """Something to be measured once. `measure` returns JSON data."""

    key: str
    expected_s: float
    measure: Callable[[], Any]


class Journal:
    """The tasks done so far of one benchmark with one set of settings.

    With a budget it goes on with the entry of an earlier call of the same settings, clean commit and kind of machine.
    """

    def __init__(self, benchmark: str, settings: Mapping[str, Any], cores: Sequence[int], budget_s: float) -> None:
        self._cores, self._end_s = tuple(cores), time.monotonic() + budget_s
        self.entry = facts_now(benchmark) | {"settings": dict(settings), "tasks": {}}
        same = [one for one in all_entries() if self._is_same(one)]
        if same and math.isfinite(budget_s) and not self.entry["commit"].endswith(("-dirty", "unknown")):
            self.entry = same[-1]

    def _is_same(self, entry: Entry) -> bool:
        keys = ("benchmark", "settings", "commit")
        return all(entry[key] == self.entry[key] for key in keys) and machine_kind(entry) == machine_kind(self.entry)

    @property
    def done(self) -> dict[str, Entry]:
        """What each task that is done has measured."""
        tasks: dict[str, Entry] = self.entry["tasks"]
        return tasks

    def run(self, tasks: Iterable[Task], console: Console, describe: Callable[[Any], str]) -> int:
        """Does, shows and saves the tasks that are not done yet, as far as the time goes. Returns the exit code.

        A failure of a task is its outcome, and the others go on. Raises `SystemExit` where the commit changes.
        """
        left = [task for task in tasks if task.key not in self.done]
        while left and time.monotonic() + WAIT_S + left[0].expected_s <= self._end_s:
            task = left.pop(0)
            if commit() != self.entry["commit"]:
                raise SystemExit(f"commit: got {commit()}, allowed {self.entry['commit']}, at which this was begun")
            outcome = self._outcome(task)
            self.done[task.key] = outcome
            path = save(self.entry)
            text = outcome.get("failure") or describe(outcome["data"])
            mark = ", left out of medians" if is_marked(outcome) else ""
            noise = f"({outcome['wall_s']:.0f} s, others {outcome['others_share']:.0%}{mark})"
            console.print(f"{task.key}: {text} {noise}", markup=False, highlight=False, soft_wrap=True)
            if not left:
                console.print(f"written: {path}", soft_wrap=True, highlight=False)
        if left:
            needed_s = left[0].expected_s + WAIT_S
            text = f"{len(left)} measurements are left; the same command continues, and needs a budget of {needed_s:g}"
            console.print(text, soft_wrap=True, highlight=False)
            return MORE_LEFT
        return int(any(outcome.get("failure") for outcome in self.done.values()))

    def _outcome(self, task: Task) -> Entry:
        wait_until_quiet(partial(look, self._cores))
        before, outcome = Usage.now(self._cores), {"started": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        try:
            found = {"data": task.measure()}
        except Exception as error:
            found = {"failure": f"{type(error).__name__}: {error}"}
        passed = Usage.now(self._cores).since(before)
        share = passed.others_share(len(self._cores))
        if isinstance(found.get("data"), dict):  # a race measures the share in the window of its rate
            share = found["data"].pop("others_share", share)
        return outcome | {"wall_s": passed.wall_s, "others_share": share} | found


def add_budget(parser: argparse.ArgumentParser) -> None:
    """Adds `--budget` to a command."""
    parser.add_argument(
        "--budget", type=float, default=math.inf, help="seconds of this call; exit code 75: the same command continues"
    )


def names_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Returns a parser of names with commas between them."""

    def names(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"got {', '.join(unknown)}, allowed {', '.join(known)}")
        return found

    return names


def is_marked(outcome: Mapping[str, Any]) -> bool:
    """True if others took much of the cores while it was measured: the numbers say little."""
    return float(outcome["others_share"]) > NOISY
