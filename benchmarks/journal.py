"""A benchmark as tasks that are done once each, in one entry of the results.

Before each task the cores are watched until others leave them alone, or for a minute. A task during which others took
more than 5 % of them is marked: what it measured stays in the results, and out of medians.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.quiet import NOISY, WAIT_S, Usage, look, wait_until_quiet
from benchmarks.results import Entry, all_entries, commit, facts_now, machine_kind, save

MORE_LEFT = 75  # exit code of a call whose time was up before all was measured: the same command continues


class Task(NamedTuple):
    """Something to be measured once. `measure` returns JSON data."""

    key: str
    expected_s: float
    measure: Callable[[], Any]


class Journal:
    """The tasks done so far of one benchmark with one set of settings.

    With a budget in seconds it goes on with the entry of an earlier call that had the same settings, commit and kind
    of machine. A tree with changes has no commit that says what was measured, and begins an entry each time.
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
