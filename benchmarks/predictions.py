"""`make bench-predictions`: how far `pred` is from what the same run does, at ratios of cost, modes and conditions.

The updates and the environment are real: HalfCheetah, with more physics per step or smaller networks. A run is ended by
SIGTERM after `--seconds`; its first records, in which settings are still tried, do not count.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.children import environment, offpolicy_train, stop, stop_at_sigterm, use_cores, wide_console
from benchmarks.journal import Journal, Task, add_budget, names_of
from benchmarks.results import REPOSITORY

COMMON = (
    *("env=halfcheetah", "total_timesteps=10_000_000", "algo.learning_starts=300", "replay.capacity=100000"),
    *("eval.every=0", "eval.episodes=0", "checkpoint.every=0", "checkpoint.replay=false", "log.tensorboard=false"),
    *("log.panel=off", "log.every_s=1", "seed=1"),
)
LARGE, SMALL = (), ("algo.hidden_dims=[64,64]", "algo.batch_size=64")
RATIOS: Mapping[str, tuple[str, ...]] = {  # physics steps per env step, and the update
    "1/30": LARGE,
    "1/8": (*LARGE, "env.kwargs.frame_skip=150"),
    "1/3": (*LARGE, "env.kwargs.frame_skip=450"),
    "1/1": (*LARGE, "env.kwargs.frame_skip=1300"),
    "3/1": (*SMALL, "env.kwargs.frame_skip=900"),
    "8/1": (*SMALL, "env.kwargs.frame_skip=2400"),
}
PREDICTED = "perf/predicted_steps_per_sec"
MODES = ("alternate", "overlap", "free")


class Condition(NamedTuple):
    """What the runs have besides the ratio and the mode."""

    overrides: tuple[str, ...] = ()
    num_burners: int = 0
    num_cores: int = 2


CONDITIONS: Mapping[str, Condition] = {
    "quiet": Condition(),
    "one busy program": Condition(num_burners=1),
    "one core": Condition(num_cores=1),
    "two ranks": Condition(("runner=multi_gpu", "runner.world_size=2")),
    "double_buffer, batches of 4,096 rows": Condition(
        ("runner=double_buffer", "algo.batch_size=4096", "algo.hidden_dims=[8]"),
    ),
    "async environments": Condition(("env.vectorization=async", "env.num_envs=4", "algo.utd=0.25")),
}
STOP_TIMEOUT_S = 60.0
START_S = 15.0  # of a run, until it learns
SKIPPED_S = 8.0  # seconds of learning in which threads are tried, at most half of the run


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    cores, console = use_cores(2), wide_console()
    journal = Journal("predictions", {"seconds": arguments.seconds}, cores, arguments.budget)
    names = itertools.product(arguments.conditions, arguments.ratios, arguments.modes)
    tasks = [
        Task("|".join(each), START_S + arguments.seconds, partial(measure, cores, arguments.seconds, *each))
        for each in names
    ]
    code = journal.run(tasks, console, lambda data: f"thru {data['thru']:.1f}")
    table = Table(title="|pred / thru - 1| in %")
    for heading in ("condition", "env/update", "mode", "thru", "mean", "worst", "threads"):
        table.add_column(heading)
    for key, outcome in journal.done.items():
        if data := outcome.get("data"):
            errors = [100.0 * abs(error) for error in data["errors"]]
            numbers = (f"{data['thru']:.1f}", f"{statistics.fmean(errors):.1f}", f"{max(errors):.1f}")
            table.add_row(*key.split("|"), *numbers, str(sorted(set(data["threads"]))))
    console.print(table)
    return code


def measure(cores: Sequence[int], seconds: float, condition: str, ratio: str, mode: str) -> dict[str, Any]:
    """Trains for that long. Returns how far the prediction of each record was, as a fraction."""
    given = CONDITIONS[condition]
    words = (*COMMON, *RATIOS[ratio], *given.overrides, f"collect.mode={mode}")
    with burning(given.num_burners), tempfile.TemporaryDirectory(prefix="offpolicy-bench-") as scratch:
        path = Path(scratch) / "run" / "metrics.jsonl"
        own = ",".join(map(str, cores[: given.num_cores]))
        command = ["taskset", "-c", own, *offpolicy_train(path.parent, *words)]
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stdout=subprocess.DEVNULL)
        try:
            while process.poll() is None and not (path.is_file() and PREDICTED in path.read_text()):
                time.sleep(0.2)
            time.sleep(seconds)
        finally:
            stop(process, STOP_TIMEOUT_S)
        records = [json.loads(line) for line in path.read_text().splitlines()]
    learning = [record for record in records if record.get(PREDICTED)]
    begun_s = learning[0]["wall_s"] + min(SKIPPED_S, seconds / 2)
    steady = [record for record in learning if record["wall_s"] >= begun_s][:-1]  # the end is in the last
    steady = [record for record in steady if record.get("perf/steps_per_sec")]
    thru = statistics.median(record["perf/steps_per_sec"] for record in steady)
    errors = [record[PREDICTED] / record["perf/steps_per_sec"] - 1.0 for record in steady]
    threads = [record["perf/learner_threads"] for record in steady]
    return {"thru": thru, "errors": errors, "threads": threads}


@contextmanager
def burning(count: int) -> Iterator[None]:
    """Other programs, each of which keeps a core busy."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predictions", description=__doc__)
    parser.add_argument("--seconds", type=float, default=16.0, help="of learning, in each run")
    for name, known in (("conditions", CONDITIONS), ("ratios", RATIOS), ("modes", MODES)):
        parser.add_argument(f"--{name}", type=names_of(known), default=list(known), help=f"of {', '.join(known)}")
    add_budget(parser)
    return parser


if __name__ == "__main__":
    stop_at_sigterm()
    sys.exit(main())
