"""Labelled runs, `[label=]RUN`: those of one label are seeds of one configuration, the first label is the baseline."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offpolicy.analysis.records import OWN_VOCABULARY, RunRecords, read_run
from offpolicy.config.parsing import flatten, is_within
from offpolicy.config.run_files import read_values
from offpolicy.errors import ConfigError
from offpolicy.output import counted
from offpolicy.runs import NoSuchRunError, find_run, last_summary, short_name
from offpolicy.types import Float64

Config = Mapping[str, Any]  # Any: a value of config.yaml, by dotted key
MIN_RECORDS = 8  # records after the warm-up that a label of one run needs, whose records are drawn
TASK = ("env.id", "env.kwargs", "algo.name", "algo.stage")
# Keys in which the runs of one label may differ: the seed, the place of a run, what it writes and how often.
SEED_KEYS = ("seed", "run_dir", "resume", "log", "checkpoint.every", "checkpoint.every_min", "checkpoint.keep")
# Share of the wall above which times are not judged: that much waiting for a core makes a phase longer by up to 11 %,
# more than most changes are worth, and threads that wait for one another multiply it.
MAX_DESCHEDULED = 0.10
DESCHEDULED = {"learner": "cpu/learner_descheduled_pct", "collector": "cpu/collector_descheduled_pct"}
VERSIONS = "versions"  # of summary.json
PLACE_KEYS = ("run_dir", "seed", "resume", "log")  # keys whose difference between labels needs no note


@dataclass(frozen=True, slots=True)
class LabelledRuns:
    """The runs of one label; `configs[i]` and `ran[i]` are those of `runs[i]`, empty where it left none."""

    label: str
    runs: tuple[RunRecords, ...]
    configs: tuple[Config, ...]
    ran: tuple[Config, ...]  # threads, versions and library of products that ran, whatever the configuration asked for

    @property
    def has_seeds(self) -> bool:
        """True if runs are what is drawn, rather than the records of one."""
        return len(self.runs) > 1

    @property
    def last_env_steps(self) -> float:
        """The env steps that all of its runs have reached."""
        return min(float(run.columns["env_steps"][-1]) for run in self.runs)

    @property
    def has_env_steps(self) -> bool:
        """True if its curves have the x axis of all others."""
        return all(run.vocabulary.axis_is_env_steps for run in self.runs)

    def curves(self, key: str) -> list[tuple[Float64, Float64]]:
        """Returns env steps and values of each run that has any."""
        found = [run.curve(key) for run in self.runs]
        return [(curve.env_steps, curve.value) for curve in found if len(curve.value)]

    @property
    def descheduled(self) -> dict[str, float]:
        """The share of the wall without a core, by side, of the run that had most of it; without what none recorded."""
        found = {side: [run.steady(key) for run in self.runs] for side, key in DESCHEDULED.items()}
        known = {side: [values.mean for values in runs if len(values.value)] for side, runs in found.items()}
        return {side: max(percents) / 100.0 for side, percents in known.items() if percents}

    @property
    def is_contended(self) -> bool:
        """True if a side of one of its runs was without a core for more than `MAX_DESCHEDULED` of the wall."""
        return any(share > MAX_DESCHEDULED for share in self.descheduled.values())

    @property
    def descheduled_text(self) -> str:
        """Its shares without a core, such as `learner 87.1 %, collector 2.3 %`."""
        return ", ".join(f"{side} {100.0 * share:.1f} %" for side, share in self.descheduled.items())


def paths_by_label(words: Sequence[str]) -> dict[str, list[Path]]:
    """Returns the paths of `[label=]RUN ...`, several of a label being seeds. Raises `ConfigError`.

    A word that is a directory, though with = in its name, is a run without a label: it is named by the shortest end of
    its path that no other run has and that is no label yet. A run may be given as `latest` or by the beginning of its
    name.
    """
    parsed: list[tuple[str, Path]] = []
    for word in words:
        label, is_labelled, text = word.partition("=")
        if not is_labelled or os.path.isdir(word):
            label, text = "", word
        try:
            parsed.append((label, find_run(text)))
        except NoSuchRunError:  # what reads it refuses it together with all others
            parsed.append((label, Path(text)))
    given = {label for label, _ in parsed if label}
    bare = [path.resolve() for label, path in parsed if not label]
    named: dict[str, list[Path]] = {}
    for label, path in parsed:
        runs = named.setdefault(label or short_name(path.resolve(), bare, given), [])
        if runs and not label:
            raise ConfigError(f"run: {path} is given twice; seeds of one configuration need a label: a=RUN a=RUN b=RUN")
        runs.append(path)
    return named


def read_runs(words: Sequence[str]) -> list[LabelledRuns]:
    """Reads the runs of `[label=]RUN ...`, the baseline first. Raises `ConfigError`, with all problems at once."""
    return read_labelled(paths_by_label(words))


def read_labelled(named: Mapping[str, Sequence[Path]]) -> list[LabelledRuns]:
    """Reads the runs of each label, the baseline first. Raises `ConfigError`, with all problems at once."""
    if len(named) < 2:
        raise ConfigError(f"run: got {len(named)} label, needed two or more: the first is the baseline")
    compared: list[LabelledRuns] = []
    problems: list[str] = []
    for label, paths in named.items():
        try:
            places = [path.resolve() for path in paths]
            for path, place in zip(paths, places, strict=True):
                if places.count(place) > 1:  # it would count as two seeds
                    raise ConfigError(f"run: {path} is given twice under one label")
            runs = tuple(map(read_run, paths))
            compared.append(LabelledRuns(label, runs, tuple(map(flat_config, paths)), tuple(map(_what_ran, paths))))
            _check(compared[-1])
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return compared


def flat_config(path: Path) -> Config:
    """Returns `config.yaml` by dotted key, of whatever version; empty where there is none to read."""
    try:
        return flatten(read_values(path / "config.yaml"))
    except ConfigError:
        return {}


def _what_ran(path: Path) -> Config:
    """Returns `threads`, `versions`, `kernels` and `products` of `summary.json` by dotted key; those that are there."""
    summary = last_summary(path)
    ran = flatten({name: summary[name] for name in ("threads", VERSIONS) if isinstance(summary.get(name), Mapping)})
    return ran | {key: summary[key] for key in ("kernels", "products") if isinstance(summary.get(key), str)}


def _check(labelled: LabelledRuns) -> None:
    """Raises `ConfigError` where a label mixes configurations or trainers, or where a run has too few records.

    The mean of a mixed label would describe none of its runs.
    """
    first, needed = labelled.runs[0], 1 if labelled.has_seeds else MIN_RECORDS
    for run, config in zip(labelled.runs[1:], labelled.configs[1:], strict=True):
        differ = [text for key, text in _differences(labelled.configs[0], config) if not is_within(key, SEED_KEYS)]
        if run.vocabulary.name != first.vocabulary.name:
            differ = [f"trainer {first.vocabulary.name}, {run.vocabulary.name}"]
        if differ:
            mixed = f"{first.path} and {run.path}, which differ: {'; '.join(differ)}"
            raise ConfigError(f"run: the label {labelled.label!r} mixes {mixed}")
    for run in labelled.runs:
        count = int(run.is_steady.sum())
        if count < needed:
            advice = "let it run longer, log more often (log.every_s), or give several seeds: label=RUN label=RUN"
            found = counted(count, "record")
            raise ConfigError(f"run: {run.path} has {found} after its warm-up, needed {needed}; {advice}")


def _differences(one: Config, other: Config) -> Iterator[tuple[str, str]]:
    """Yields dotted key and `key: value, other value`; nothing where one of them is unknown."""
    for key in dict.fromkeys([*one, *other]) if one and other else ():
        values = one.get(key, "absent"), other.get(key, "absent")
        if values[0] != values[1]:
            yield key, f"{key} {values[0]}, {values[1]}"


def version_differences(compared: Sequence[LabelledRuns]) -> list[str]:
    """Returns a line for each label whose packages had other versions than those of the baseline."""
    first, lines = compared[0].ran[0], list[str]()
    for labelled in compared[1:]:
        both = ((key, first[key], labelled.ran[0].get(key)) for key in first if is_within(key, (VERSIONS,)))
        found = [f"{key.partition('.')[2]} {old} -> {new}" for key, old, new in both if old and new and old != new]
        which = f" ({labelled.label})" if len(compared) > 2 else ""
        lines += [f"differs{which}: {', '.join(found)}"] if found else []
    return lines


def warnings(compared: Sequence[LabelledRuns]) -> list[str]:
    """Returns lines on what makes numbers less comparable: other tasks, other settings, other meanings of a key."""
    first, lines = compared[0], list[str]()
    for labelled in compared[1:]:
        found = dict(_differences(first.configs[0], labelled.configs[0]))
        task = [text for key, text in found.items() if is_within(key, TASK)]
        rest = [text for key, text in found.items() if not is_within(key, TASK + PLACE_KEYS)]
        names = f"{first.label}, {labelled.label}"
        lines += [f"warning: not the same task or algorithm ({names}): {'; '.join(task)}"] if task else []
        lines += [f"configuration ({names}): {'; '.join(rest)}"] if rest else []
        known = {key for key in first.ran[0].keys() & labelled.ran[0].keys() if not is_within(key, (VERSIONS,))}
        ran = [text for key, text in _differences(first.ran[0], labelled.ran[0]) if key in known]
        lines += [f"what ran ({names}): {'; '.join(ran)}"] if ran else []
    bare = [labelled.label for labelled in compared if not labelled.configs[0]]
    lines += [f"{label}: no config.yaml, so its settings are not compared" for label in bare]
    for labelled in compared:
        label, vocabulary = labelled.label, labelled.runs[0].vocabulary
        lines += [f"{label} is read as {vocabulary.name}"] if vocabulary.name != OWN_VOCABULARY else []
        lines += [f"warning: x axis of {label} is iterations: curves left out"] if not labelled.has_env_steps else []
        lines += [f"{label}: {note}" for note in labelled.runs[0].notes]
    return lines
