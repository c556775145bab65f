"""The keys of the device and of the evaluator of a window, from cumulative totals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from offpolicy.logger.record import EpisodeWindow, RunHeader, build_record
from offpolicy.logger.timing_keys import device_keys, device_rank_keys, evaluator_keys
from offpolicy.timing.phases import EvaluatorPhase
from offpolicy.types import Account, DeviceTotals, EvaluatorTotals, LearnerTotals, Snapshot

MakeSnapshot = Callable[..., Snapshot]
MS = 1_000_000


def on_device(snapshot: Snapshot, updates: int, dropped: int = 0) -> Snapshot:
    """Of 6.6 ms per iteration: 4 ms of train, 0.5 ms of exposed copies, 2 ms of hidden ones; 3 of 10 launch-bound."""
    return dataclasses.replace(snapshot, learners=(rank_on_device(snapshot.learners[0], updates, 4.0, dropped),))


def rank_on_device(rank: LearnerTotals, updates: int, train_ms: float, dropped: int = 0) -> LearnerTotals:
    spans_ns = round(updates * train_ms * MS), updates * MS // 2, updates * 2 * MS, 0, updates * MS // 4
    totals = DeviceTotals(*spans_ns, iterations=updates, launch_bound=updates * 3 // 10, dropped=dropped)
    return dataclasses.replace(rank, device=totals)


def test_times_are_means_of_the_window_per_iteration(make_snapshot: Any) -> None:
    keys = device_keys(on_device(make_snapshot(500), 500, dropped=7), on_device(make_snapshot(1000), 1000, dropped=9))
    assert keys == {
        "device/train_ms": 4.0,
        "device/h2d_ms": 0.5,
        "device/h2d_hidden_ms": 2.0,
        "device/sample_ms": 0.25,
        "device/inference_ms": 0.0,
        "device/busy_share": pytest.approx(4.75 / 6.6),  # hidden copies run behind an update
        "device/launch_bound": pytest.approx(0.3),
        "device/dropped": 2,
    }


def test_the_first_window_starts_at_zero(make_snapshot: Any) -> None:
    for previous in (None, make_snapshot(0)):
        assert device_keys(previous, on_device(make_snapshot(100), 100))["device/train_ms"] == 4.0


def test_the_rank_with_the_slow_device_is_named(make_snapshot: Any) -> None:
    def of_ranks(updates: int, *train_ms: float) -> Snapshot:
        snapshot = make_snapshot(updates)
        ranks = tuple(rank_on_device(snapshot.learners[0], updates, ms) for ms in train_ms)
        return dataclasses.replace(snapshot, learners=ranks)

    assert device_rank_keys(of_ranks(500, 4.0, 4.0, 4.0), of_ranks(1000, 4.0, 4.0, 7.0)) == {
        "rank/device_train_min_ms": 4.0,
        "rank/device_train_mean_ms": 6.0,
        "rank/device_train_max_ms": 10.0,
        "rank/device_slowest": 2,
    }
    assert device_rank_keys(None, of_ranks(500, 4.0)) == {}  # `device/` holds the only one
    snapshot = make_snapshot(500)
    assert device_rank_keys(None, dataclasses.replace(snapshot, learners=snapshot.learners * 2)) == {}


def test_without_a_device_timer_there_are_no_keys(make_snapshot: Any) -> None:
    assert device_keys(make_snapshot(500), make_snapshot(1000)) == {}
    assert device_keys(None, dataclasses.replace(make_snapshot(0), learners=())) == {}


def test_a_window_without_an_iteration_has_no_keys(make_snapshot: Any) -> None:
    before = on_device(make_snapshot(500), 500)
    learner = before.learners[0]
    assert learner.account is not None
    later = dataclasses.replace(
        learner, account=dataclasses.replace(learner.account, wall_ns=10 * learner.account.wall_ns)
    )
    assert device_keys(before, dataclasses.replace(before, learners=(later,))) == {}


def totals(wall_ms: int, step_ms: int, episodes: int = 4) -> EvaluatorTotals:
    """It waits for requests but for `step_ms`; half of that is CPU time."""
    phases_ns = dict.fromkeys(map(str, EvaluatorPhase), 0)
    phases_ns |= {"env_step": step_ms * MS, "wait_request": (wall_ms - step_ms) * MS}
    return EvaluatorTotals(Account(wall_ms * MS, 100 * MS, 9, phases_ns, step_ms * MS // 2), episodes, 1, 2)


def test_evaluator_phases_are_ms_per_second_of_its_wall(make_snapshot: MakeSnapshot) -> None:
    before = replace(make_snapshot(500), evaluator=totals(1000, 0))
    now = replace(make_snapshot(1000), evaluator=totals(3000, 500, episodes=6))
    keys = evaluator_keys(before, now)
    assert (keys["evaluator/env_step_ms"], keys["evaluator/wait_request_ms"]) == (250.0, 750.0)
    assert sum(keys[f"evaluator/{phase}_ms"] for phase in EvaluatorPhase) == pytest.approx(1000.0)
    assert keys["cpu/evaluator_pct"] == 12.5
    first = evaluator_keys(None, before)  # its warm-up is no part of its steady wall
    assert sum(first[f"evaluator/{phase}_ms"] for phase in EvaluatorPhase) == pytest.approx(1000.0)
    assert (keys["evaluator/episodes"], keys["evaluator/skipped"], keys["evaluator/post_failures"]) == (6, 1, 2)


def test_where_rank_0_evaluates_there_are_no_evaluator_keys(make_snapshot: MakeSnapshot, header: RunHeader) -> None:
    assert evaluator_keys(make_snapshot(500), make_snapshot(1000)) == {}
    record = build_record(make_snapshot(500), make_snapshot(1000), EpisodeWindow(), None, header)
    assert not [key for key in record if "evaluator" in key]


def test_without_timing_there_are_only_the_counters_of_the_evaluator(make_snapshot: MakeSnapshot) -> None:
    untimed = replace(make_snapshot(1000), evaluator=EvaluatorTotals(None, 6, 0, 0))
    assert set(evaluator_keys(None, untimed)) == {
        f"evaluator/{name}" for name in ("episodes", "skipped", "post_failures")
    }


def test_an_evaluator_does_not_change_the_other_keys(make_snapshot: MakeSnapshot, header: RunHeader) -> None:
    alone, beside = make_snapshot(1000), replace(make_snapshot(1000), evaluator=totals(3000, 500))
    records = [build_record(make_snapshot(500), now, EpisodeWindow(), None, header) for now in (alone, beside)]
    assert {key: value for key, value in records[1].items() if "evaluator" not in key} == records[0]
