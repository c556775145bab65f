"""`offpolicy list`: the runs below a directory, the newest first: how far each is, what it reached and how fast."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from offpolicy.errors import ConfigError
from offpolicy.launch.run_lock import is_running
from offpolicy.logger.console import STATUS_STYLES, UNKNOWN, count, mean_return, plain_console, rate, shown_path
from offpolicy.logger.summary import SUMMARY, known_summary
from offpolicy.number_text import counted
from offpolicy.run_names import ROOT, is_of_earlier_start, runs_in

TAIL_BYTES = 65_536  # end of metrics.jsonl in which the last record is looked for
OTHER_COLUMNS = 47  # characters of all columns but the first two
LEAST_NAME, LEAST_KIND = 24, 8  # the fewest characters of the first two columns: a longer name takes several rows
NARROW = LEAST_NAME + LEAST_KIND + OTHER_COLUMNS  # below it there is no room for what a user needs least
NARROWEST_NAME = 6
RUNNING, KILLED, ELSEWHERE = "running", "killed", "unknown"  # ELSEWHERE: another host started it, and knows
OF_TRAINING = "*"  # marks a return that no evaluation has measured
Record = Mapping[str, Any]  # Any: a value of a JSON file


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
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    is_narrow = console.width < NARROW
    table.add_column("run", overflow="fold", min_width=NARROWEST_NAME, max_width=most_name)
    if not is_narrow:
        table.add_column("of", no_wrap=True, overflow="ellipsis", max_width=max(LEAST_KIND, room))
    table.add_column("status", no_wrap=True)
    for title in ("env steps", "return", *(() if is_narrow else ("steps/s",))):
        table.add_column(title, justify="right", no_wrap=True)
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


def short_name(run: Path, runs: Sequence[Path]) -> str:
    """Returns the shortest end of a run's path that no other of all `runs` has: commands take it for the run."""
    others = [other.parts for other in runs if other != run]
    for length in range(1, len(run.parts)):
        end = run.parts[-length:]
        if not any(parts[-length:] == end for parts in others):
            return "/".join(end)
    return str(run)


def row(run: Path) -> tuple[str, str, str, str]:
    """Returns status, env steps, return and env steps/s of a run; of one without an end from its last record."""
    summary = known_summary(run)
    running = is_running(run)
    if running is not False or not summary or is_of_earlier_start(run / SUMMARY):
        last = last_record(run / "metrics.jsonl")
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
        return mean_return(evaluated)
    return mean_return(trained) + OF_TRAINING


def last_record(path: Path) -> Record:
    """Returns the last whole line of a JSONL file; empty where there is none."""
    try:
        with path.open("rb") as source:
            source.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = source.read().splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        if found := _parsed(line):
            return found
    return {}


def _number(tree: Record, *path: str) -> float | None:
    """Returns a number of a nested mapping; None where a file of another shape has none there."""
    found: Any = tree  # Any: a value of a JSON file
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) and math.isfinite(found) else None


def _parsed(text: bytes) -> Record:
    """Returns a JSON object; empty for anything else, such as a line that is being written."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
