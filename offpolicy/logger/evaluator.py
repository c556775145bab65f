"""What a record says of the process that evaluates beside training."""

from __future__ import annotations

from offpolicy.timing.phases import EvaluatorPhase
from offpolicy.timing.rates import elapsed
from offpolicy.types import Snapshot

MS_PER_S = 1000.0


def evaluator_keys(previous: Snapshot | None, current: Snapshot) -> dict[str, float]:
    """The `evaluator/` keys and its share of a core; none where rank 0 evaluates.

    Phases are in ms per second of its wall, which they sum to: most of the time it has nothing to do, so a mean per
    evaluation, or per step, would have no value in most windows.
    """
    totals = current.evaluator
    if totals is None:
        return {}
    counters = {
        "evaluator/episodes": float(totals.episodes),
        "evaluator/skipped": float(totals.skipped),
        "evaluator/post_failures": float(totals.post_failures),
    }
    before = previous.evaluator if previous is not None else None
    window = elapsed(before.account if before is not None else None, totals.account)
    if window is None or window.wall_ns <= 0:
        return counters
    phases = {
        f"evaluator/{phase}_ms": MS_PER_S * window.phases_ns.get(phase, 0) / window.wall_ns for phase in EvaluatorPhase
    }
    return counters | phases | {"cpu/evaluator_pct": 100.0 * window.cpu_ns / window.total_ns}
