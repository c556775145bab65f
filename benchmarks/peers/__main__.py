"""`make bench-peers [race=sac-1] [rounds=3] [only=ours,sbx] [seconds=12] [budget=480]`: who steps faster at equal work.

Every contender does each round in a fresh process, in turns. With a budget the command stops in time with exit code
75, and the same command continues where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.children import stop_at_sigterm, use_cores, wide_console
from benchmarks.journal import Journal, Task, add_budget, names_of
from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.race import SETTLE_S, run
from benchmarks.peers.tables import rates_table, ratios, ratios_table, repeats_of
from benchmarks.peers.workloads import WORKLOADS

NUM_CORES = 2
START_S = 12.0  # of a repeat, about: the process, its imports, random actions
SECONDS, LEAST_S = 12.0, 3.0  # measured per repeat


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    cores, console = use_cores(NUM_CORES), wide_console()
    settings = {"races": arguments.race, "only": arguments.only, "seconds": arguments.seconds}
    missing = {key: reason for key in arguments.only if (reason := CONTENDERS[key].why_missing()) is not None}
    journal = Journal("peers", settings, cores, arguments.budget)
    code = journal.run(tasks(arguments, missing, cores), console, _words)
    for race in arguments.race:
        workload, repeats = WORKLOADS[race], repeats_of(journal.done, race)
        if repeats:
            console.print(rates_table(workload.title, workload.settings.num_envs, repeats))
        if found := ratios(repeats, arguments.only):
            console.print(ratios_table(workload.title, found))
    for key, reason in missing.items():
        console.print(f"{CONTENDERS[key].name} is not installed: {reason}", soft_wrap=True, markup=False)
    return code


def tasks(arguments: argparse.Namespace, missing: Sequence[str], cores: tuple[int, ...]) -> Iterator[Task]:
    """Yields, round by round, A B C, A B C: other programs on a shared machine disturb all alike."""
    for number in range(1, arguments.rounds + 1):
        for race in arguments.race:
            for key in arguments.only:
                if key not in missing:
                    repeat = partial(run, CONTENDERS[key], WORKLOADS[race].settings, arguments.seconds, number, cores)
                    yield Task(f"{race}/{key}/{number}", START_S + SETTLE_S + arguments.seconds, repeat)


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
