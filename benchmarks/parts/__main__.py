"""`make bench [only=memory,startup] [rounds=3]`: what each part costs. Exits with 1 when a promise is broken."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from benchmarks.children import use_cores
from benchmarks.parts import (
    collector_step,
    hand,
    handshake,
    memory,
    overhead,
    replay,
    saves,
    startup,
    storage,
    topologies,
    updates,
)
from benchmarks.parts.measurement import Measurement
from benchmarks.results import ResultFile

NUM_CORES = 2
PARTS: Mapping[str, Callable[[int], Iterator[Measurement]]] = {
    "overhead": overhead.measure,
    "replay": replay.measure,
    "storage": storage.measure,
    "saves": saves.measure,
    "handshake": handshake.measure,
    "updates": updates.measure,
    "collector": collector_step.measure,
    "memory": memory.measure,
    "startup": startup.measure,
    "hand": hand.measure,
    "topologies": topologies.measure,
}


def main() -> int:
    arguments = _parser().parse_args()
    cores = use_cores(NUM_CORES)
    console, file, measured = Console(), ResultFile("parts"), list[Measurement]()
    for part in arguments.only:
        console.print(f"{part} ...", highlight=False)
        measured += PARTS[part](arguments.rounds)
        file.save(cores=cores, rounds=arguments.rounds, measurements=[_entry(one) for one in measured])
    console.print(_table(measured))
    console.print(f"written: {file.path}", soft_wrap=True, highlight=False)
    return int(any(measurement.is_over for measurement in measured))


def _entry(measurement: Measurement) -> dict[str, object]:
    """A measurement as it goes into the results."""
    return asdict(measurement) | measurement.spread._asdict()


def _table(measured: Sequence[Measurement]) -> Table:
    table = Table(title="What each part costs")
    for heading in ("part", "", "median", "min", "max", "unit", "limit"):
        table.add_column(heading, justify="right" if heading in ("median", "min", "max", "limit") else "left")
    for one in measured:
        numbers = [f"{value:.4g}" for value in one.spread]
        limit = "" if one.limit is None else f"[{'red' if one.is_over else 'green'}]< {one.limit:g}"
        table.add_row(one.part, one.name, *numbers, one.unit, limit)
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parts", description=__doc__)
    parser.add_argument("--only", type=_names, default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is repeated (default: 3)")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - PARTS.keys():
        raise argparse.ArgumentTypeError(f"got {', '.join(sorted(unknown))}, allowed {', '.join(PARTS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
