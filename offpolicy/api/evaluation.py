"""`offpolicy.evaluate` and `offpolicy.compare`: what the commands `eval` and `compare` find, as objects."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict, Unpack, overload

from offpolicy.analysis import report as pages
from offpolicy.analysis.report import Report
from offpolicy.analysis.runs import read_labelled, read_runs
from offpolicy.api.runs import AnyRun, TrainedRun, kind, path_of, plain_value, whole_number
from offpolicy.commands.compare import report_of
from offpolicy.commands.options import PolicyChoice
from offpolicy.errors import ConfigError
from offpolicy.logger.console import plain_text
from offpolicy.output import open_descriptors
from offpolicy.types import Float64

TEXT_WIDTH = 120  # characters of a comparison as text
NO_CHANGES: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Complete episodes of one policy without noise; episode i begins alike for all policies of one call."""

    label: str
    ep_return: Float64  # [E] raw
    ep_length: Float64  # [E] vector steps
    measure: Float64  # [E] what `env.measure` names; NaN where nothing is measured
    seed: int  # of the environments

    @property
    def mean_reward(self) -> float:
        """The mean of the returns."""
        return float(self.ep_return.mean())

    @property
    def std_reward(self) -> float:
        """The standard deviation of the returns."""
        return float(self.ep_return.std())

    def __repr__(self) -> str:
        spread = f"mean_reward={self.mean_reward:z.2f}, std_reward={self.std_reward:.2f}"
        return f"Evaluation({self.label!r}, {spread}, episodes={len(self.ep_return)}, seed={self.seed})"


class EvaluateOptions(TypedDict, total=False):
    """The options of `evaluate`."""

    episodes: int  # complete episodes of each policy; 10
    seed: int | None  # of the environments; None: that of the first run
    step: int | None  # checkpoint in env steps; None: the newest
    device: str  # auto
    trust: bool  # as `offpolicy eval --trust`
    random: bool  # random actions as one more policy, labelled `random`; with several runs, or a list of one
    changes: Mapping[str, Any]  # of the environments, nested: {"env": {"kwargs": {"g": 9.0}}}; Any: checked values


@overload  # a str is a Sequence[str] too: the first one that fits is meant
def evaluate(run: AnyRun, **options: Unpack[EvaluateOptions]) -> Evaluation: ...  # type: ignore[overload-overlap]


@overload
def evaluate(
    run: Sequence[AnyRun] | Mapping[str, AnyRun], **options: Unpack[EvaluateOptions]
) -> dict[str, Evaluation]: ...


def evaluate(  # noqa: PLR0913  # the options of the command
    run: AnyRun | Sequence[AnyRun] | Mapping[str, AnyRun],
    *,
    episodes: int = 10,
    seed: int | None = None,
    step: int | None = None,
    device: str = "auto",
    trust: bool = False,
    random: bool = False,
    changes: Mapping[str, Any] = NO_CHANGES,
) -> Evaluation | dict[str, Evaluation]:
    """Returns the evaluation of one run, or those of several by label: fresh environments, the same episodes for all.

    Labels are the keys of a mapping, else the names of the directories. Each result is added to its run's
    `eval.jsonl`. The options are those of `EvaluateOptions`. Raises `ConfigError`, `CheckpointError` and `EnvFailure`.
    """
    from offpolicy.commands.evaluate import evaluated  # imports torch

    open_descriptors()
    is_one = isinstance(run, str) or not isinstance(run, Iterable)
    if is_one and random:
        got = "got True with one run, allowed with a list or a mapping"
        raise ConfigError(f"random: {got}: evaluate([run], random=True)")
    paths = _labelled([run] if isinstance(run, str) or not isinstance(run, Iterable) else run)
    if not paths:
        raise ConfigError("run: got none, allowed one or more")
    episodes = whole_number("episodes", episodes, 1)
    seed, step = (
        None if given is None else whole_number(name, given, 0) for name, given in (("seed", seed), ("step", step))
    )
    if not isinstance(changes := plain_value(changes), Mapping):
        raise ConfigError(
            f'changes: got {kind(changes)}, allowed a mapping such as {{"env": {{"kwargs": {{"g": 9.0}}}}}}'
        )
    choice = PolicyChoice(seed, step, device, changes, is_trusted=trust)
    found = evaluated(paths, choice, episodes=episodes, with_random=random)
    evaluations = {
        label: Evaluation(label, one.ep_return, one.length, one.measure, found.seed)
        for label, one in found.episodes.items()
    }
    return next(iter(evaluations.values())) if is_one else evaluations


def _labelled(runs: Sequence[AnyRun] | Mapping[str, AnyRun]) -> dict[str, Path]:
    """Returns the directories of runs by label; directories of one name are numbered."""
    if isinstance(runs, Mapping):
        return {label: path_of(one) for label, one in runs.items()}
    paths, named = [path_of(run) for run in runs], dict[str, Path]()
    for path in paths:
        numbered = (f"{path.name}-{number}" for number in itertools.count(2))
        taken = {*named, *(other.name for other in paths)}
        named[path.name if path.name not in named else next(name for name in numbered if name not in taken)] = path
    return named


@dataclass(frozen=True, slots=True)
class Comparison:
    """The tables of `offpolicy compare`: printed as text, shown as Markdown by a notebook."""

    report: Report  # its sections hold the rows, each with a cell per label: value, change, interval, verdict

    def markdown(self) -> str:
        """Returns the tables and notes as Markdown."""
        return pages.markdown(self.report, None)

    def _repr_markdown_(self) -> str:
        return self.markdown()

    def __str__(self) -> str:
        return plain_text(self.report.title, pages.terminal(self.report, TEXT_WIDTH), width=TEXT_WIDTH)


def compare(
    runs: Sequence[AnyRun] | Mapping[str, AnyRun | Sequence[AnyRun]], *, reference: float | None = None
) -> Comparison:
    """Returns phases, rates and learning curves of runs side by side; the first label is the baseline.

    The runs of one label are seeds of one thing: `{"sac": [one, two], "td3": [three, four]}`. `reference` is the score
    to reach, None: chosen from the curves. Raises `ConfigError`.
    """
    if isinstance(runs, str) or not isinstance(runs, Iterable):
        got = "one" if isinstance(runs, str | Path | TrainedRun) else kind(runs)
        raise ConfigError(f"run: got {got}, allowed a list or a mapping of two or more: compare([run, other])")
    if reference is not None and not (isinstance(reference, int | float) and math.isfinite(reference)):
        raise ConfigError(f"reference: got {reference!r}, allowed a finite number")
    if not isinstance(runs, Mapping):
        return Comparison(report_of(read_runs([str(path_of(run)) for run in runs]), reference))
    named: dict[str, list[Path]] = {}
    for label, given in runs.items():
        several = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
        if str(label) in named:  # a label that is no text, such as a number, becomes one
            raise ConfigError(f"run: the label {str(label)!r} is given twice; write another one")
        named[str(label)] = [path_of(run) for run in several]
        if not named[str(label)]:
            raise ConfigError(f"run: got none with the label {label!r}, allowed one or more")
    return Comparison(report_of(read_labelled(named), reference))
