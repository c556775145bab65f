"""Contention: how long the processes of compared runs could have run while others had the cores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from offpolicy.analysis.runs import LabelledRuns

# Share of the wall above which times are not judged: that much waiting for a core makes a phase longer by up to 11 %,
# more than most changes are worth, and threads that wait for one another multiply it.
MAX_DESCHEDULED = 0.10
DESCHEDULED = {"learner": "cpu/learner_descheduled_pct", "collector": "cpu/collector_descheduled_pct"}


def descheduled(labelled: LabelledRuns) -> dict[str, float]:
    """Returns the share of the wall without a core, by side, of the run that had most of it; NaN if not recorded."""
    found = {side: [run.steady(key) for run in labelled.runs] for side, key in DESCHEDULED.items()}
    return {
        side: max((values.mean / 100.0 for values in runs if values.weight.sum() > 0.0), default=math.nan)
        for side, runs in found.items()
    }


def is_contended(labelled: LabelledRuns) -> bool:
    """True if a side of one of its runs was without a core for more than `MAX_DESCHEDULED` of the wall."""
    return any(share > MAX_DESCHEDULED for share in descheduled(labelled).values())


def contended_labels(compared: Sequence[LabelledRuns]) -> frozenset[str]:
    """Returns the labels whose times cannot be judged."""
    return frozenset(labelled.label for labelled in compared if is_contended(labelled))


def shares_text(labelled: LabelledRuns) -> str:
    """Returns the recorded shares of a label, such as `learner 87.1 %, collector 2.3 %`."""
    known = {side: share for side, share in descheduled(labelled).items() if not math.isnan(share)}
    return ", ".join(f"{side} {100.0 * share:.1f} %" for side, share in known.items())


def contention_notes(compared: Sequence[LabelledRuns]) -> Iterator[str]:
    """Yields a line for each label whose times are not judged, with its shares, and one on what to do."""
    labels = contended_labels(compared)
    for labelled in compared:
        if labelled.label in labels:
            yield f"busy: {labelled.label} was without a core for {shares_text(labelled)} of its wall"
    if labels:
        yield (
            f"no verdict on time where a side was without a core for more than {MAX_DESCHEDULED:.0%} of the wall: that"
            " alone may lengthen a phase by more than a change does. Run again on idle cores, or with fewer threads"
        )
