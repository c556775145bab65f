"""How the phases are spread over the iterations of a window: their percentiles, as keys of a record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from offpolicy.logger.metrics import spread_key
from offpolicy.timing.histogram import Counts, percentiles_of

STATISTICS = ("p50", "p95", "p99", "max")
ITERATION, CYCLE = "iter", "cycle"  # the whole of the phases of the learner, of the collector


def spread_keys(side: str, phases: Sequence[str], counts: Counts | None) -> dict[str, float]:
    """The keys of one side from its histograms [phases, bins]; none where nothing was counted."""
    if counts is None:
        return {}
    record: dict[str, float] = {}
    for phase, own_counts in zip(phases, counts, strict=True):
        spread = percentiles_of(own_counts)
        if spread is None:
            return {}
        # Known to 3 %: more digits would only fill the files.
        record |= {spread_key(side, phase, name): float(f"{getattr(spread, name):.4g}") for name in STATISTICS}
        record[f"spread/{side}_count"] = spread.iterations
    return record


def sum_spreads(spreads: Iterable[Counts | None]) -> Counts | None:
    """The histograms of several collectors as one."""
    known = [counts for counts in spreads if counts is not None]
    return sum(known[1:], start=known[0]) if known else None
