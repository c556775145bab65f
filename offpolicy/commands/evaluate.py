"""`offpolicy eval RUN ...`: the deterministic policies of saved runs on fresh environments, alone or side by side."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Group, RenderableType

from offpolicy.analysis.bootstrap import Interval, mean_interval, ratio_interval
from offpolicy.analysis.runs import paths_by_label
from offpolicy.checkpoint import BestPolicy
from offpolicy.commands.options import PolicyChoice, add_policy_options, at_least
from offpolicy.config.run_files import env_differences
from offpolicy.errors import EXIT_OK, ConfigError
from offpolicy.files import JsonlFile
from offpolicy.logger.console import plain_console, text_table
from offpolicy.output import UNKNOWN, counted, return_text, three_digits
from offpolicy.runs import LATEST, existing_run
from offpolicy.types import Episodes, Float64

if TYPE_CHECKING:
    from offpolicy.collect.evaluation import Actor
    from offpolicy.commands.saved_run import SavedRun

RANDOM = "random"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the runs and what is evaluated."""
    parser.add_argument("runs", nargs="*", metavar="[label=]run", help="runs, compared with the first (or latest)")
    parser.add_argument("--episodes", type=at_least(1), default=10, help="complete episodes of each (default: 10)")
    parser.add_argument("--random", action="store_true", help="random actions as one more policy")
    add_policy_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Evaluates the runs and prints the results."""
    paths: dict[str, Path] = {}
    for label, (path, *more) in paths_by_label(arguments.runs or [LATEST]).items():
        if more:
            raise ConfigError(f"run: the label {label!r} is given twice; write another one: other={more[0]}")
        paths[label] = existing_run(path)
    choice = PolicyChoice.of(arguments)
    found = evaluated(paths, choice, episodes=arguments.episodes, with_random=arguments.random)
    console, (first, *others) = plain_console(), found.runs
    if len(found.episodes) == 1:
        console.print(f"evaluation of {first.path}", soft_wrap=True)
        for name, value in found.records[0].items():
            text = return_text(value, ",") if isinstance(value, float) else value
            console.print(f"  {name:<14} {text}", soft_wrap=True)
    else:
        console.print(comparison(found.episodes, first.env.measure))
    for other in others:
        for difference in env_differences(first.env, other.env):
            console.print(f"the environments differ: {difference} ({first.path}, {other.path})", soft_wrap=True)
    return EXIT_OK


class Evaluated(NamedTuple):
    """Evaluations that began alike."""

    episodes: Mapping[str, Episodes]  # by label; those of random actions come last
    runs: Sequence[SavedRun]  # without random actions, which have none
    records: Sequence[Mapping[str, Any]]  # of the runs, as in `eval.jsonl`
    seed: int  # of the environments


def evaluated(
    paths: Mapping[str, Path], choice: PolicyChoice, *, episodes: int, with_random: bool = False
) -> Evaluated:
    """Evaluates runs, by label, on the same episodes and appends each result to its `eval.jsonl` as it is found.

    `with_random`: random actions as one more policy. Raises `ConfigError` for policies that cannot be compared.
    """
    from offpolicy.collect.evaluation import EpisodeCallbacks, random_actor, run_episodes  # these import torch
    from offpolicy.commands.saved_run import SavedRun

    if with_random and RANDOM in paths:
        raise ConfigError(f"run: the label {RANDOM!r} is that of the random actions; write another one")
    runs = [SavedRun.find(path, choice) for path in paths.values()]
    (first, *_), found, records = runs, dict[str, Episodes](), list[Mapping[str, Any]]()
    if len(ids := sorted({run.env.name for run in runs})) > 1:
        raise ConfigError(f"run: policies of several environments cannot be compared: {', '.join(ids)}")
    measure, seed = first.env.measure, first.seed

    def played(run: SavedRun, act: Actor) -> Episodes:
        env, callbacks = dataclasses.replace(run.env, measure=measure), EpisodeCallbacks(on_spaces=run.require_spaces)
        return run_episodes(act, env, episodes=episodes, seed=seed, num_envs=run.cfg.eval.num_envs, callbacks=callbacks)

    for label, run in zip(paths, runs, strict=True):
        found[label] = played(run, run.actor())
        records.append(_record(run, found[label], seed, measure, choice.overrides))
    if with_random:
        found[RANDOM] = played(first, random_actor(first.spec, seed))
    if measure is not None and all(np.isnan(one.measure).all() for one in found.values()):
        problem = "which the info of no episode's end holds; eval.jsonl has the returns"
        raise ConfigError(f"env.measure: got {measure!r}, {problem}")
    return Evaluated(found, runs, records, seed)


def _record(
    run: SavedRun, found: Episodes, seed: int, measure: str | None, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Appends a result to the run's `eval.jsonl` and returns it."""
    record: dict[str, Any] = {
        "env_steps": run.checkpoint.env_steps,
        **({"policy": "best"} if isinstance(run.checkpoint, BestPolicy) else {}),
        "episodes": len(found.ep_return),
        "seed": seed,
        **{f"{name}_reward": float(getattr(found.ep_return, name)()) for name in ("mean", "std", "min", "max")},
        "mean_ep_length": float(found.length.mean()),
    }
    measured = found.measure[~np.isnan(found.measure)]
    if measured.size:
        record.setdefault(f"mean_{measure}", float(measured.mean()))
    if overrides:
        record["set"] = overrides
    path = run.path / "eval.jsonl"
    try:
        with contextlib.closing(JsonlFile(path, None)) as file:
            file.append(json.loads(json.dumps(record), parse_constant=lambda _: None))  # JSON has no NaN and no Inf
    except OSError as error:  # the run may be somebody else's
        why = error.strerror or error
        sys.stderr.write(f"offpolicy: {path} cannot be written: {why}; the evaluation is not recorded\n")
    return record


