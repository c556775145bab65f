"""`make bench-peers [race=sac-1] [rounds=3] [only=ours,sbx] [seconds=12] [budget=480]`: who steps faster at equal work.

Every contender does each round in a fresh process, in turns. With a budget the command stops in time with exit code
75, and the same command continues where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.children import stop_at_sigterm, use_cores, wide_console
from benchmarks.journal import Journal, Task, add_budget, is_marked, names_of
from benchmarks.measurement import Spread
from benchmarks.peers.contenders import CONTENDERS, WORKLOADS
from benchmarks.peers.race import SETTLE_S, run
from benchmarks.results import Entry

NUM_CORES = 2
START_S = 12.0  # of a repeat, about: the process, its imports, random actions
SECONDS, LEAST_S = 12.0, 3.0  # measured per repeat
MOST_APART_S = 900.0  # between the two parts of a ratio
RATIOS = (("ours", "sb3-2"), ("ours", "sbx"), ("ours", "control-2"), ("overlap", "sbx"))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    cores, console = use_cores(NUM_CORES), wide_console()
    settings = {"races": arguments.race, "only": arguments.only, "seconds": arguments.seconds}
    missing = {key: reason for key in arguments.only if (reason := CONTENDERS[key].why_missing()) is not None}
    journal = Journal("peers", settings, cores, arguments.budget)
    code = journal.run(tasks(arguments, missing, cores), console, _words)
    for race in arguments.race:
        repeats = repeats_of(journal.done, race)
        if repeats:
            console.print(rates_table(race, WORKLOADS[race].num_envs, repeats))
        if found := ratios(repeats):
            console.print(ratios_table(race, found))
    for key, reason in missing.items():
        console.print(f"{CONTENDERS[key].name} is not installed: {reason}", soft_wrap=True, markup=False)
    return code


def tasks(arguments: argparse.Namespace, missing: Sequence[str], cores: tuple[int, ...]) -> Iterator[Task]:
    """Yields, round by round, A B C, A B C: other programs on a shared machine disturb all alike."""
    for number in range(1, arguments.rounds + 1):
        for race in arguments.race:
            for key in arguments.only:
                if key not in missing:
                    repeat = partial(run, CONTENDERS[key], WORKLOADS[race], arguments.seconds, number, cores)
                    yield Task(f"{race}/{key}/{number}", START_S + SETTLE_S + arguments.seconds, repeat)


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


def ratios(repeats: Collection[Repeat]) -> dict[str, dict[int, float]]:
    """Returns every ratio by round, where both of its parts are there and neighbours in time."""
    by_key = {(one.contender, one.round): one for one in repeats}
    table: dict[str, dict[int, float]] = {}
    for above, below in RATIOS:
        name = f"{CONTENDERS[above].name} / {CONTENDERS[below].name}"
        for number in sorted({one.round for one in repeats}):
            one, other = by_key.get((above, number)), by_key.get((below, number))
            if one and other and abs(one.started_s - other.started_s) <= MOST_APART_S:
                table.setdefault(name, {})[number] = one.steps_per_sec / other.steps_per_sec
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


def _words(data: dict[str, Any]) -> str:
    return f"{data['steps_per_sec']:,.1f} env steps/s, threads {data['threads']}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    races, keys = list(WORKLOADS), list(CONTENDERS)
    parser.add_argument("--race", type=names_of(races), default=races, help=f"some of {','.join(races)}")
    parser.add_argument("--only", type=names_of(keys), default=keys, help=f"some of {','.join(keys)}")
    parser.add_argument("--rounds", type=int, default=3, help="repeats of every contender (default: 3)")
    parser.add_argument("--seconds", type=_seconds, default=SECONDS, help=f"measured per repeat, after {SETTLE_S:.0f}")
    add_budget(parser)
    return parser


def _seconds(text: str) -> float:
    if float(text) < LEAST_S:
        raise argparse.ArgumentTypeError(f"got {text}, allowed at least {LEAST_S:g}: counters are read once a second")
    return float(text)


if __name__ == "__main__":
    stop_at_sigterm()
    sys.exit(main())
