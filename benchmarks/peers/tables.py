"""The repeats of a race as tables: rates, and ratios formed round by round. Marked repeats are shown, and left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from rich.table import Table

from benchmarks.journal import is_marked
from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.workloads import WORKLOADS
from benchmarks.quiet import NOISY
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
    "offpolicy, tuned / SBX": ("tuned", ("sbx",)),
    "offpolicy, tuned / faster SB3": ("tuned", ("sb3-1", "sb3-2")),
    "single file without autograd / SBX": ("by-hand-2", ("sbx",)),
    "single file without autograd / single file": ("by-hand-2", ("control-1", "control-2")),
}


class Done(NamedTuple):
    """One repeat of the results."""

    contender: str
    round: int
    steps_per_sec: float | None
    failure: str | None
    threads: str
    others_share: float
    is_marked: bool
    started_s: float = 0.0
    window_s: float = 0.0  # in which the rate was taken
    iteration_ms: float | None = None  # from one update to the next
    update_ms: float | None = None  # of it the update, with the sampling of its batch; older results lack it


def repeats_of(tasks: Mapping[str, Entry], workload: str) -> list[Done]:
    """The repeats of one race, of the tasks of an entry: `<workload>/<contender>/<round>`."""
    found = [(key, outcome) for key, outcome in tasks.items() if key.split("/")[0] == workload and key.count("/") == 2]
    num_envs = WORKLOADS[workload].settings.num_envs
    return [
        Done(
            contender=key.split("/")[1],
            round=int(key.split("/")[2]),
            steps_per_sec=(outcome["data"] or {}).get("steps_per_sec"),
            failure=outcome.get("failure") or (outcome["data"] or {}).get("failure"),
            threads=(outcome["data"] or {}).get("threads", ""),
            others_share=float(outcome["others_share"]),
            is_marked=is_marked(outcome),
            started_s=_seconds(outcome.get("started")),
            window_s=(outcome["data"] or {}).get("window_s", 0.0),
            iteration_ms=_iteration_ms((outcome["data"] or {}).get("steps_per_sec"), num_envs),
            update_ms=(outcome["data"] or {}).get("update_ms"),
        )
        for key, outcome in found
    ]


def _iteration_ms(steps_per_sec: float | None, num_envs: int) -> float | None:
    """Milliseconds of a vector step with its one update."""
    return 1000 * num_envs / steps_per_sec if steps_per_sec else None


def _seconds(started: str | None) -> float:
    """Returns a stamp of the results in seconds; 0 without one."""
    return datetime.strptime(started, "%Y-%m-%dT%H:%M:%S%z").timestamp() if started else 0.0


def rates(repeats: Sequence[Done], contender: str) -> dict[int, float]:
    """Env steps per second of the repeats that succeeded on a quiet machine, by round."""
    return {
        one.round: one.steps_per_sec
        for one in repeats
        if one.contender == contender and one.steps_per_sec is not None and not one.is_marked
    }


def left_out(repeats: Sequence[Done], contender: str) -> list[float]:
    """Env steps per second of the marked repeats."""
    own = [one for one in repeats if one.contender == contender and one.is_marked]
    return [one.steps_per_sec for one in own if one.steps_per_sec is not None]


def ratios(repeats: Sequence[Done], asked: Collection[str]) -> dict[str, dict[int, float]]:
    """Every ratio by round, where all its parts among the contenders `asked` for are there, and are neighbours in time.

    One that is left out would raise the ratio: the fastest of a library counts. Where only one was asked for, the
    ratio has its name.
    """
    started = {(one.contender, one.round): one.started_s for one in repeats}
    table = {}
    for name, (numerator, denominators) in RATIOS.items():
        above, others = rates(repeats, numerator), [key for key in denominators if key in asked]
        below = {key: rates(repeats, key) for key in others}
        one_of_two = f"{CONTENDERS[numerator].name} / {', '.join(CONTENDERS[key].name for key in others)}"
        table[name if len(others) == len(denominators) else one_of_two] = {
            number: rate / max(side[number] for side in below.values())
            for number, rate in above.items()
            if others
            and all(number in side for side in below.values())
            and all(abs(started[key, number] - started[numerator, number]) <= MOST_APART_S for key in others)
        }
    return {name: by_round for name, by_round in table.items() if by_round}


class Row(NamedTuple):
    """A contender in words."""

    name: str
    median: str
    low: str
    high: str
    iteration_ms: str
    update_ms: str
    rounds: str
    left_out: str
    threads: str
    noise: str


HEADINGS = ("", "median", "min", "max", "iteration, ms", "of it update", "rounds", "left out", "threads", "others' CPU")


def rows(repeats: Sequence[Done], missing: Iterable[str]) -> list[Row]:
    """Median and range per contender; whoever is missing or failed has a row too."""
    table = []
    for key in dict.fromkeys(one.contender for one in repeats):
        own = [one for one in repeats if one.contender == key]
        values, busy = list(rates(own, key).values()), left_out(own, key)
        failed = [one for one in own if one.failure is not None]
        middle, low, high = "failed" if len(failed) == len(own) else "no quiet round", "", ""
        if values:
            middle, low, high = (f"{value:,.1f}" for value in Spread.of(values))
        threads = next((one.threads for one in reversed(own) if one.threads), "")
        noise = f"{max(one.others_share for one in own):.0%}"
        shown = ", ".join(f"{value:,.1f}" for value in busy)
        quiet = [one for one in own if not one.is_marked and one.steps_per_sec is not None]
        parts = (_median_ms([one.iteration_ms for one in quiet]), _median_ms([one.update_ms for one in quiet]))
        rounds = f"{len(values)}/{len(own)}"
        table.append(Row(CONTENDERS[key].name, middle, low, high, *parts, rounds, shown, threads, noise))
    return table + [Row(CONTENDERS[key].name, "not measured", *[""] * (len(HEADINGS) - 2)) for key in missing]


def _median_ms(values: Sequence[float | None]) -> str:
    """The median of the milliseconds that are known."""
    known = [value for value in values if value is not None]
    return f"{Spread.of(known).median:.2f}" if known else ""


def rates_table(title: str, repeats: Sequence[Done], missing: Iterable[str]) -> Table:
    """Median and range per contender."""
    table = Table(title=f"{title}: env steps per second")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("", "threads") else "right")
    for row in rows(repeats, missing):
        table.add_row(*row)
    if any(one.is_marked for one in repeats):
        why = f"others took more than {NOISY:.0%} of the cores, or threads or mode changed"
        table.caption = f"Left out: rounds in which {why}."
    return table


def ratios_table(title: str, repeats: Sequence[Done], asked: Collection[str]) -> Table:
    """The median of each ratio, and the ratio of every round."""
    table = Table(title=f"{title}: ratios, round by round")
    for heading in ("", "median", "rounds"):
        table.add_column(heading, justify="right" if heading == "median" else "left")
    for name, by_round in ratios(repeats, asked).items():
        shown = "  ".join(f"{ratio:.2f}" for ratio in by_round.values())
        table.add_row(name, f"{Spread.of(list(by_round.values())).median:.2f}", shown)
    return table
