"""UniLab's names for our keys, the inverse of what `offpolicy compare` reads: its dashboards show our runs.

They are those of its contract with separate waits (#633, #636, #639), and the mixed wait from before it.
"""

from __future__ import annotations

from offpolicy.logger.metrics import COMPOSITES, METRICS, VOCABULARIES
from offpolicy.logger.record import Record

OURS_ALONE = ("timing/collector_waits_ms",)  # UniLab has no such name
UNILAB = next(vocabulary for vocabulary in VOCABULARIES if vocabulary.name == "UniLab E2 (from #639)")


def with_unilab_keys(record: Record) -> Record:
    """Returns the record with every value also under UniLab's name, where that is another than ours."""
    names = {old: (alias.key, alias.scale) for old, alias in UNILAB.aliases.items()}
    names |= {old: (old, 1.0) for old in COMPOSITES if old not in OURS_ALONE}
    named: Record = {}
    for old, (key, scale) in names.items():
        parts = COMPOSITES[key][1] if key in COMPOSITES else (key,)
        values = [value for part in parts if isinstance(value := record.get(part), int | float)]
        if old not in METRICS and values:
            named[old] = sum(values) / scale
    return record | named


def our_key(key: str) -> str | None:
    """Returns our key for one of UniLab's, the first of the sum where it is one of several; None if there is none."""
    if (alias := UNILAB.aliases.get(key)) is None:
        return key if key in METRICS else None
    return COMPOSITES[alias.key][1][0] if alias.key in COMPOSITES else alias.key
