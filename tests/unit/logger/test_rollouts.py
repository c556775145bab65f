"""What a record says of rollouts: how old their weights were, how many were lost, how long one took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from offpolicy.logger.record import EpisodeWindow, RunHeader, build_record
from offpolicy.logger.rollouts import policy_lag, rollout_ms, staleness_keys
from offpolicy.types import NUM_LAGS, Account, CollectorTotals, LearnerTotals, MetricTotals, RolloutTotals, Snapshot

NO_METRICS = MetricTotals((), np.zeros(0), np.zeros(0))
P95 = "perf/policy_lag_p95"


def rank(lags: Mapping[int, int], too_old: int = 0) -> LearnerTotals:
    """A rank that learnt from that many rollouts of each lag."""
    histogram = np.zeros(NUM_LAGS)
    for lag, count in lags.items():
        histogram[lag] = count
    return LearnerTotals(None, 0, 0, 0.0, NO_METRICS, rollouts=RolloutTotals(too_old, histogram))


def collector(rollouts: int = 0, dropped: int = 0, wall_ms: int | None = None) -> CollectorTotals:
    account = None if wall_ms is None else Account(wall_ms * 10**6, 0, 1, {"env_step": wall_ms * 10**6}, 0)
    return CollectorTotals(account, 0, 100, 7.0, 10, rollouts, dropped)


def snapshot(*ranks: LearnerTotals, collectors: tuple[CollectorTotals, ...] = ()) -> Snapshot:
    return Snapshot(1.0, 0, 0, ranks, collectors, 0, 1, None)


NO_ROLLOUTS = LearnerTotals(None, 0, 0, 0.0, NO_METRICS)


def test_the_policy_lag_is_the_mean_over_the_rollouts_learnt_from() -> None:
    assert policy_lag(None, snapshot(rank({0: 6, 1: 3, 5: 1}))) == 0.8


def test_the_lags_of_all_ranks_count() -> None:
    now = snapshot(rank({0: 3}), rank({4: 1}))
    assert (policy_lag(None, now), staleness_keys(None, now)[P95]) == (1.0, 4.0)


def test_the_policy_lag_is_that_of_the_window_not_since_the_start() -> None:
    before, now = snapshot(rank({9: 50})), snapshot(rank({9: 50, 1: 1, 2: 1}))
    assert (policy_lag(before, now), staleness_keys(before, now)[P95]) == (1.5, 2.0)


def test_ninety_five_percent_of_the_rollouts_were_at_most_as_old_as_the_p95() -> None:
    assert staleness_keys(None, snapshot(rank({0: 95, 7: 5})))[P95] == 0.0
    assert staleness_keys(None, snapshot(rank({0: 94, 3: 1, 7: 5})))[P95] == 3.0
    assert staleness_keys(None, snapshot(rank({0: 94, 7: 6})))[P95] == 7.0


def test_a_window_without_a_rollout_has_no_lag() -> None:
    same = snapshot(rank({2: 5}))
    assert (policy_lag(same, same), staleness_keys(same, same)[P95]) == (None, None)


def test_rollouts_lost_in_the_window_are_counted_over_all_collectors_and_ranks() -> None:
    before = snapshot(rank({}, too_old=1), rank({}), collectors=(collector(dropped=4), collector()))
    now = snapshot(rank({}, too_old=3), rank({}, too_old=5), collectors=(collector(dropped=5), collector(dropped=2)))
    keys = staleness_keys(before, now)
    assert (keys["perf/rollouts_dropped"], keys["perf/rollouts_too_old"]) == (3, 7)


def test_a_rollout_lasts_as_long_as_its_collector_ran_divided_by_its_rollouts() -> None:
    before = snapshot(rank({}), collectors=(collector(1, wall_ms=100), collector(1, wall_ms=100)))
    now = snapshot(rank({}), collectors=(collector(3, wall_ms=300), collector(5, wall_ms=500)))
    assert rollout_ms(before, now) == 100.0
    assert rollout_ms(now, now) is None


def test_without_rollouts_the_lag_is_per_vector_step_and_nothing_else_is_told() -> None:
    now = snapshot(NO_ROLLOUTS, collectors=(collector(),))
    assert (policy_lag(None, now), staleness_keys(None, now), rollout_ms(None, now)) == (0.7, {}, 0.0)


def test_a_record_of_a_replay_holds_no_key_of_rollouts_but_the_zero_duration(
    make_snapshot: Any, header: RunHeader
) -> None:
    record = build_record(make_snapshot(500), make_snapshot(1000), EpisodeWindow(), None, header)
    assert [key for key in record if "rollouts_" in key or key == P95] == []
    assert record["timing/collector_rollout_ms"] == 0.0