def comparison(labelled: Mapping[str, Episodes], measure: str | None) -> RenderableType:
    """Returns tables of policies by label, whose episodes i began alike: results, and those compared with the first."""
    names = ["return", *([measure] if measure else [])]
    columns = {label: (one.ep_return, one.measure)[: len(names)] for label, one in labelled.items()}
    (first, references), *others = columns.items()
    results = text_table("policy", *names, "length")
    for label, values in columns.items():
        means = [_interval_text(mean_interval, column) for column in values]
        results.add_row(label, *means, f"{labelled[label].length.mean():.1f}")
    against = text_table(f"against {first}", "of", f"{first} - it", f"it / {first}", left=("of",))
    for label, values in others:
        for name, reference, column in zip(names, references, values, strict=True):
            difference = _interval_text(mean_interval, reference - column)
            against.add_row(label, name, difference, _interval_text(ratio_interval, column, reference, decimals=2))
    count = len(references[0])
    bounds = "[95 % bootstrap interval over episodes]" if count > 1 else "one says nothing of their spread"
    return Group(results, against, f"{counted(count, 'episode')} each, begun alike for all; {bounds}")


def _interval_text(of: Callable[..., Interval], *columns: Float64, decimals: int | None = None) -> str:
    """Returns the interval of what the columns [E] have, with so many decimals, else by its size; none from 1000 on."""
    is_known = ~np.isnan(sum(columns))  # an environment may report a measure of some episodes only
    if not is_known.any():
        return UNKNOWN
    known = [number for number in of(*(column[is_known] for column in columns)) if not math.isnan(number)]
    largest = max(map(abs, known))
    is_small, decimals = decimals is None and largest < 1.0, 0 if largest >= 1000.0 else decimals or 1
    value, *bounds = (three_digits(number) if is_small else f"{number:z,.{decimals}f}" for number in known)
    return f"{value} [{', '.join(bounds)}]" if bounds else value
