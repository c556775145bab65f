"""The device's keys of a window, from cumulative totals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from offpolicy.logger.device import device_keys
from offpolicy.types import DeviceTotals, Snapshot

MS = 1_000_000


def on_device(snapshot: Snapshot, updates: int, dropped: int = 0) -> Snapshot:
    """Of 6.6 ms per iteration: 4 ms of train, 0.5 ms of exposed copies, 2 ms of hidden ones; 3 of 10 launch-bound."""
    totals = DeviceTotals(updates * 4 * MS, updates * MS // 2, updates * 2 * MS, 0, updates, updates * 3 // 10, dropped)
    return dataclasses.replace(snapshot, learners=(dataclasses.replace(snapshot.learners[0], device=totals),))


def test_times_are_means_of_the_window_per_iteration(make_snapshot: Any) -> None:
    keys = device_keys(on_device(make_snapshot(500), 500, dropped=7), on_device(make_snapshot(1000), 1000, dropped=9))
    assert keys == {
        "device/train_ms": 4.0,
        "device/h2d_ms": 0.5,
        "device/h2d_hidden_ms": 2.0,
        "device/inference_ms": 0.0,
        "device/busy_share": pytest.approx(4.5 / 6.6),  # hidden copies run behind an update
        "device/launch_bound": pytest.approx(0.3),
        "device/dropped": 2,
    }


def test_the_first_window_begins_at_nothing(make_snapshot: Any) -> None:
    for previous in (None, make_snapshot(0)):
        assert device_keys(previous, on_device(make_snapshot(100), 100))["device/train_ms"] == 4.0


def test_without_a_lane_there_are_no_keys(make_snapshot: Any) -> None:
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
