"""A record as other monitoring systems see it: a name for each key, its unit, and ranks as a label."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from offpolicy.logger.metrics import METRICS, RANK_IN_KEY
from offpolicy.logger.provenance import utf8
from offpolicy.logger.record import Record, RunHeader

PREFIX = "offpolicy_"
SENTENCES = ("perf/bottleneck_reason", "perf/bottleneck_advice")  # another text in nearly every record
_UCUM: Mapping[str, str] = {  # units of the table that the Unified Code for Units of Measure has
    "": "", "text": "", "1": "1", "fraction": "1", "%": "%", "ms": "ms", "s": "s", "W": "W", "GiB": "GiBy",
}  # fmt: skip


_SHARE = re.compile(r" [0-9]+%")  # of `learner(train 94%)`, `contention(train: descheduled 19%)`


class ExportedValue(NamedTuple):
    """One value of a record: a number, or a text."""

    name: str
    help: str
    unit: str  # of the metric table
    rank: str | None  # of a key of one rank
    value: float | str


def exported_values(record: Record) -> Iterator[ExportedValue]:
    """Yields every value of a record under its name; the keys of all ranks have one name.

    A text becomes a label there, and each other text a time series of its own. So the sentences are left out, and
    the verdict has its side and its phase without their share.
    """
    for key, value in record.items():
        if value is None or key in SENTENCES:
            continue
        if key == "perf/bottleneck":
            value = _SHARE.sub("", str(value))
        rank = RANK_IN_KEY.match(key)
        plain = RANK_IN_KEY.sub("rank/<r>/", key)
        metric = METRICS.get(plain)
        text, unit = (metric.help, metric.unit) if metric is not None else ("", "")
        yield ExportedValue(metric_name(plain), text, unit, rank[0].split("/")[1] if rank else None, value)


def run_labels(run: str, header: RunHeader) -> dict[str, str]:
    """Returns what names a run, in UTF-8: a directory may have a name in other bytes."""
    return {"run": utf8(run), "algo": header.algo, "env": header.env_id, "seed": str(header.seed)}


def metric_name(key: str) -> str:
    """Returns the name of a key: `perf/steps_per_sec` is `offpolicy_perf_steps_per_sec`, `rank/<r>/x` is `rank_each_x`.

    `rank/0/train_ms` and `rank/train_mean_ms` are different metrics, so the former has a word in the rank's place.
    """
    return PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", key.replace("<r>", "each"))


def ucum(unit: str) -> str:
    """Returns a unit of the metric table as UCUM, which OpenTelemetry asks for: `ms/env step` is `ms/{env_step}`.

    What UCUM has no unit for is an annotation in braces, in which it allows no space (UCUM, 12).
    """
    return "/".join(_UCUM.get(part, f"{{{part.replace(' ', '_')}}}") for part in unit.split("/"))
