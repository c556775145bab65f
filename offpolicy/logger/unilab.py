"""UniLab's names for our keys, the inverse of what `offpolicy compare` reads: its dashboards show our runs.

They are those of its contract with separate waits (#633, #636, #639), and the mixed wait from before it.
"""

from __future__ import annotations

from offpolicy.logger.metrics import COMPOSITES, METRICS, VOCABULARIES, Alias
from offpolicy.logger.record import Record

UNILAB = next(vocabulary for vocabulary in VOCABULARIES if vocabulary.name == "UniLab E2 (from #639)")


def with_unilab_keys(record: Record) -> Record:
    """Returns the record with every value also under UniLab's name, where that is another than ours."""
    named: Record = {}
    for old, alias in UNILAB.aliases.items():
        value = record.get(alias.key)
        if old not in METRICS and value is not None and not isinstance(value, str):
            named[old] = value / alias.scale
    for old, (_, parts) in COMPOSITES.items():
        values = [value for part in parts if isinstance(value := record.get(part), int | float)]
        if old not in METRICS and values:
            named[old] = sum(values)
    return record | named


def our_key(key: str) -> str | None:
    """Returns our key for one of UniLab's; None if there is none."""
    found = UNILAB.aliases.get(key, Alias(key)).key
    return found if found in METRICS else None
