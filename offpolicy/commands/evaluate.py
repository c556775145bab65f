"""`offpolicy eval RUN ...`: the deterministic policies of saved runs on fresh environments, alone or side by side."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from offpolicy.analysis.comparison import Contestant, comparison
from offpolicy.collect.evaluation import random_actions, run_episodes
from offpolicy.commands.saved_run import PolicyChoice, SavedRun
from offpolicy.config.run_files import env_differences
from offpolicy.errors import ConfigError
from offpolicy.types import Episodes

RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Request:
    """What to evaluate. `runs` are directories by the label that the table shows."""

    runs: Mapping[str, Path]
    choice: PolicyChoice
    episodes: int
    with_random: bool  # uniformly random actions as one more contestant


def evaluate(request: Request) -> int:
    """Evaluate every run on the same episodes, print what came out and append it to each run's `eval.jsonl`."""
    choice, names = request.choice, list(request.runs)
    if request.with_random and RANDOM in names:
        raise ConfigError(f"run: the label {RANDOM!r} is that of the random actions; write another one")
    runs = [SavedRun.find(path, choice) for path in request.runs.values()]
    reference = runs[0].env
    _require_one_environment(runs)
    envs = [dataclasses.replace(run.env, measure=reference.measure) for run in runs]
    seed = runs[0].cfg.seed if choice.seed is None else choice.seed
    actors = [run.actor(choice.device) for run in runs]
    if request.with_random:
        names, envs, actors = [*names, RANDOM], [*envs, reference], [*actors, random_actions(runs[0].spec, seed)]
    found = [
        Contestant(name, run_episodes(act, env, episodes=request.episodes, seed=seed))
        for name, act, env in zip(names, actors, envs, strict=True)
    ]
    if reference.measure is not None and any(np.isnan(contestant.episodes.measure).all() for contestant in found):
        raise ConfigError(f"env.measure: got {reference.measure!r}, which the info of no episode's end holds")
    records = [
        _record(run, contestant.episodes, seed, reference.measure, choice.overrides)
        for run, contestant in zip(runs, found, strict=False)  # random actions are nobody's record
    ]
    shown = comparison(found, reference.measure) if len(found) > 1 else _alone(runs[0].path, records[0])
    console = Console(markup=False, highlight=False)
    console.print(shown)
    for run in runs[1:]:
        for difference in env_differences(reference, run.env):
            console.print(f"the environments differ: {difference} ({runs[0].path}, {run.path})")
    return 0


def _require_one_environment(runs: list[SavedRun]) -> None:
    ids = sorted({run.env.id for run in runs})
    if len(ids) > 1:
        raise ConfigError(f"run: policies of several environments cannot be compared: {', '.join(ids)}")


def _record(
    run: SavedRun, found: Episodes, seed: int, measure: str | None, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Append a result to the run's `eval.jsonl`."""
    record = {
        "env_steps": run.checkpoint.env_steps,
        "episodes": len(found.ep_return),
        "seed": seed,
        "mean_reward": float(found.ep_return.mean()),
        "std_reward": float(found.ep_return.std()),
        "min_reward": float(found.ep_return.min()),
        "max_reward": float(found.ep_return.max()),
        "mean_ep_length": float(found.length.mean()),
        **({f"mean_{measure}": float(np.nanmean(found.measure))} if measure else {}),
        **({"set": overrides} if overrides else {}),
    }
    with open(run.path / "eval.jsonl", "a", encoding="utf-8") as sink:
        sink.write(json.dumps(record) + "\n")
    return record


def _alone(path: Path, result: Mapping[str, Any]) -> Table:
    table = Table(title=f"evaluation of {path}", show_header=False)
    for name, value in result.items():
        text = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
        table.add_row(name, text)
    return table
