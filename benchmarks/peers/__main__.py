"""`make bench-peers [race=sac-1] [rounds=3] [only=ours,sbx] [seconds=12] [budget=480]`: who steps faster at equal work.

Every contender does each round in a fresh process, in turns. With a budget the command stops in time with exit code
75, and the same command continues where it stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.children import stop_at_sigterm, use_cores, wide_console
from benchmarks.journal import MORE_LEFT, Budget, Journal, Task, continues, is_marked, why_not_in_pieces
from benchmarks.peers import tuned
from benchmarks.peers.contenders import CONTENDERS, Contender, Ours
from benchmarks.peers.race import SETTLE_S, run
from benchmarks.peers.tables import rates_table, ratios, ratios_table, repeats_of
from benchmarks.peers.workloads import WORKLOADS, Workload
from benchmarks.results import Entry

NUM_CORES = 2
START_S = 12.0  # of a repeat, about: the process, its imports, random actions
SECONDS, LEAST_S = 12.0, 3.0  # measured per repeat
TUNE_MINUTES = 3.0


class Plan(NamedTuple):
    """What a call is asked for."""

    races: Sequence[str]
    only: Sequence[str]
    rounds: int
    seconds: float
    tune_minutes: float


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    plan = Plan(arguments.race, arguments.only, arguments.rounds, arguments.seconds, arguments.tune_minutes)
    budget = Budget.from_options(arguments)
    if budget.is_limited and (why := why_not_in_pieces()) is not None:
        print(why, file=sys.stderr)
        return 2
    return measure(plan, budget, wide_console(), resume=budget.is_limited)


def whole_plan(rounds: int) -> Plan:
    """All races with all contenders."""
    return Plan(list(WORKLOADS), list(CONTENDERS), rounds, SECONDS, TUNE_MINUTES)


def measure(plan: Plan, budget: Budget, console: Console, *, resume: bool) -> int:
    """Runs the races as far as the time goes, and shows them."""
    cores = use_cores(NUM_CORES)
    reasons = {key: CONTENDERS[key].why_missing() for key in plan.only}
    missing = {key: reason for key, reason in reasons.items() if reason is not None}
    settings = {name: value for name, value in plan._asdict().items() if name != "rounds"}
    settings["workloads"] = {race: WORKLOADS[race].settings.to_mapping() for race in plan.races}
    journal = Journal("peers", settings, cores, resume=resume)

    def report(task: Task, outcome: Entry) -> None:
        console.print(_line(task, outcome), highlight=False, markup=False, soft_wrap=True)

    left = journal.run(tasks(plan, missing, journal.done, cores), budget, report)
    for race in plan.races:
        repeats, title = repeats_of(journal.done, race), WORKLOADS[race].title
        if repeats:
            console.print(rates_table(title, repeats, missing))
        asked = [key for key in WORKLOADS[race].contenders if key in plan.only]
        if ratios(repeats, asked):
            console.print(ratios_table(title, repeats, asked))
    for key, reason in missing.items():
        console.print(f"{CONTENDERS[key].name} is not installed: {reason}", soft_wrap=True, markup=False)
    if journal.done:
        console.print(f"written: {journal.file.path}", soft_wrap=True, highlight=False)
    if left:
        console.print(
            f"{len(left)} repeats are left: {continues(left, budget.wait_s)}", highlight=False, soft_wrap=True
        )
        return MORE_LEFT
    for key, failure in journal.failures.items():
        console.print(f"failed: {key}: {failure}", markup=False, highlight=False, soft_wrap=True)
    own = [outcome["data"] for key, outcome in journal.done.items() if key.count("/") == 2 and outcome["data"]]
    return int(
        bool(journal.failures) or any(one["failure"] for one in own if isinstance(CONTENDERS[one["contender"]], Ours))
    )


def tasks(plan: Plan, missing: Mapping[str, str], done: Mapping[str, Entry], cores: tuple[int, ...]) -> Iterator[Task]:
    """Round by round, A B C, A B C: other programs on a shared machine disturb all alike. Tuning comes first."""
    expected_s = START_S + SETTLE_S + plan.seconds
    for race in plan.races:
        if "tuned" in _contenders(plan, race, missing):
            find = partial(tuned.find, WORKLOADS[race].settings, plan.tune_minutes)
            yield Task(f"{race}/tune", 60 * plan.tune_minutes + START_S, find, is_repeated=True)
    for number in range(1, plan.rounds + 1):
        for race in plan.races:
            for key in _contenders(plan, race, missing):
                repeat = partial(_repeat, key, race, plan.seconds, number, cores, done)
                yield Task(f"{race}/{key}/{number}", expected_s, repeat)


def _contenders(plan: Plan, race: str, missing: Mapping[str, str]) -> list[str]:
    return [key for key in WORKLOADS[race].contenders if key in plan.only and key not in missing]


def _repeat(  # noqa: PLR0913  # what a repeat is
    key: str, race: str, seconds: float, number: int, cores: tuple[int, ...], done: Mapping[str, Entry]
) -> dict[str, Any]:
    contender: Contender = CONTENDERS[key]
    if key == "tuned":
        if (failure := done[f"{race}/tune"].get("failure")) is not None:
            raise RuntimeError(f"offpolicy tune found nothing to run: {failure}")
        found = tuple(done[f"{race}/tune"]["data"])
        contender = dataclasses.replace(Ours("offpolicy, tuned"), overrides=found)
    workload: Workload = WORKLOADS[race]
    return asdict(run(key, contender, workload.settings, seconds, number, cores))


def _line(task: Task, outcome: Entry) -> str:
    """One task as it ends."""
    data, noise = outcome["data"], f"others {outcome['others_share']:.0%}"
    if outcome["failure"]:
        return f"{task.key}: {outcome['failure']}  ({outcome['wall_s']:.0f} s, {noise})"
    if isinstance(data, list):
        return f"{task.key}: {' '.join(data) or 'no change was faster'}  ({outcome['wall_s']:.0f} s, {noise})"
    rate = data["failure"] if data["steps_per_sec"] is None else f"{data['steps_per_sec']:,.1f} env steps/s"
    mark = ", left out of medians" if is_marked(outcome) else ""
    return f"{task.key}: {rate}  ({outcome['wall_s']:.0f} s, threads {data['threads']}, {noise}{mark})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--race", type=_races, default=list(WORKLOADS), help=f"some of {','.join(WORKLOADS)}")
    parser.add_argument("--only", type=_keys, default=list(CONTENDERS), help=f"some of {','.join(CONTENDERS)}")
    parser.add_argument("--rounds", type=int, default=3, help="repeats of every contender (default: 3)")
    parser.add_argument("--seconds", type=_seconds, default=SECONDS, help=f"measured per repeat, after {SETTLE_S:.0f}")
    parser.add_argument(
        "--tune-minutes", "--tune_minutes", type=float, default=TUNE_MINUTES, help="of trials for `tuned`"
    )
    Budget.add_options(parser)
    return parser


def _seconds(text: str) -> float:
    if float(text) < LEAST_S:
        raise argparse.ArgumentTypeError(f"got {text}, allowed at least {LEAST_S:g}: counters are read once a second")
    return float(text)


def _races(text: str) -> list[str]:
    return _some_of(text, WORKLOADS)


def _keys(text: str) -> list[str]:
    return _some_of(text, CONTENDERS)


def _some_of(text: str, known: Mapping[str, object]) -> list[str]:
    keys = text.split(",")
    if unknown := set(keys) - known.keys():
        raise argparse.ArgumentTypeError(f"got {', '.join(sorted(unknown))}, allowed {', '.join(known)}")
    return keys


if __name__ == "__main__":
    stop_at_sigterm()
    sys.exit(main())
