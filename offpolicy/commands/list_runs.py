"""`offpolicy list`: the runs below a directory, the newest first: how far each is, what it reached and how fast."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.text import Text

from offpolicy.commands.options import at_least
from offpolicy.config.parsing import flatten
from offpolicy.errors import EXIT_OK, ConfigError
from offpolicy.launch.run_lock import is_running
from offpolicy.logger.console import STATUS_STYLES, count, number, plain_console, rate, shown_path, text_table
from offpolicy.output import UNKNOWN, counted, return_text
from offpolicy.runs import ROOT, SUMMARY, is_of_earlier_start, known_summary, read_lines, runs_in, short_name

TAIL_BYTES = 65_536  # end of metrics.jsonl in which the last record is looked for
RUNNING, KILLED, ELSEWHERE = "running", "killed", "unknown"  # ELSEWHERE: another host started it, and knows
OF_SUMMARY = ("eval.mean_reward", "rollout.ep_rew_mean", "rates.steps_per_sec")
OF_RECORDS = ("eval/mean_reward", "rollout/ep_rew_mean", "perf/steps_per_sec")  # the same numbers
OF_TRAINING = "*"  # marks a return that no evaluation has measured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the directory and the number of runs."""
    parser.add_argument("directory", type=Path, nargs="?", default=ROOT, help=f"where to look (default: {ROOT})")
    parser.add_argument("--most", type=at_least(1), default=15, help="runs to show (default: 15)")


def run(arguments: argparse.Namespace) -> int:
    """Prints the newest runs below a directory. Raises `ConfigError` where there is none."""
    root, runs, console = arguments.directory, runs_in(arguments.directory), plain_console()
    if not runs:
        raise ConfigError(f"directory: got {str(root)!r}, which holds no run; offpolicy train starts one")
    found = runs_in(ROOT)
    names = {run: short_name(run, found) if run in found else str(run) for run in runs[: arguments.most]}
    table = text_table("run", "of", "status", "env steps", "return", "steps/s", left=("of", "status"))
    table.padding = (0, 1, 0, 0)
    for column in table.columns[2:]:
        column.no_wrap = True
    is_trained = False
    for run, name in names.items():
        status, *numbers = row(run)
        is_trained |= numbers[1].endswith(OF_TRAINING)
        kind = str(run.relative_to(ROOT)).removesuffix(name).rstrip("/") if run in found else ""
        table.add_row(Text(name), Text(kind), Text(status, STATUS_STYLES.get(status, "bold")), *numbers)
    console.print(table)
    if is_trained:
        console.print(f"{OF_TRAINING} mean of the last training episodes; there is no evaluation", soft_wrap=True)
    if len(runs) > len(names):
        older = counted(len(runs) - len(names), "older run")
        console.print(f"{older}: offpolicy list {shown_path(root)} --most {len(runs)}", soft_wrap=True)
    return EXIT_OK


def row(run: Path) -> tuple[str, str, str, str]:
    """Returns status, env steps, return and env steps/s of a run; of one without an end from its last record."""
    found, running, keys = flatten(known_summary(run)), is_running(run), OF_SUMMARY
    status = str(found.get("status", UNKNOWN))
    if running is not False or not found or is_of_earlier_start(run / SUMMARY):
        found, keys = (read_lines(run / "metrics.jsonl", TAIL_BYTES) or [{}])[-1], OF_RECORDS
        status = ELSEWHERE if running is None else RUNNING if running else KILLED
    evaluated, trained, speed = (number(found, key) for key in keys)
    reward = return_text(evaluated) if evaluated is not None or trained is None else return_text(trained) + OF_TRAINING
    return status, count(number(found, "env_steps")), reward, rate(speed)
