"""The keys of device, evaluator and cores of a window, from cumulative totals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from offpolicy.logger.record import RunHeader
from offpolicy.logger.timing_keys import Window, core_keys, device_keys, evaluator_keys
from offpolicy.timing.phases import CoreClass, EvaluatorPhase, LearnerPhase
from offpolicy.types import NO_COUNTERS, Account, CoreTotals, DeviceTotals, EvaluatorTotals, SchedulerStats, Snapshot
from tests.unit.logger.conftest import MakeSnapshot, record_between

MS = 1_000_000


def on_device(snapshot: Snapshot, updates: int, dropped: int) -> Snapshot:
    """Of 6.6 ms per iteration: 4 ms of train, 0.5 ms of exposed copies, 2 ms of hidden ones; 3 of 10 launch-bound."""
    spans_ns = updates * 4 * MS, updates * MS // 2, updates * 2 * MS, updates * MS // 4, updates * MS // 8
    totals = DeviceTotals(*spans_ns, iterations=updates, launch_bound=updates * 3 // 10, dropped=dropped)
    return replace(snapshot, learners=(replace(snapshot.learners[0], device=totals),))


@pytest.mark.promise("lanes-apart")
def test_times_are_means_of_the_window_per_iteration(make_snapshot: Any) -> None:
    before, now = on_device(make_snapshot(500), 500, dropped=7), on_device(make_snapshot(1000), 1000, dropped=9)
    assert device_keys(Window(before, now)) == {
        "device/train_ms": 4.0,
        "device/h2d_ms": 0.5,
        "device/h2d_hidden_ms": 2.0,
        "device/sample_ms": 0.25,
        "device/collect_ms": 0.125,
        "device/busy_share": pytest.approx(4.875 / 6.6),  # hidden copies run behind an update
        "device/launch_bound": pytest.approx(0.3),
        "device/dropped": 2,
    }


def totals(wall_ms: int, step_ms: int, episodes: int = 4) -> EvaluatorTotals:
    """It waits for requests but for `step_ms`; half of that is CPU time."""
    phases_ns = dict.fromkeys(map(str, EvaluatorPhase), 0)
    phases_ns |= {"env_step": step_ms * MS, "wait_request": (wall_ms - step_ms) * MS}
    return EvaluatorTotals(Account(wall_ms * MS, 100 * MS, 9, phases_ns, step_ms * MS // 2), episodes, 1)


def test_evaluator_phases_are_ms_per_second_of_its_wall(make_snapshot: MakeSnapshot) -> None:
    before = replace(make_snapshot(500), evaluator=totals(1000, 0))
    now = replace(make_snapshot(1000), evaluator=totals(3000, 500, episodes=6))
    keys = evaluator_keys(Window(before, now))
    assert (keys["evaluator/env_step_ms"], keys["evaluator/wait_request_ms"]) == (250.0, 750.0)
    assert sum(keys[f"evaluator/{phase}_ms"] for phase in EvaluatorPhase) == pytest.approx(1000.0)
    assert keys["cpu/evaluator_pct"] == 12.5
    first = evaluator_keys(Window(NO_COUNTERS, replace(before, evaluator=totals(1000, 550))))
    assert first["cpu/evaluator_pct"] == 25.0  # 275 ms of 1.1 s: its start is part of that time, not of its steady wall
    assert sum(first[f"evaluator/{phase}_ms"] for phase in EvaluatorPhase) == pytest.approx(1000.0)
    assert (keys["evaluator/episodes"], keys["evaluator/skipped"]) == (6, 1)


@pytest.mark.promise("lanes-apart")
def test_an_evaluator_adds_its_keys_and_changes_no_other(make_snapshot: MakeSnapshot, header: RunHeader) -> None:
    alone, beside = make_snapshot(1000), replace(make_snapshot(1000), evaluator=totals(3000, 500))
    records = [record_between(make_snapshot(500), now, header) for now in (alone, beside)]
    assert not [key for key in records[0] if "evaluator" in key]
    assert {key: value for key, value in records[1].items() if "evaluator" not in key} == records[0]


def cores(wall_ms: int, **classes_ms: int) -> CoreTotals:
    classes_ns = {str(row): classes_ms.get(row, 0) * MS for row in CoreClass}
    return CoreTotals(wall_ms * MS, sum(classes_ns.values()), classes_ns)


def test_the_classes_of_the_cores_are_ms_per_second_and_sum_to_the_capacity(make_snapshot: MakeSnapshot) -> None:
    before = replace(make_snapshot(500), cores=cores(1000, learner=900, idle=600))
    now = replace(make_snapshot(1000), cores=cores(3000, learner=2700, openmp=500, others=300, idle=1000))
    keys = core_keys(Window(before, now), 1)
    assert {key: value for key, value in keys.items() if value} == {
        "cores/learner_ms_per_s": 900.0, "cores/openmp_ms_per_s": 250.0, "cores/others_ms_per_s": 150.0,
        "cores/idle_ms_per_s": 200.0, "cores/capacity": 1.5, "perf/cpu_ms_per_env_step": 2300 / 500,
    }  # fmt: skip
    assert len(keys) == len(CoreClass) + 2
    assert core_keys(Window(before, now), 3)["perf/cpu_ms_per_env_step"] == 3 * 2300 / 500
    assert core_keys(Window(NO_COUNTERS, before), 1)["cores/learner_ms_per_s"] == 900.0


def test_cpu_time_is_a_share_of_all_time_with_the_warm_up(make_snapshot: MakeSnapshot, header: RunHeader) -> None:
    """One core was used for 2 of 4 seconds, wanted for 0.4 more, and taken away 8 times."""
    phases_ns = dict.fromkeys(map(str, LearnerPhase), 0) | {"train": 1000 * MS}
    account = Account(1000 * MS, 3000 * MS, 10, phases_ns, 2000 * MS, SchedulerStats(400 * MS, 8))
    now = make_snapshot(10)
    now = replace(now, learners=(replace(now.learners[0], account=account),), collectors=())
    keys = record_between(NO_COUNTERS, now, header)
    assert {key: value for key, value in keys.items() if key.startswith("cpu/")} == {
        "cpu/learner_pct": 50.0, "cpu/learner_descheduled_pct": 10.0, "cpu/learner_preemptions_per_sec": 2.0,
    }  # fmt: skip
