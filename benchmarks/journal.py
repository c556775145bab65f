"""A benchmark in pieces: tasks that are done once each, in one entry of the results that every call continues.

Before each task the cores are watched until others leave them alone, or for a minute; a task during which others took
more than 5 % of them is marked, and what it measured stays in the results but out of medians. A repeat of a race is
judged by the window of its rate alone (`others_share` of its data).
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

MOST_ATTEMPTS = 3
LATE_S = 90.0  # beyond twice what a part is expected to take, until it is ended
MORE_LEFT = 75  # exit code of a call whose time was up before all was measured: the same command continues


class Task(NamedTuple):
    """Something to be measured once. `measure` returns JSON data."""

    key: str
    expected_s: float
    measure: Callable[[], Any]
    is_repeated: bool = False  # while it is marked, up to `MOST_ATTEMPTS` times


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
        """True if a task of so many seconds, and the wait before it, fit into what is left."""
        return time.monotonic() + self.wait_s + seconds <= self._end_s


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
        """Does and saves the tasks that are not done yet, as far as the time goes. Returns those that are left.

        Raises `SystemExit` where the commit is no longer that of the entry.
        """
        left = [task for task in tasks if self._is_due(task)]
        while left and budget.has(left[0].expected_s):
            task = left[0]
            self._file.check_commit()
            self.done[task.key] = self._outcome(task, budget.wait_s)
            self._file.save(settings=self._settings, cores=self._cores, tasks=self.done)
            report(task, self.done[task.key])
            if not self._is_due(task):
                left.pop(0)
        return left

    def _is_due(self, task: Task) -> bool:
        """True for a task that is not done, or was marked and is to be repeated."""
        outcome = self.done.get(task.key)
        if outcome is None:
            return True
        return task.is_repeated and is_marked(outcome) and outcome.get("attempts", 1) < MOST_ATTEMPTS

    def _outcome(self, task: Task, wait_s: float) -> Entry:
        """Measures a task. What it raises is its outcome: the others go on."""
        share_before = wait_until_quiet(partial(look, self._cores), wait_s)
        watch, started = Watch(self._cores), time.strftime("%Y-%m-%dT%H:%M:%S%z")
        data, failure = None, None
        try:
            data = task.measure()
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        passed = watch.passed()
        share = passed.others_share(len(self._cores))
        if isinstance(data, Mapping) and data.get("others_share") is not None:  # of the measured window
            share = data["others_share"]
        return {
            "started": started,
            "wall_s": passed.wall_s,
            "others_before": share_before,
            "others_share": share,
            "attempts": self.done.get(task.key, {}).get("attempts", 0) + 1,
            "failure": failure,
            "data": data,
        }

    @property
    def failures(self) -> dict[str, str]:
        """What the tasks that failed have raised."""
        return {key: outcome["failure"] for key, outcome in self.done.items() if outcome.get("failure")}


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


def continues(left: Sequence[Task], wait_s: float) -> str:
    """What a user does about tasks that are left: a budget below what the next one needs would never do it."""
    minutes = sum(task.expected_s for task in left) / 60.0
    return (
        f"about {minutes:.0f} minutes; the same command continues with {left[0].key}, which needs a budget of"
        f" {left[0].expected_s + wait_s:.0f} s"
    )


def why_not_in_pieces() -> str | None:
    """Returns why a benchmark cannot be continued by another call: its tree has no commit that says what it is."""
    commit = str(results.commit())
    if commit == "unknown":
        return "budget: got a tree without git, allowed a commit: only its calls belong together"
    if commit.endswith("-dirty"):
        changed = ", ".join(results.changed_files())
        return f"budget: got a tree with changes ({changed}), allowed none: commit them, or leave `budget` out"
    return None


def is_marked(outcome: Mapping[str, Any]) -> bool:
    """True if the numbers say little: others took much of the cores, or threads or mode changed while it measured."""
    data = outcome.get("data")
    return float(outcome["others_share"]) > NOISY or (isinstance(data, Mapping) and bool(data.get("has_changed")))
