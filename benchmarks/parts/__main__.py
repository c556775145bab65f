"""`make bench [only=memory,startup] [rounds=3] [budget=480]`: what each part costs. Exits with 1 for a broken promise.

`only=scaling` is speed over environments, batch, width and ranks. With a budget the command stops in time with exit
code 75, and the same command continues where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.children import environment, stop_at_sigterm, use_cores, wide_console
from benchmarks.journal import LATE_S, MORE_LEFT, Budget, Journal, Task, continues, is_marked, why_not_in_pieces
from benchmarks.parts import (
    collector_step,
    environments,
    hand,
    handshake,
    memory,
    overhead,
    replay,
    saves,
    scaling,
    startup,
    storage,
    topologies,
    updates,
)
from benchmarks.parts.measurement import Measurement, measurements_of
from benchmarks.results import REPOSITORY, Entry

NUM_CORES = 2
PARTS: Mapping[str, Callable[[int], Iterator[Measurement]]] = {
    "overhead": overhead.measure,
    "replay": replay.measure,
    "storage": storage.measure,
    "saves": saves.measure,
    "handshake": handshake.measure,
    "updates": updates.measure,
    "collector": collector_step.measure,
    "environments": environments.measure,
    "memory": memory.measure,
    "startup": startup.measure,
    "hand": hand.measure,
    "topologies": topologies.measure,
}
NAMES = (*PARTS, scaling.PART)
EXPECTED_S = {"overhead": 60.0, "environments": 90.0, "memory": 60.0, "topologies": 260.0}  # of a round
EXPECTED_ELSE_S = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.child is not None:
        key, out = arguments.child
        Path(out).write_text(json.dumps(_measured(_measure_of(key))))
        return 0
    budget = Budget.from_options(arguments)
    if budget.is_limited and (why := why_not_in_pieces()) is not None:
        print(why, file=sys.stderr)
        return 2
    return measure(arguments.only, arguments.rounds, budget, wide_console(), resume=budget.is_limited)


def measure(only: Sequence[str], rounds: int, budget: Budget, console: Console, *, resume: bool) -> int:
    """Measures the parts as far as the time goes, and shows them."""
    journal = Journal("parts", {"only": list(only)}, use_cores(NUM_CORES), resume=resume)

    def report(task: Task, outcome: Entry) -> None:
        mark = ", left out of medians" if is_marked(outcome) else ""
        noise = f"others {outcome['others_share']:.0%}{mark}"
        failure = f"[red]failed[/red]: {escape(outcome['failure'])}  " if outcome["failure"] else ""
        console.print(f"{task.key}  {failure}({outcome['wall_s']:.0f} s, {noise})", highlight=False, soft_wrap=True)

    left = journal.run(tasks(only, rounds), budget, report)
    measured = measurements_of({"tasks": journal.done})
    console.print(_table(measured))
    if journal.done:
        console.print(f"written: {journal.file.path}", soft_wrap=True, highlight=False)
    if left:
        console.print(
            f"{len(left)} measurements are left: {continues(left, budget.wait_s)}", highlight=False, soft_wrap=True
        )
        return MORE_LEFT
    for key, failure in journal.failures.items():
        console.print(f"failed: {key}: {failure}", markup=False, highlight=False, soft_wrap=True)
    return int(bool(journal.failures) or any(measurement.is_over for measurement in measured))


def tasks(only: Sequence[str], rounds: int) -> Iterator[Task]:
    """Round by round, every part once, and every point of `scaling`."""
    for number in range(1, rounds + 1):
        for part in only:
            if part != scaling.PART:
                expected_s = EXPECTED_S.get(part, EXPECTED_ELSE_S)
                yield Task(f"{part}/{number}", expected_s, partial(in_child, part, expected_s))
                continue
            for axis, values in scaling.POINTS.items():
                for value in values:
                    key, expected_s = f"{part}/{axis}={value}", scaling.EXPECTED_S[axis]
                    yield Task(f"{key}/{number}", expected_s, partial(in_child, key, expected_s))


def in_child(key: str, expected_s: float) -> list[dict[str, Any]]:
    """Measures a part, or a point of `scaling`, in a fresh process: threads and flags of others are not in it.

    Raises `RuntimeError` with its last lines where it fails, or does not end in time.
    """
    limit_s = 2.0 * expected_s + LATE_S  # the same machine takes twice as long on some days
    with tempfile.TemporaryDirectory(prefix="offpolicy-bench-") as scratch:
        out, log = Path(scratch) / "measured.json", Path(scratch) / "log"
        command = [sys.executable, "-m", "benchmarks.parts", "--child", key, str(out)]
        with log.open("wb") as output:
            child = subprocess.Popen(
                command, env=environment(), cwd=REPOSITORY, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code: int | str = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = f"none after {limit_s:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):  # and all that it has started
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if code != 0:
            last = log.read_text(errors="replace").splitlines()[-8:]
            raise RuntimeError("\n".join([f"{key}: exit code {code}", *last]))
        found: list[dict[str, Any]] = json.loads(out.read_text())
    return found


def _measure_of(key: str) -> Callable[[int], Iterator[Measurement]]:
    """What `in_child` measures: a part, or a point such as scaling/batch=64."""
    part, _, point = key.partition("/")
    if part != scaling.PART:
        return PARTS[part]
    axis, _, value = point.partition("=")
    return partial(scaling.point, axis, int(value))


def _measured(measure: Callable[[int], Iterator[Measurement]]) -> list[dict[str, Any]]:
    """One round of a part, as it goes into the results. Raises `ValueError` where two quantities have one name."""
    found = [one.to_mapping() for one in measure(1)]
    names = [(one["part"], one["name"]) for one in found]
    if twice := sorted({f"{part}: {name}" for part, name in names if names.count((part, name)) > 1}):
        raise ValueError(f"measured twice under one name: {', '.join(twice)}")
    return found


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
    parser.add_argument("--only", type=_names, default=list(NAMES), help=f"some of {','.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is repeated (default: 3)")
    parser.add_argument("--child", nargs=2, metavar=("PART", "OUT"), help=argparse.SUPPRESS)
    Budget.add_options(parser)
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(NAMES):
        raise argparse.ArgumentTypeError(f"got {', '.join(sorted(unknown))}, allowed {', '.join(NAMES)}")
    return names


if __name__ == "__main__":
    stop_at_sigterm()
    sys.exit(main())
