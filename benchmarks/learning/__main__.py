"""`make learning-curves [only=sac-pendulum,...] [seeds=3] [jobs=2] [budget=480] [again=runs/again]`: runs of studies.

It makes the runs that benchmarks/results/learning lacks. With `again` it makes those anew that are there: runs and
results lie in that directory, and each return is shown beside the published one. Studies come in a stated order, those
of `only` in the order in which it names them. Runs stand beside each other, each with one thread. When the budget is
spent, or at Ctrl-C or SIGTERM, they save a checkpoint and stop: exit code 75 says that more is left, and the same
command goes on. A run that failed is tried again where `only` names its study. Without `again`, `make learning-page`
writes docs/learning.md then.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.children import stop_at_sigterm, wide_console
from benchmarks.journal import MORE_LEFT, Budget
from benchmarks.learning.nothing_learnt import POLICIES, policies
from benchmarks.learning.results import path_of, policies_of, runs_of, save_policies, save_run
from benchmarks.learning.runs import DIRECTORY, FAILED, FINISHED, UNFINISHED, StudyRun
from benchmarks.learning.studies import BY_KEY, STUDIES, Study
from benchmarks.results import REPOSITORY, RESULTS
from offpolicy.errors import EXIT_INTERRUPTED

POLL_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    budget, console = Budget(arguments.budget, wait_s=0.0), wide_console()
    studies = [BY_KEY[key] for key in arguments.only or BY_KEY]
    due = {UNFINISHED, FAILED} if arguments.only else {UNFINISHED}
    results_dir: Path | None = arguments.again
    stop_at_sigterm()
    for study in studies:
        _look_at_policies(study, console)
    waiting = list[StudyRun]()
    for study in studies:
        known, seeds = runs_of(study, results_dir), range(1, min(study.seeds, arguments.seeds) + 1)
        left = [seed for seed in seeds if known.get(seed, {}).get("status", UNFINISHED) in due]
        waiting += [StudyRun(study, seed, known.get(seed), results_dir, results_dir) for seed in left]
        if arguments.only and not left:
            _say_that_all_is_there(study, results_dir, console)
    try:
        left = do(waiting, arguments.jobs, budget, console)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on", highlight=False)
        return EXIT_INTERRUPTED
    failed = [
        f"{study.key}/{seed}: {run['reason']}"
        for study in studies
        for seed, run in runs_of(study, results_dir).items()
        if run["status"] == FAILED
    ]
    for line in failed:
        console.print(f"failed: {line}", markup=False, highlight=False, soft_wrap=True)
    if left:
        console.print(f"{left} runs are left; the same command goes on", highlight=False)
        return MORE_LEFT
    return int(bool(failed))


def do(waiting: list[StudyRun], jobs: int, budget: Budget, console: Console) -> int:
    """Makes the runs, `jobs` at a time, until all are done or the time is up. Returns how many are not finished."""
    running: list[StudyRun] = []
    unfinished = 0
    try:
        while (waiting or running) and budget.has(0.0):
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
    save_run(run.study, run.seed, run.raw, run.results_dir)
    status, curve = run.raw["status"], run.raw.get("evaluations") or [[0.0, float("nan")]]
    steps, value = curve[-1]
    if status == FINISHED:
        steps, value = run.study.env_steps, run.raw["final"]["mean"]
    text = run.raw.get("reason", f"return {value:,.1f} after {steps:,.0f} env steps")
    if run.results_dir is not None and (published := runs_of(run.study).get(run.seed, {}).get("final")):
        text += f" (published: {published['mean']:,.1f})"
    console.print(f"{run.name}: {status}, {text}, {run.raw['wall_s'] / 60:.1f} min", markup=False, highlight=False)
    return bool(status != UNFINISHED)


def _say_that_all_is_there(study: Study, results_dir: Path | None, console: Console) -> None:
    """Says where the results of a study are that somebody has asked for, and how to make them anew."""
    names = ",".join(filter(None, (study.teacher, study.key)))
    how = f"; to make them anew: make learning-curves only={names} again=runs/again" if results_dir is None else ""
    path = path_of(study.key, results_dir)
    where = path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path
    text = f"{study.key}: the runs that were asked for are in {where}{how}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _look_at_policies(study: Study, console: Console) -> None:
    """Measures random and constant actions in the study's environment, if nobody has yet."""
    env = study.final_env()
    if not policies_of(env.id).keys() >= set(POLICIES):
        found = policies(env)
        save_policies(env.id, found)
        means = ", ".join(f"{name} {one['mean']:,.1f}" for name, one in found.items())
        console.print(f"{env.id}: {means}", markup=False, highlight=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_studies, default=[], help=f"some of {','.join(BY_KEY)}")
    cores, most = len(os.sched_getaffinity(0)), max(study.seeds for study in STUDIES)
    parser.add_argument("--seeds", type=_count, default=most, help="of each study, at most (default: all)")
    parser.add_argument("--jobs", type=_count, default=cores, help="runs at a time (default: the number of cores)")
    parser.add_argument("--again", type=_directory, help="make runs anew, with their results in this directory")
    Budget.add_options(parser)
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text}, allowed a whole number from 1 on")
    return int(text)


def _directory(text: str) -> Path:
    path = Path(text).resolve()
    is_taken = any(path.is_relative_to(kept) for kept in (DIRECTORY, RESULTS))
    if not text or is_taken or (path.exists() and not path.is_dir()):
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed a directory of its own, such as runs/again")
    return path


def _studies(text: str) -> list[str]:
    keys = list(dict.fromkeys(text.split(",")))
    if unknown := set(keys) - BY_KEY.keys():
        raise argparse.ArgumentTypeError(f"got {', '.join(sorted(unknown))}, allowed {', '.join(BY_KEY)}")
    return keys


if __name__ == "__main__":
    sys.exit(main())
