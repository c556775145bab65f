"""A benchmark in pieces: tasks that are done once each, in one entry of the results that every call continues.

Before each task the cores are watched until others leave them alone, or for a minute; a task during which others took
more than 5 % of them is marked, and what it measured stays in the results but out of medians.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import results
from benchmarks.quiet import NOISY, WAIT_S, Watch, look, wait_until_quiet
from benchmarks.results import Entry, ResultFile, all_entries, facts_now, machine_kind

MORE_LEFT = 75  # exit code of a call whose time was up before all was measured: the same command continues


class Task(NamedTuple):
    """Something to be measured once. `measure` returns JSON data."""

    key: str
    expected_s: float
    measure: Callable[[], Any]


class Budget:
    """The time that one call has for all of its tasks, and that each of them may wait for quiet."""

    def __init__(self, seconds: float = math.inf, wait_s: float = WAIT_S) -> None:
        self.wait_s = wait_s
        self.is_limited = math.isfinite(seconds)
        self._end_s = time.monotonic() + seconds

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser, seconds: float = math.inf) -> None:
        """Adds the options of `from_options` to a command."""
        parser.add_argument(
            "--budget", type=float, default=seconds, help=f"seconds of this call; the next continues (now: {seconds:g})"
        )
        parser.add_argument(
            "--wait", type=float, default=WAIT_S, help=f"seconds to wait for quiet, at most (default: {WAIT_S:g})"
        )

    @classmethod
    def from_options(cls, arguments: argparse.Namespace) -> Budget:
        """The budget that begins now."""
        return cls(arguments.budget, arguments.wait)

    def has(self, seconds: float) -> bool:
        """True if that much is left."""
        return time.monotonic() + seconds <= self._end_s


class Journal:
    """The tasks done so far of one benchmark with one set of settings, at one commit on one kind of machine."""

    def __init__(self, benchmark: str, settings: Mapping[str, Any], cores: Sequence[int], *, resume: bool) -> None:
        self._settings, self._cores = dict(settings), tuple(cores)
        self.done: dict[str, Entry] = {}
        found = unfinished(benchmark, self._settings) if resume else None
        if found is None:
            self._file = ResultFile(benchmark)
        else:
            path, index, entry = found
            self._file, self.done = ResultFile.reopened(path, index), dict(entry["tasks"])

    @property
    def file(self) -> ResultFile:
        """Where it is kept."""
        return self._file

    def run(self, tasks: Iterable[Task], budget: Budget, report: Callable[[Task, Entry], None]) -> list[Task]:
        """Does and saves the tasks that are not done yet, as far as the time goes. Returns those that are left."""
        left = [task for task in tasks if task.key not in self.done]
        while left and budget.has(left[0].expected_s):
            task = left.pop(0)
            share_before = wait_until_quiet(partial(look, self._cores), budget.wait_s)
            watch, started = Watch(self._cores), time.strftime("%Y-%m-%dT%H:%M:%S%z")
            data = task.measure()
            passed = watch.passed()
            facts = {"others_before": share_before, "others_share": passed.others_share(len(self._cores))}
            self.done[task.key] = {"started": started, "wall_s": passed.wall_s, **facts, "data": data}
            self._file.save(settings=self._settings, cores=self._cores, tasks=self.done)
            report(task, self.done[task.key])
        return left


def unfinished(benchmark: str, settings: Mapping[str, Any]) -> tuple[Path, int, Entry] | None:
    """The newest entry that this call continues: same benchmark, settings, machine and commit, without other changes.

    A tree with changes of its own has no commit that says what was measured: it begins anew each time.
    """
    now = facts_now(benchmark)
    found = None
    for path, index, entry in all_entries(results.RESULTS):
        is_same = entry.get("benchmark") == benchmark and entry.get("settings") == settings and "tasks" in entry
        if is_same and entry["commit"] == now["commit"] and machine_kind(entry) == machine_kind(now):
            found = path, index, entry
    return None if str(now["commit"]).endswith(("-dirty", "unknown")) else found


def continues(left: Sequence[Task]) -> str:
    """What a user does about tasks that are left: a budget below what the next one needs would never do it."""
    return f"the same command continues with {left[0].key}, which needs a budget of {left[0].expected_s:.0f} s"


def is_marked(outcome: Mapping[str, Any]) -> bool:
    """True if others took so much of the cores meanwhile that the numbers say little."""
    return float(outcome["others_share"]) > NOISY
