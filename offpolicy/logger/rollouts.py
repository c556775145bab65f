"""How old the policy was that acted: in rollouts, as the learner took them; else at every vector step."""

from __future__ import annotations

import numpy as np

from offpolicy.timing.rates import NS_PER_MS, collector_windows, policy_steps
from offpolicy.types import NUM_LAGS, Float64, Snapshot

TAIL = 0.95


def policy_lag(previous: Snapshot | None, current: Snapshot) -> float | None:
    """Mean number of versions that the acting weights were behind; None where the window holds no step."""
    if has_rollouts(current):
        lags = _lags(current) - _lags(previous)
        return float(lags @ np.arange(NUM_LAGS) / lags.sum()) if lags.any() else None
    before = previous.collectors if previous is not None else ()
    steps = policy_steps(current) - (policy_steps(previous) if previous is not None else 0)
    lag = sum(c.policy_lag_sum for c in current.collectors) - sum(c.policy_lag_sum for c in before)
    return lag / steps if steps > 0 else None


def staleness_keys(previous: Snapshot | None, current: Snapshot) -> dict[str, float | str | None]:
    """What became of the rollouts of the window; nothing where there are none."""
    if not has_rollouts(current):
        return {}
    lags = _lags(current) - _lags(previous)
    share = np.cumsum(lags) / lags.sum() if lags.any() else None
    return {
        "perf/policy_lag_p95": None if share is None else float(np.searchsorted(share, TAIL)),
        "perf/rollouts_dropped": _dropped(current) - _dropped(previous),
        "perf/rollouts_too_old": _too_old(current) - _too_old(previous),
    }


def rollout_ms(previous: Snapshot | None, current: Snapshot) -> float | None:
    """Mean wall of a rollout over all collectors; 0 where the algorithm has none, None where none was finished."""
    if not has_rollouts(current):
        return 0.0
    wall_ns = sum(window.elapsed.wall_ns for window in collector_windows(previous, current) if window.elapsed)
    rollouts = _finished(current) - _finished(previous)
    return wall_ns / rollouts / NS_PER_MS if rollouts > 0 else None


def has_rollouts(snapshot: Snapshot) -> bool:
    """Whether the learner learns from rollouts."""
    return any(rank.rollouts is not None for rank in snapshot.learners)


def _lags(snapshot: Snapshot | None) -> Float64:
    total = np.zeros(NUM_LAGS)
    for rank in snapshot.learners if snapshot is not None else ():
        if rank.rollouts is not None:
            total += rank.rollouts.lags
    return total


def _too_old(snapshot: Snapshot | None) -> int:
    ranks = snapshot.learners if snapshot is not None else ()
    return sum(rank.rollouts.too_old for rank in ranks if rank.rollouts is not None)


def _dropped(snapshot: Snapshot | None) -> int:
    return sum(totals.rollouts_dropped for totals in snapshot.collectors) if snapshot is not None else 0


def _finished(snapshot: Snapshot | None) -> int:
    return sum(totals.rollouts for totals in snapshot.collectors) if snapshot is not None else 0
