"""`offpolicy explain RUN`: where the time of a run went, what bounds it, and what a change would bring."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from offpolicy.analysis.explain import FinishedRun, what_if_between
from offpolicy.commands.options import add_run
from offpolicy.errors import EXIT_OK
from offpolicy.logger.console import plain_console, text_table
from offpolicy.logger.summary import COLLECTOR_NAMES, LEARNER_NAMES, WHOLE, RunStatus
from offpolicy.model.throughput import Pipeline, flip_delay_s
from offpolicy.runs import existing_run
from offpolicy.timing.phases import CollectorPhase

MICRO = 1e6
SHOWN_FRACTION = 0.05  # fraction of the median iteration that the p99 of a phase must reach to be shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run, and the one before it."""
    add_run(parser)
    parser.add_argument("--before", type=existing_run, help="the run that one key was changed after: how right was it?")


def run(arguments: argparse.Namespace) -> int:
    """Prints the account, the verdict and the what-ifs of a run, and how well the one before predicted it."""
    run, console = FinishedRun.read(arguments.run), plain_console()
    before = FinishedRun.read(arguments.before) if arguments.before else None
    for each in (run, before):
        if each is not None and each.restart_note:
            whose = "the account is of the start that ended, the configuration of the last start"
            console.print(f"{each.restart_note}: {whose}")
    if run.summary["status"] != RunStatus.COMPLETED:
        console.print(f"{arguments.run}: {run.summary['status']}, {run.summary['reason']}", soft_wrap=True)
    console.print(Group(_costs(run.pipeline), _waterfall(run), _spread(run.summary["timing"])))
    bottleneck = run.summary["bottleneck"]
    console.print(f"bottleneck  {bottleneck['verdict']} ({bottleneck['phase']}): {bottleneck['reason']}")
    for advice in bottleneck["advice"]:
        console.print(f"advice      {advice}")
    predictions = text_table("if", "I", "T", "predicted", "change")
    for change, then in run.what_ifs.items():
        predicted = run.with_pauses(run.predicted(then))
        numbers = (then.collector_capacity, then.learner_capacity, predicted)
        predictions.add_row(change, *(f"{number:,.0f}" for number in numbers), run.gain_text(predicted))
    error = "how far these are off is not known: the run made too few records"
    if run.prediction_error is not None:
        error = f"the run's own predictions were off by {run.prediction_error:.1%} (median of the newest records)"
    console.print(Group("", predictions, error, _flip(run.pipeline)))
    if before is not None:
        change = what_if_between(before, run)
        predicted, done = before.predicted(before.what_ifs[change]), run.between_pauses
        console.print(
            f"{arguments.before} did {before.between_pauses:,.0f} env steps/s between evaluations and checkpoints and"
            f" predicted {predicted:,.0f} for '{change}';"
            f" this run did {done:,.0f}: off by {predicted / done - 1.0:+.1%}"
        )
    return EXIT_OK


def _costs(pipeline: Pipeline) -> Table:
    table = text_table("Learner", "us", "Collector", "us", left=("Collector",), title="active time per env step, us")
    sides = []
    for costs, names, total in (
        (pipeline.learner_s, LEARNER_NAMES, "1 / T"),
        (pipeline.collector_s, COLLECTOR_NAMES, f"{pipeline.num_collectors} / I"),
    ):
        rows = [(names[phase], cost) for phase, cost in sorted(costs.items(), key=lambda item: -item[1])]
        sides.append([(name, f"{MICRO * cost:z,.2f}") for name, cost in (*rows, (total, sum(costs.values())))])
    for left, right in zip_longest(*sides, fillvalue=("", "")):
        table.add_row(*left, *right)
    return table


def _waterfall(run: FinishedRun) -> Table:
    """Returns the way from what both sides could do together to what they did."""
    pipeline = run.pipeline
    table = text_table("", "I", "T", "left", "lost", title=f"env steps per second, mode {pipeline.mode}")
    before, capacities = None, [f"{pipeline.collector_capacity:,.0f}", f"{pipeline.own_learner_capacity:,.0f}"]
    for cause, left in run.losses:
        lost = "" if before is None else f"{before - left:z,.1f}"
        table.add_row(LEARNER_NAMES.get(cause, cause), *capacities, f"{left:,.1f}", lost)
        before, capacities = left, ["", ""]
    return table


def _spread(timing: Mapping[str, Any]) -> RenderableType:
    """Returns how uneven the iterations were: the whole of each side, and the phases that are sometimes long."""
    table = text_table("", "p50", "p95", "p99", "max", title="ms per iteration, ms per vector step")
    for side, names in (("learner", LEARNER_NAMES), ("collector", COLLECTOR_NAMES)):
        spreads = timing[side].get("spread_ms", {})
        if WHOLE not in spreads:
            return ""
        for phase, spread in spreads.items():
            if phase == WHOLE or spread["p99"] >= SHOWN_FRACTION * spreads[WHOLE]["p50"]:
                name = f"{side.capitalize()} {'in all' if phase == WHOLE else names[phase]}"
                table.add_row(name, *(f"{spread[key]:,.2f}" for key in ("p50", "p95", "p99", "max")))
    return table


def _flip(now: Pipeline) -> str:
    delay_us, env_step_us = MICRO * flip_delay_s(now), MICRO * now.collector_s[CollectorPhase.ENV_STEP]
    if delay_us > 0:
        return f"the collector side bounds the run once an env step takes {delay_us:,.1f} us more"
    if -delay_us < env_step_us:
        return f"the learner side bounds the run once an env step takes {-delay_us:,.1f} us less"
    return "no faster environment makes the learner side bound the run"
