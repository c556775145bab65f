"""`make learning-curves [only=sac-pendulum,...] [seeds=3] [jobs=2] [budget=480] [again=runs/again]`: runs of studies.

It makes the runs that benchmarks/results/learning lacks, and shows what each study has reached beside its bar. With
`again` it repeats those that are there, in that directory. When the budget is spent, or at Ctrl-C or SIGTERM, runs save
a checkpoint and stop; exit code 75: more is left. A run that failed is tried again where `only` names its study.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.children import stop_at_sigterm, wide_console
from benchmarks.journal import MORE_LEFT, add_budget, names_of
from benchmarks.learning.runs import FAILED, FINISHED, UNFINISHED, StudyRun, policies_of, runs_of, save_run
from benchmarks.learning.studies import BY_KEY, STUDIES, Study
from offpolicy.errors import EXIT_INTERRUPTED
from offpolicy.types import Float64

POLL_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    arguments, console = _parser().parse_args(argv), wide_console()
    end_s = time.monotonic() + arguments.budget
    studies = [BY_KEY[key] for key in arguments.only or BY_KEY]
    due = {UNFINISHED, FAILED} if arguments.only else {UNFINISHED}
    directory: Path | None = arguments.again
    stop_at_sigterm()
    waiting = list[StudyRun]()
    for study in studies:
        known, seeds = runs_of(study, directory), range(1, min(study.seeds, arguments.seeds) + 1)
        left = [seed for seed in seeds if known.get(seed, {}).get("status", UNFINISHED) in due]
        waiting += [StudyRun(study, seed, known.get(seed), directory) for seed in left]
    try:
        num_left = do(waiting, arguments.jobs, end_s, console)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on", highlight=False)
        return EXIT_INTERRUPTED
    for study in studies:
        console.print(summary(study, directory), markup=False, highlight=False, soft_wrap=True)
    if num_left:
        console.print(f"{num_left} runs are left; the same command goes on", highlight=False)
        return MORE_LEFT
    return int(any(run["status"] == FAILED for study in studies for run in runs_of(study, directory).values()))


def do(waiting: list[StudyRun], jobs: int, end_s: float, console: Console) -> int:
    """Makes the runs, `jobs` at a time, until all are done or the time is up. Returns how many are not finished."""
    running: list[StudyRun] = []
    unfinished = 0
    try:
        while (waiting or running) and time.monotonic() < end_s:
            while len(running) < jobs and (ready := next((run for run in waiting if run.is_ready()), None)):
                waiting.remove(ready)
                running.append(ready)
                ready.start()
            if not running:
                break
            time.sleep(POLL_S)
            for run in [run for run in running if run.has_ended()]:
                running.remove(run)
                unfinished += not _written(run, console)
    finally:
        for run in running:
            run.stop()
        for run in running:
            unfinished += not _written(run, console)
    for run in waiting:
        if not run.is_ready():
            text = f"{run.name}: needs a run of {run.study.teacher} with all of its env steps in {run.teacher}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
    return unfinished + len(waiting)


def _written(run: StudyRun, console: Console) -> bool:
    """Ends a run, keeps and shows what it has. Returns whether there is nothing left to do of it."""
    run.finish()
    save_run(run.study, run.seed, run.raw, run.directory)
    steps, value = (run.raw.get("evaluations") or [[0.0, float("nan")]])[-1]
    if run.raw["status"] == FINISHED:
        steps, value = run.study.env_steps, run.raw["final"]["mean"]
    text = run.raw.get("reason", f"return {value:,.1f} after {steps:,.0f} env steps")
    text = f"{run.name}: {run.raw['status']}, {text}, {run.raw['wall_s'] / 60:.1f} min"
    console.print(text, markup=False, highlight=False)
    return bool(run.raw["status"] != UNFINISHED)


def summary(study: Study, directory: Path | None) -> str:
    """Returns what a study has reached: over seeds, beside its bar, what is published, and learning nothing."""
    runs = runs_of(study, directory)
    returns = np.array([run["final"]["mean"] for run in runs.values() if run["status"] == FINISHED])
    words = [f"{study.key}: {len(returns)} of {study.seeds} seeds"]
    if len(returns):
        words.append(f"mean {returns.mean():,.1f}")
    if len(returns) > 1:
        middle, low, high = interquartile_mean(returns)
        words += [f"std {returns.std(ddof=1):,.1f}", f"IQM {middle:,.1f} [{low:,.1f}, {high:,.1f}]"]
    words += [] if study.bar is None else [f"bar {study.bar:,.0f}"]
    if directory is not None:
        kept = [f"{run['final']['mean']:,.1f}" for run in runs_of(study).values() if run["status"] == FINISHED]
        words.append(f"kept results {' '.join(kept)}")
    words += [f"{one.mean:,.0f} at {one.env_steps:,} ({one.source})" for one in study.published]
    nothing = policies_of(study.resolved().env.id).items()
    return ", ".join(words + [f"{name} {one['mean']:,.0f}" for name, one in nothing])


def interquartile_mean(values: Float64) -> tuple[float, float, float]:
    """Returns the interquartile mean of seeds and its 95 % bootstrap bounds, as rliable does (arXiv:2108.13264).

    `floor(E / 4)` whole values are left out at each end. [E].
    """
    cut = len(values) // 4
    draws = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    middle = np.sort(values)[cut : len(values) - cut].mean()
    low, high = np.quantile(np.sort(values[draws])[:, cut : len(values) - cut].mean(axis=1), (0.025, 0.975))
    return float(middle), float(low), float(high)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_of(BY_KEY), default=[], help=f"some of {','.join(BY_KEY)}")
    cores, most = len(os.sched_getaffinity(0)), max(study.seeds for study in STUDIES)
    parser.add_argument("--seeds", type=int, default=most, help="of each study, at most (default: all)")
    parser.add_argument("--jobs", type=int, default=cores, help="runs at a time (default: the number of cores)")
    again = "repeat runs, with their results in this directory, such as runs/again"
    parser.add_argument("--again", type=lambda text: Path(text).resolve(), help=again)
    add_budget(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
