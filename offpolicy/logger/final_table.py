"""The end-of-run summary on the terminal: both accounts to 100 %, rates, result, verdict and advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offpolicy.logger.console import count, duration, fixed, rate
from offpolicy.logger.metrics import COLLECTOR_ROWS, LEARNER_ROWS, METRICS
from offpolicy.logger.stragglers import least_waiting
from offpolicy.logger.summary import WARMUP
from offpolicy.timing.phases import LearnerPhase

Section = Mapping[str, Any]  # Any: a nested mapping of summary.json
Row = tuple[str, str, str]
RANK_BARRIER = str(LearnerPhase.RANK_BARRIER)
LEARNER_NAMES = LEARNER_ROWS | {WARMUP: "Warm-up"}
COLLECTOR_NAMES = COLLECTOR_ROWS | {WARMUP: "Warm-up"}
STATUS_STYLES = {"completed": "bold green", "interrupted": "bold yellow", "failed": "bold red"}


def final_table(summary: Section) -> RenderableType:
    """What a person wants to know of a finished run, from the mapping of `summary.json`."""
    status = summary["status"]
    headline = Text.assemble(
        (status, STATUS_STYLES.get(status, "bold")),
        f" after {count(summary['env_steps'])} steps, {count(summary['updates'])} updates,"
        f" {duration(summary['wall_s'])}: {summary['reason']}",
    )
    return Group(headline, _account_table(summary["timing"]), _results(summary))


def _account_table(timing: Section) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for side in ("Learner", "Collector"):
        table.add_column(side)
        table.add_column("s", justify="right")
        table.add_column("%", justify="right")
    left = _account_rows(timing["learner"], LEARNER_NAMES)
    right = _account_rows(timing["collector"], COLLECTOR_NAMES)
    for pair in zip_longest(left, right, fillvalue=("", "", "")):
        table.add_row(*pair[0], *pair[1])
    return table


def _account_rows(section: Section | None, names: Mapping[str, str]) -> list[Row]:
    """One row per bucket, the residual and the wall; percentages sum to 100."""
    if section is None:
        return [("not timed", "", "")]
    seconds = {**section["phases_s"], "other": section["other_s"]}
    shares = percentages(list(seconds.values()))
    rows = [(names[name], f"{value:.1f}", share) for (name, value), share in zip(seconds.items(), shares, strict=True)]
    return [*rows, ("Wall", f"{section['wall_s']:.1f}", "100.0" if section["wall_s"] else "-")]


def percentages(values: Sequence[float]) -> list[str]:
    """Shares in tenths of a percent that sum to exactly 100.0: what rounding leaves goes to the largest remainders."""
    total = sum(values)
    if total <= 0:
        return ["-" for _ in values]
    exact = [1000.0 * value / total for value in values]
    tenths = [int(share // 1) for share in exact]
    by_remainder = sorted(range(len(values)), key=lambda index: tenths[index] - exact[index])
    for index in by_remainder[: 1000 - sum(tenths)]:
        tenths[index] += 1
    return [f"{share / 10:.1f}" for share in tenths]


def _rank_lines(timing: Section) -> list[tuple[str, str]]:
    """How long several ranks waited for each other, and for whom."""
    learners: Sequence[Section | None] = timing.get("learners", ())
    waits_s = {
        rank: section["phases_s"][RANK_BARRIER]
        for rank, section in enumerate(learners)
        if section is not None and _has_begun(section)
    }
    if not waits_s:
        return []
    least, mean, most = (fixed(reduce(waits_s.values()), 1) for reduce in (min, fmean, max))
    waits = f"{least}/{mean}/{most} s (min/mean/max)"
    return [("ranks", f"{len(learners)}: barrier {waits}, straggler rank {least_waiting(waits_s)}")]


def _has_begun(section: Section) -> bool:
    """Whether there is time after the warm-up; a rank without any would be the one that waited the least."""
    return bool(section["wall_s"] > section["phases_s"][WARMUP])


def _results(summary: Section) -> Table:
    """Name and value per line; a long value goes on below itself."""
    rates, result, bottleneck = summary["rates"], summary["eval"], summary["bottleneck"]
    speeds = [f"{METRICS[f'perf/{key}'].row} {rate(value)}" for key, value in rates.items() if key != "utd"]
    where = f" ({bottleneck['phase']})" if bottleneck["phase"] else ""
    lines = [("rates", "  ".join(speeds) + f" env steps/s  utd {fixed(rates['utd'], 2)}")]
    lines += _rank_lines(summary["timing"])
    if result["episodes"]:
        reward = f"{fixed(result['mean_reward'], 1)} +/- {fixed(result['std_reward'], 1)}"
        lines.append(("evaluation", f"{reward} over {result['episodes']} episodes"))
    lines += [("bottleneck", bottleneck["verdict"] + where), ("because", bottleneck["reason"])]
    lines += [("advice" if index == 0 else "", advice) for index, advice in enumerate(bottleneck["advice"])]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name, value in lines:
        table.add_row(name, Text(value, "bold yellow" if name == "bottleneck" else ""))
    return table
