"""The repeats of a race as tables: rates, and ratios formed round by round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.race import Repeat
from benchmarks.stats import Spread

NOISY = 0.1  # share of the cores' time taken by others from which on a repeat says little
RATIOS = {  # numerator, and the denominators of which the fastest counts
    "offpolicy / SB3 with 1 thread": ("ours", ("sb3-1",)),
    "offpolicy / SB3 with 2 threads": ("ours", ("sb3-2",)),
    "offpolicy / faster SB3": ("ours", ("sb3-1", "sb3-2")),
    "offpolicy, overlap / faster SB3": ("overlap", ("sb3-1", "sb3-2")),
    "offpolicy / SBX": ("ours", ("sbx",)),
}


def rates(repeats: Sequence[Repeat], contender: str) -> dict[int, float]:
    """Env steps per second of the repeats that succeeded, by round."""
    return {r.round: r.steps_per_sec for r in repeats if r.contender == contender and r.steps_per_sec is not None}


def ratios(repeats: Sequence[Repeat]) -> dict[str, dict[int, float]]:
    """Every ratio by round, where all its parts succeeded: neighbours in time share the machine's weather."""
    table = {}
    for name, (numerator, denominators) in RATIOS.items():
        above, below = rates(repeats, numerator), [rates(repeats, key) for key in denominators]
        whole = [number for number in above if all(number in side for side in below)]
        table[name] = {number: above[number] / max(side[number] for side in below) for number in whole}
    return table


def rates_table(repeats: Sequence[Repeat], missing: Iterable[str], steps: int) -> Table:
    """Median and range per contender; whoever is missing or failed has a row too."""
    table = Table(title=f"SAC, HalfCheetah-v5, {steps:,} env steps, one update each: env steps per second")
    for heading in ("", "median", "min", "max", "repeats", "CPU s", "others' CPU"):
        table.add_column(heading, justify="right" if heading else "left")
    for key in dict.fromkeys(repeat.contender for repeat in repeats):
        own = [repeat for repeat in repeats if repeat.contender == key]
        values = list(rates(own, key).values())
        others = max(repeat.others_share for repeat in own)
        noise = f"[red]{others:.0%}[/red]" if others > NOISY else f"{others:.0%}"
        numbers = [f"{value:.1f}" for value in Spread.of(values)] if values else ["failed", "", ""]
        # Of the whole repeat, start-up included: hardly different on a busy machine.
        cpu = f"{Spread.of([repeat.cpu_s for repeat in own]).median:.0f}"
        table.add_row(CONTENDERS[key].name, *numbers, f"{len(values)}/{len(own)}", cpu, noise)
    for key in missing:
        table.add_row(CONTENDERS[key].name, "not installed")
    if any(repeat.others_share > NOISY for repeat in repeats):
        table.caption = f"Others took more than {NOISY:.0%} of the cores: repeat this on a quiet machine."
    return table


def ratios_table(repeats: Sequence[Repeat]) -> Table:
    """The median of each ratio, and the ratio of every round."""
    table = Table(title="Ratios of env steps per second, round by round")
    for heading in ("", "median", "rounds"):
        table.add_column(heading, justify="right" if heading == "median" else "left")
    for name, by_round in ratios(repeats).items():
        if by_round:
            rounds = "  ".join(f"{ratio:.2f}" for ratio in by_round.values())
            table.add_row(name, f"{Spread.of(list(by_round.values())).median:.2f}", rounds)
    return table
