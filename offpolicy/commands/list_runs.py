"""`offpolicy list`: the runs below a directory, the newest first: how far each is, what it reached and how fast."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from offpolicy.commands.options import positive
from offpolicy.errors import ConfigError
from offpolicy.launch.run_lock import is_running
from offpolicy.logger.console import STATUS_STYLES, count, plain_console, rate, shown_path, text_table
from offpolicy.output import UNKNOWN, counted, return_text
from offpolicy.runs import ROOT, SUMMARY, is_of_earlier_start, known_summary, read_lines, runs_in, short_name

TAIL_BYTES = 65_536  # end of metrics.jsonl in which the last record is looked for
OTHER_COLUMNS = 47  # characters of all columns but the first two
LEAST_NAME, LEAST_KIND = 24, 8  # the fewest characters of the first two columns: a longer name takes several rows
NARROW = LEAST_NAME + LEAST_KIND + OTHER_COLUMNS  # below it there is no room for what a user needs least
NARROWEST_NAME = 6
RUNNING, KILLED, ELSEWHERE = "running", "killed", "unknown"  # ELSEWHERE: another host started it, and knows
OF_TRAINING = "*"  # marks a return that no evaluation has measured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the directory and the number of runs."""
    parser.add_argument("directory", type=Path, nargs="?", default=ROOT, help=f"where to look (default: {ROOT})")
    parser.add_argument("--most", type=positive, default=15, help="runs to show (default: 15)")


def run(arguments: argparse.Namespace) -> int:
    """Prints the runs."""
    return list_runs(arguments.directory, arguments.most)


def list_runs(root: Path, most: int) -> int:
    """Prints the newest `most` runs below `root`. Raises `ConfigError` where there is none."""
    runs = runs_in(root)
    if not runs:
        raise ConfigError(f"directory: got {str(root)!r}, which holds no run; offpolicy train starts one")
    console = plain_console()
    known = set(found := runs_in(ROOT))
    names = {run: short_name(run, found) if run in known else str(run) for run in runs[:most]}
    most_name = max(LEAST_NAME, console.width - OTHER_COLUMNS - LEAST_KIND)
    room = console.width - min(most_name, max(map(len, names.values()))) - OTHER_COLUMNS
    is_narrow = console.width < NARROW
    titles = ["status", "env steps", "return"] if is_narrow else ["of", "status", "env steps", "return", "steps/s"]
    table = text_table("run", *titles, left=("of", "status"))
    table.padding = (0, 1, 0, 0)
    table.columns[0].min_width, table.columns[0].max_width = NARROWEST_NAME, most_name
    for column in table.columns[1:]:
        column.no_wrap = True
    if not is_narrow:
        table.columns[1].overflow, table.columns[1].max_width = "ellipsis", max(LEAST_KIND, room)
    rows = {run: row(run) for run in names}
    for run, name in names.items():
        status, *numbers, speed = rows[run]
        kind = str(run.relative_to(ROOT)).removesuffix(name).rstrip("/") if run in known else ""
        shown = Text(status, STATUS_STYLES.get(status, "bold"))
        middle, last = ([], []) if is_narrow else ([Text(kind)], [speed])
        table.add_row(Text(name), *middle, shown, *numbers, *last)
    console.print(table)
    if any(reward.endswith(OF_TRAINING) for _, _, reward, _ in rows.values()):
        console.print(f"{OF_TRAINING} mean of the last training episodes; there is no evaluation", soft_wrap=True)
    if len(runs) > most:
        older = counted(len(runs) - most, "older run")
        console.print(f"{older}: offpolicy list {shown_path(root)} --most {len(runs)}", soft_wrap=True)
    return 0


def row(run: Path) -> tuple[str, str, str, str]:
    """Returns status, env steps, return and env steps/s of a run; of one without an end from its last record."""
    summary = known_summary(run)
    running = is_running(run)
    if running is not False or not summary or is_of_earlier_start(run / SUMMARY):
        last = (read_lines(run / "metrics.jsonl", TAIL_BYTES) or [{}])[-1]
        reward = _return_text(_number(last, "eval/mean_reward"), _number(last, "rollout/ep_rew_mean"))
        status = ELSEWHERE if running is None else RUNNING if running else KILLED
        return status, count(_number(last, "env_steps")), reward, rate(_number(last, "perf/steps_per_sec"))
    reward = _return_text(_number(summary, "eval", "mean_reward"), _number(summary, "rollout", "ep_rew_mean"))
    speed = _number(summary, "rates", "steps_per_sec")
    ended = summary.get("status")
    status = ended if isinstance(ended, str) else UNKNOWN
    return status, count(_number(summary, "env_steps")), reward, rate(speed)


def _return_text(evaluated: float | None, trained: float | None) -> str:
    """Returns the return of the last evaluation; without one that of training, which is marked."""
    if evaluated is not None or trained is None:
        return return_text(evaluated)
    return return_text(trained) + OF_TRAINING


def _number(tree: Mapping[str, Any], *path: str) -> float | None:
    """Returns a number of a nested mapping; None where a file of another shape has none there."""
    found: Any = tree  # Any: a value of a JSON file
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) and math.isfinite(found) else None
