"""Runs under labels: those of one label are seeds of one configuration, and the first label is the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from offpolicy.analysis.runs import RunRecords, read_run
from offpolicy.config.parsing import flatten, is_within
from offpolicy.errors import ConfigError
from offpolicy.types import Float64

Config = Mapping[str, Any]  # Any: a value of config.yaml, by dotted key
NEEDED = 8  # records after the warm-up, where records are what is drawn
TASK = ("env.id", "env.kwargs", "algo.name", "algo.stage")
MISSING = "absent"
# In what the runs of one label may differ: the seed, where a run lies, what it writes and how often.
OF_A_SEED = ("seed", "run_dir", "resume", "log", "checkpoint.every", "checkpoint.keep")
OF_A_PLACE = ("run_dir", "seed", "resume", "log", "threads")


@dataclass(frozen=True, slots=True)
class Group:
    """The runs of one label; `configs[i]` is that of `runs[i]`, empty where it left none."""

    label: str
    runs: tuple[RunRecords, ...]
    configs: tuple[Config, ...]

    @property
    def has_seeds(self) -> bool:
        """Whether runs are what is drawn, rather than the records of one."""
        return len(self.runs) > 1

    @property
    def last_env_steps(self) -> float:
        """As far as all of its runs go."""
        return min(run.last_env_steps for run in self.runs)

    @property
    def has_env_steps(self) -> bool:
        """Whether its curves have the x axis of all others."""
        return all(run.vocabulary.axis_is_env_steps for run in self.runs)

    def curves(self, key: str) -> list[tuple[Float64, Float64]]:
        """Env steps and values of each run that has any."""
        found = [run.curve(key) for run in self.runs]
        return [(series.env_steps, series.value) for series in found if len(series.value)]


def read_groups(words: Sequence[str]) -> list[Group]:
    """The groups that `[label=]RUN ...` names, the baseline first. Raises `ConfigError`."""
    named = labelled(words)
    if len(named) < 2:
        raise ConfigError(f"run: got {len(named)} label, needed two or more: the first is the baseline")
    groups: list[Group] = []
    problems: list[str] = []
    for label, paths in named.items():
        try:
            groups.append(_group(label, paths))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return groups


def labelled(words: Sequence[str]) -> dict[str, list[Path]]:
    """Paths by label; a run without one is called by as much of its path as tells it from the others."""
    parsed = [_parsed(word) for word in words]
    bare = [path for label, path in parsed if not label]
    given = {label for label, _ in parsed if label}
    named: dict[str, list[Path]] = {}
    for label, path in parsed:
        runs = named.setdefault(label or _short_name(path, bare, given), [])
        if path.resolve() in (run.resolve() for run in runs):
            raise ConfigError(f"run: {path} is given twice under one label")
        runs.append(path)
    return named


def _parsed(word: str) -> tuple[str, Path]:
    label, is_labelled, text = word.partition("=")
    if not is_labelled or Path(word).is_dir():  # a directory may have a = in its name
        return "", Path(word)
    return label, Path(text)


def _short_name(path: Path, others: Sequence[Path], given: Set[str]) -> str:
    """The shortest end of `path` that no other of `others` has, and that is none of the labels given."""
    parts = path.resolve().parts
    ends = [parts[-count:] for count in range(1, len(parts))]
    own = ["/".join(end) for end in ends if sum(other.resolve().parts[-len(end) :] == end for other in others) == 1]
    for name in own:
        if name not in given:
            return name
    if own:
        raise ConfigError(f"run: {path} needs a label: each part of its path is one already")
    raise ConfigError(f"run: {path} is given twice; seeds of one configuration need a label: a=RUN a=RUN b=RUN")


def _group(label: str, paths: Sequence[Path]) -> Group:
    runs = tuple(read_run(path) for path in paths)
    group = Group(label, runs, tuple(_config(path) for path in paths))
    _require_one_configuration(group)
    needed = 1 if group.has_seeds else NEEDED
    for run in runs:
        count = int(run.is_steady.sum())
        if count < needed:
            advice = "let it run longer, log more often (log.every_s), or give several seeds: label=RUN label=RUN"
            raise ConfigError(f"run: {run.path} has {count} records after its warm-up, needed {needed}; {advice}")
    return group


def _config(path: Path) -> Config:
    """`config.yaml` by dotted key, of whatever version; empty where there is none to read."""
    try:
        tree = yaml.safe_load((path / "config.yaml").read_text())
    except (OSError, yaml.YAMLError):
        return {}
    return flatten(tree) if isinstance(tree, Mapping) else {}


def _require_one_configuration(group: Group) -> None:
    """Raise `ConfigError` where a label mixes configurations or trainers: its mean would be one of nothing."""
    first = group.runs[0]
    for run, config in zip(group.runs[1:], group.configs[1:], strict=True):
        told = [text for key, text in _differences(group.configs[0], config) if not is_within(key, OF_A_SEED)]
        if run.vocabulary.name != first.vocabulary.name:
            told = [f"trainer {first.vocabulary.name}, {run.vocabulary.name}"]
        if told:
            differ = "; ".join(told)
            raise ConfigError(
                f"run: the label {group.label!r} mixes {first.path} and {run.path}, which differ: {differ}"
            )


def _differences(one: Config, other: Config) -> Iterator[tuple[str, str]]:
    """Dotted key and `key: value, other value`; nothing where one of them is unknown."""
    if not one or not other:
        return
    for key in dict.fromkeys([*one, *other]):
        values = one.get(key, MISSING), other.get(key, MISSING)
        if values[0] != values[1]:
            yield key, f"{key} {values[0]}, {values[1]}"


def warnings(groups: Sequence[Group]) -> list[str]:
    """What a reader must know before he compares: other tasks, other settings, other meanings of a key."""
    first, lines = groups[0], list[str]()
    for group in groups[1:]:
        pairs = [
            pair for pair in _differences(first.configs[0], group.configs[0]) if not is_within(pair[0], OF_A_PLACE)
        ]
        task = [text for key, text in pairs if is_within(key, TASK)]
        rest = [text for key, text in pairs if not is_within(key, TASK)]
        names = f"{first.label}, {group.label}"
        lines += [f"warning: not the same task or algorithm ({names}): {'; '.join(task)}"] if task else []
        lines += [f"configuration ({names}): {'; '.join(rest)}"] if rest else []
    lines += [
        f"{group.label}: no config.yaml, so its settings are not compared" for group in groups if not group.configs[0]
    ]
    for group in groups:
        vocabulary = group.runs[0].vocabulary
        lines += [f"{group.label} is read as {vocabulary.name}"] if vocabulary.name != "offpolicy" else []
        lines += [f"warning: x axis of {group.label} is iterations: curves left out"] if not group.has_env_steps else []
        lines += [f"{group.label}: {note}" for note in group.runs[0].notes]
    return lines
