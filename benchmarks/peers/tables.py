"""The repeats of a race as tables: rates, and ratios formed round by round. Marked repeats are left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import NamedTuple

from rich.table import Table

from benchmarks.journal import is_marked
from benchmarks.peers.contenders import CONTENDERS
from benchmarks.results import Entry
from benchmarks.stats import Spread

MOST_APART_S = 900.0  # between the parts of a ratio
RATIOS = {  # numerator, and the denominators of which the fastest counts
    "offpolicy / faster SB3": ("ours", ("sb3-1", "sb3-2")),
    "offpolicy / SBX": ("ours", ("sbx",)),
    "offpolicy / single file": ("ours", ("control-1", "control-2")),
    "offpolicy / single file without autograd": ("ours", ("by-hand-2",)),
    "offpolicy, overlap / SBX": ("overlap", ("sbx",)),
    "offpolicy, auto / SBX": ("auto", ("sbx",)),
    "single file without autograd / SBX": ("by-hand-2", ("sbx",)),
    "single file without autograd / single file": ("by-hand-2", ("control-1", "control-2")),
}


class Repeat(NamedTuple):
    """A repeat that succeeded on a quiet machine."""

    contender: str
    round: int
    steps_per_sec: float
    started_s: float
    update_ms: float | None = None  # of an update with the sampling of its batch
    threads: str = ""


def repeats_of(tasks: Mapping[str, Entry], race: str) -> list[Repeat]:
    """Returns the quiet repeats of one race, of the tasks of an entry: `<race>/<contender>/<round>`."""
    found = []
    for key, outcome in tasks.items():
        of_race, contender, number = key.split("/")
        if of_race == race and "data" in outcome and not is_marked(outcome):
            data, started = outcome["data"], datetime.strptime(outcome["started"], "%Y-%m-%dT%H:%M:%S%z")
            rest = (data["update_ms"], data["threads"])
            found.append(Repeat(contender, int(number), data["steps_per_sec"], started.timestamp(), *rest))
    return found


def ratios(repeats: Collection[Repeat], asked: Collection[str]) -> dict[str, dict[int, float]]:
    """Returns every ratio by round, where all its parts among the contenders `asked` for are there and neighbours.

    One that is left out would raise the ratio: the fastest of a library counts. Where only one was asked for, the
    ratio has its name.
    """
    by_key = {(one.contender, one.round): one for one in repeats}
    table: dict[str, dict[int, float]] = {}
    for name, (numerator, denominators) in RATIOS.items():
        others = [key for key in denominators if key in asked]
        one_of_two = f"{CONTENDERS[numerator].name} / {', '.join(CONTENDERS[key].name for key in others)}"
        title = name if len(others) == len(denominators) else one_of_two
        for above in (one for one in repeats if one.contender == numerator):
            below = [by_key[key, above.round] for key in others if (key, above.round) in by_key]
            is_near = all(abs(one.started_s - above.started_s) <= MOST_APART_S for one in below)
            if below and len(below) == len(others) and is_near:
                rate = max(one.steps_per_sec for one in below)
                table.setdefault(title, {})[above.round] = above.steps_per_sec / rate
    return table


def rates_table(title: str, num_envs: int, repeats: Collection[Repeat]) -> Table:
    """Shows the median and range of each contender's rate, and of an iteration its update."""
    table = Table(title=f"{title}: env steps per second")
    for heading in ("", "median", "min", "max", "iteration, ms", "of it update", "rounds", "threads"):
        table.add_column(heading, justify="left" if heading in ("", "threads") else "right")
    for key in dict.fromkeys(one.contender for one in repeats):
        own = [one for one in repeats if one.contender == key]
        rates = Spread.of([one.steps_per_sec for one in own])
        updates = [one.update_ms for one in own if one.update_ms is not None]
        update = f"{Spread.of(updates).median:.2f}" if updates else ""
        numbers = [f"{value:,.1f}" for value in rates] + [f"{1000 * num_envs / rates.median:.2f}", update]
        table.add_row(CONTENDERS[key].name, *numbers, str(len(own)), own[-1].threads)
    return table


def ratios_table(title: str, by_name: Mapping[str, Mapping[int, float]]) -> Table:
    """Shows the median of each ratio, and the ratio of every round."""
    table = Table(title=f"{title}: ratios, round by round")
    for heading in ("", "median", "rounds"):
        table.add_column(heading, justify="right" if heading == "median" else "left")
    for name, by_round in by_name.items():
        shown = "  ".join(f"{ratio:.2f}" for ratio in by_round.values())
        table.add_row(name, f"{Spread.of(list(by_round.values())).median:.2f}", shown)
    return table
