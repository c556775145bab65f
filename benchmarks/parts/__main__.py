"""`make bench [only=updates,scaling] [rounds=3] [budget=480]`: what each part costs. Exits with 1 for a broken promise.

`only=scaling` is speed over environments, batch, width and ranks. With a budget the command stops in time with exit
code 75, and the same command continues where it stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.children import environment, stop_at_sigterm, use_cores, wide_console
from benchmarks.journal import Journal, Task, add_budget, names_of
from benchmarks.measurement import Measurement, measurements_of
from benchmarks.parts import collector_step, overhead, replay, scaling, updates
from benchmarks.results import REPOSITORY

NUM_CORES = 2
PARTS: Mapping[str, Callable[[int], Iterator[Measurement]]] = {
    "overhead": overhead.measure,
    "replay": replay.measure,
    "updates": updates.measure,
    "collector": collector_step.measure,
}
NAMES = (*PARTS, scaling.PART)
EXPECTED_S = 60.0  # of a part, or a point of `scaling`, at most
LIMIT_S = 600.0  # of a part


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.child is not None:
        key, out = arguments.child
        Path(out).write_text(json.dumps([one.to_mapping() for one in _measured(key)]))
        return 0
    journal = Journal("parts", {"only": arguments.only}, use_cores(NUM_CORES), arguments.budget)
    console = wide_console()
    code = journal.run(tasks(arguments.only, arguments.rounds), console, lambda data: f"{len(data)} quantities")
    measured = measurements_of(journal.done)
    console.print(_table(measured))
    return code or int(any(one.is_over for one in measured))


def tasks(only: Sequence[str], rounds: int) -> Iterator[Task]:
    """Yields, round by round, every part once, and every point of `scaling`."""
    for number in range(1, rounds + 1):
        for part in only:
            points = [f"{part}/{axis}={value}" for axis, values in scaling.POINTS.items() for value in values]
            for key in points if part == scaling.PART else [part]:
                yield Task(f"{key}/{number}", EXPECTED_S, partial(in_child, key))


def in_child(key: str) -> list[dict[str, Any]]:
    """Measures a part, or a point of `scaling`, in a fresh process: threads and flags of others are not in it.

    Raises `RuntimeError` with its last lines where it fails.
    """
    with tempfile.TemporaryDirectory(prefix="offpolicy-bench-") as scratch:
        out = Path(scratch) / "measured.json"
        child = subprocess.run(
            [sys.executable, "-m", "benchmarks.parts", "--child", key, str(out)],
            env=environment(), cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=LIMIT_S,
        )  # fmt: skip
        if child.returncode:
            raise RuntimeError("\n".join([f"{key}: exit code {child.returncode}", *child.stdout.splitlines()[-8:]]))
        found: list[dict[str, Any]] = json.loads(out.read_text())
    return found


def _measured(key: str) -> Iterator[Measurement]:
    """Measures a part, or a point such as scaling/batch=64."""
    part, _, point = key.partition("/")
    if part != scaling.PART:
        return PARTS[part](1)
    axis, _, value = point.partition("=")
    return scaling.point(axis, int(value))


def _table(measured: Sequence[Measurement]) -> Table:
    table = Table(title="What each part costs")
    for heading in ("part", "", "median", "min", "max", "unit", "limit"):
        table.add_column(heading, justify="right" if heading in ("median", "min", "max", "limit") else "left")
    for one in measured:
        numbers = [f"{value:.4g}" for value in one.spread]
        limit = "" if one.limit is None else f"[{'red' if one.is_over else 'green'}]< {one.limit:g}"
        name = one.name if one.has_quiet_round else f"{one.name} [red](machine was busy)"
        table.add_row(one.part, name, *numbers, one.unit, limit)
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_of(NAMES), default=list(NAMES), help=f"some of {','.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is repeated (default: 3)")
    parser.add_argument("--child", nargs=2, metavar=("PART", "OUT"), help=argparse.SUPPRESS)
    add_budget(parser)
    return parser


if __name__ == "__main__":
    stop_at_sigterm()
    sys.exit(main())
