"""Every key that a record may hold (`metrics.toml`), and the names of other trainers for them (`aliases.toml`)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from offpolicy.errors import OffPolicyError
from offpolicy.timing.phases import CollectorPhase, LearnerPhase

PHASES = {"learner": LearnerPhase, "collector": CollectorPhase}
ROLLOUT_KEY = "timing/collector_rollout_ms"
PIPELINE_KEY = "perf/learner_pipeline_ms"
CORES_KEY = "cores/capacity"
RANK_STATISTICS = ("min", "mean", "max")


class UnknownMetricError(OffPolicyError):
    """A record holds a key that the table does not know."""


class MetricClass(StrEnum):
    """The ways in which values may be combined."""

    EXCLUSIVE = "exclusive"  # disjoint phases of one clock: they sum to its wall
    NESTED = "nested"  # sums or parts of exclusive phases: not to be added to those
    BACKGROUND = "background"  # beside the phases, on another clock or device: not to be added
    RATE = "rate"  # from cumulative counters over the window
    CURVE = "curve"  # a learning curve
    COUNTER = "counter"  # a level or a cumulative count at the end of the window


@dataclass(frozen=True, slots=True)
class Metric:
    """One key. `reduction` says how the values of ranks or collectors become one; `row` is its name in the panel."""

    key: str
    section: str  # of the reference page
    kind: MetricClass  # `class` in the table
    unit: str
    window: str
    reduction: str
    help: str
    row: str = ""


def read_metrics(groups: Sequence[Mapping[str, Any]]) -> Mapping[str, Metric]:  # Any: values of the table
    """Returns the metrics of groups, by key and in their order.

    A group with `phases` repeats its metrics for each phase, with the row of that phase from an earlier group.
    """
    metrics: dict[str, Metric] = {}
    for group in groups:
        rows = {"": ""}  # of a group without phases
        if side := group.get("phases"):
            rows = {str(phase): metrics[f"timing/{side}_{phase}_ms"].row for phase in PHASES[side]}
            rows |= group.get("whole", {})
        for (phase, row), (name, own) in product(rows.items(), group["metrics"].items()):
            key, fields = group["key"].format(name, phase=phase), {"row": "", **group["defaults"], **own}
            fields["kind"] = MetricClass(fields.pop("class"))
            fields["help"] = " ".join(fields["help"].replace("{row}", row).split())
            metrics[key] = Metric(key, group["section"], **fields)
    return metrics


def read_charts(charts: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
    """Returns the keys of each chart by its title; a title with a place in it stands for one chart per key."""
    found: dict[str, list[str]] = {}
    for title, patterns in charts.items():
        for key in (key for pattern in patterns for key in METRICS if fnmatchcase(key, pattern)):
            found.setdefault(title.format(key=key, row=METRICS[key].row or key), []).append(key)
    return found


class Alias(NamedTuple):
    """Our name of a key. `note` says how the two differ; values are multiplied by `scale`."""

    key: str
    note: str = ""
    scale: float = 1.0
    unlike_with_ranks: bool = False  # with several learner ranks it holds work that ours does not: no verdict


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The keys of one trainer in one generation. `marks`: sets of keys, each of which identifies it."""

    name: str
    marks: tuple[tuple[str, ...], ...]
    aliases: Mapping[str, Alias]
    axis_is_env_steps: bool = True  # else iterations: its curves cannot be laid over others

    def notes(self, keys: Iterable[str]) -> list[str]:
        """Returns the notes of those aliases through which a run with these keys is read."""
        recorded = frozenset(keys)
        read = [(old, alias) for old, alias in self.aliases.items() if old in recorded]
        first = {alias.key: old for old, alias in reversed(read)}  # of several old names for one, the first counts
        noted = [(old, alias) for old, alias in read if alias.note and first[alias.key] == old]
        return [f"{old if old == new else f'{old} as {new}'}: {note}" for old, (new, note, *_) in noted]


def read_vocabularies(tables: Sequence[Mapping[str, Any]]) -> tuple[Vocabulary, ...]:  # Any: values of the table
    """Returns the vocabularies of `aliases.toml`, each with the aliases of the one that it extends."""
    found: dict[str, Vocabulary] = {}
    for table in reversed(tables):  # the older ones, which others extend, come last
        aliases = dict(found[table["extends"]].aliases) if "extends" in table else {}
        for old, new in table["aliases"].items():
            aliases[old] = Alias(new) if isinstance(new, str) else Alias(**new)
        kept = {old: alias for old, alias in aliases.items() if old not in table.get("drops", ())}
        marks = tuple(map(tuple, table["marks"]))
        found[table["name"]] = Vocabulary(table["name"], marks, kept, table.get("axis_is_env_steps", True))
    return tuple(reversed(found.values()))


def vocabulary_of(keys: Iterable[str]) -> Vocabulary:
    """Returns the first vocabulary with a mark that `keys` hold whole; ours where there is none."""
    recorded = frozenset(keys)
    return next((each for each in VOCABULARIES if any(map(recorded.issuperset, each.marks))), VOCABULARIES[0])


_TABLE = tomllib.loads(Path(__file__).with_name("metrics.toml").read_text(encoding="utf-8"))
METRICS = read_metrics(_TABLE["group"])
# Keys by category and chart of TensorBoard's dashboard, in the order of the patterns, then of the metrics.
CHARTS = {category: read_charts(charts) for category, charts in _TABLE["charts"].items()}
ONCE_USED, WITH_RANKS = (
    frozenset(key for key in METRICS if any(fnmatchcase(key, pattern) for pattern in _TABLE["tensorboard"][name]))
    for name in ("once_used", "with_ranks")
)
# Rows of the panel by phase, in the order of the phases.
LEARNER_ROWS, COLLECTOR_ROWS = (
    {str(phase): METRICS[f"timing/{side}_{phase}_ms"].row for phase in phases} for side, phases in PHASES.items()
)

_ALIASES = tomllib.loads(Path(__file__).with_name("aliases.toml").read_text(encoding="utf-8"))
VOCABULARIES = read_vocabularies(_ALIASES["vocabulary"])
# Sums of our phases that others recorded as one number: the row and the keys of the parts.
COMPOSITES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    key: (table["row"], tuple(table["parts"])) for key, table in _ALIASES["composites"].items()
}
# Phases that only others have: the side whose account they belong to, and their row.
FOREIGN: Mapping[str, tuple[str, str]] = {
    key: (table["side"], table["row"]) for key, table in _ALIASES["foreign"].items()
}


def listed(key: str) -> str:
    """Returns a key as the table has it: `<r>` is any rank, `<c>` any remote collector, `<name>` what `env/` has."""
    key = re.sub(r"^rank/\d+/", "rank/<r>/", re.sub(r"^link/\d+/", "link/<c>/", key))
    return re.sub(r"^env/.+", "env/<name>", key)


def require_known(keys: Iterable[str]) -> None:
    """Raises `UnknownMetricError` naming the keys that are not in the table."""
    unknown = sorted(key for key in keys if listed(key) not in METRICS)
    if unknown:
        raise UnknownMetricError(f"metrics not in offpolicy/logger/metrics.toml: {', '.join(unknown)}")


UNILAB = next(vocabulary for vocabulary in VOCABULARIES if vocabulary.name == "UniLab E2 (from #639)")
OURS_ALONE = ("timing/collector_waits_ms",)  # a sum without a name of UniLab


def with_unilab_keys(record: Mapping[str, float | str | None]) -> dict[str, float | str | None]:
    """Returns the record with every value also under UniLab's name, where that is another than ours.

    The names are those of its contract with separate waits, and the mixed wait from before it: the inverse of what
    `offpolicy compare` reads.
    """
    names = {old: (alias.key, alias.scale) for old, alias in UNILAB.aliases.items()}
    names |= {old: (old, 1.0) for old in COMPOSITES if old not in OURS_ALONE}
    named = dict(record)
    for old, (key, scale) in names.items():
        parts = COMPOSITES[key][1] if key in COMPOSITES else (key,)
        values = [value for part in parts if isinstance(value := record.get(part), int | float)]
        if old not in METRICS and values:
            named[old] = sum(values) / scale
    return named


def our_key(key: str) -> str | None:
    """Returns our key for one of UniLab's, the first of the sum where it is one of several; None if there is none."""
    if (alias := UNILAB.aliases.get(key)) is None:
        return key if key in METRICS else None
    return COMPOSITES[alias.key][1][0] if alias.key in COMPOSITES else alias.key
