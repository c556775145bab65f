"""Records of scripted snapshots: golden keys, rates, learning curves, rollouts, operations per second."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.config.schedules import Ramp
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.timing_keys import Window, all_calls, link_keys, link_series
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.types import (
    NO_ACCOUNT,
    NO_COUNTERS,
    NUM_LAGS,
    Account,
    CollectorTotals,
    LearnerTotals,
    LinkTotals,
    MetricTotals,
    RolloutTotals,
    Snapshot,
)
from tests.unit.logger.conftest import record_between, verdict_of

GOLDEN = Path(__file__).with_name("golden_record.json")
TIMED = ("timing/", "share/", "cpu/", "perf/bottleneck", "perf/iter", "rank/", "prefetch/")


@pytest.mark.promise("metric-names", "learning-curve-names")
def test_a_full_record_equals_the_golden_file(record: Record) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert record.keys() == golden.keys()
    numbers = {key: value for key, value in golden.items() if not isinstance(value, str)}
    assert {key: value for key, value in record.items() if key in numbers} == pytest.approx(numbers, rel=1e-12)
    assert {key: record[key] for key in golden if key not in numbers} == {
        key: value for key, value in golden.items() if key not in numbers
    }


@pytest.mark.promise("account-closes")
def test_the_phases_of_each_side_sum_to_its_wall(record: Record) -> None:
    for side, phases, wall in (("learner", LearnerPhase, "iter"), ("collector", CollectorPhase, "collector_cycle")):
        ms = sum(record[f"timing/{side}_{phase}_ms"] for phase in phases)  # type: ignore[misc]  # numbers
        percent = sum(record[f"share/{side}_{phase}_pct"] for phase in phases)  # type: ignore[misc]
        assert (ms, percent) == pytest.approx((record[f"perf/{wall}_ms"], 100.0), rel=1e-12)
    assert record["share/learner_train_pct"] == pytest.approx(100.0 * 6.1 / 6.6)


@pytest.mark.promise("rates-from-counters")
def test_means_are_of_the_window_not_since_the_start(make_snapshot: Any, header: RunHeader) -> None:
    early, late = make_snapshot(100), make_snapshot(200)
    late.learners[0].metrics.sums[0] = early.learners[0].metrics.sums[0] + 100 * 7.0
    record = record_between(early, late, header)
    assert record["train/actor_loss"] == pytest.approx(7.0)


@pytest.mark.promise("rates-from-counters")
def test_with_timing_off_no_timing_key_is_there_and_the_counters_rates_stay(
    make_snapshot: Any, header: RunHeader
) -> None:
    before, after = make_snapshot(500, is_timed=False), make_snapshot(1000, is_timed=False)
    record = record_between(before, after, header)
    assert not [key for key in record if key.startswith(TIMED)]
    assert record["perf/steps_per_sec"] == pytest.approx(500 / 3.3)
    assert record["perf/utd"] == pytest.approx(1.0)


def test_a_record_holds_neither_nan_nor_none(make_snapshot: Any, header: RunHeader) -> None:
    snapshot = make_snapshot(1000)
    snapshot.learners[0].metrics.sums[0] = np.nan
    record = record_between(NO_COUNTERS, snapshot, header)
    assert "train/actor_loss" not in record
    assert None not in record.values()
    json.dumps(record, allow_nan=False)


def longer(account: Account, phase: str, seconds: int) -> Account:
    extra_ns = seconds * 1_000_000_000
    phases_ns = {**account.phases_ns, phase: account.phases_ns[phase] + extra_ns}
    return dataclasses.replace(account, wall_ns=account.wall_ns + extra_ns, phases_ns=phases_ns)


def test_the_bottleneck_of_a_window_of_evaluation_is_the_evaluation(make_snapshot: Any, header: RunHeader) -> None:
    before = make_snapshot(500)
    learner, collector = before.learners[0], before.collectors[0]
    after = dataclasses.replace(
        before,
        learners=(dataclasses.replace(learner, account=longer(learner.account, "evaluation", 3)),),
        collectors=(dataclasses.replace(collector, account=longer(collector.account, "learner_wait", 3)),),
    )
    assert verdict_of(before, after, header) is None  # no update, no verdict on learning
    updated = dataclasses.replace(after, learners=(dataclasses.replace(after.learners[0], updates=501),))
    verdict = verdict_of(before, updated, header)
    assert verdict is not None
    assert verdict.label == "learner(evaluation 100%)"
    assert "perf/steps_per_sec" not in record_between(before, after, header)


def test_without_a_report_of_one_side_there_is_no_verdict(make_snapshot: Any, header: RunHeader) -> None:
    before, after = make_snapshot(500), make_snapshot(600)
    silent = dataclasses.replace(after, collectors=before.collectors)
    assert verdict_of(before, silent, header) is None
    record = record_between(before, silent, header)
    assert "perf/bottleneck" not in record
    assert record["perf/iter_ms"] == pytest.approx(6.6)


def test_schedules_are_recorded_at_their_current_value(make_snapshot: Any, header: RunHeader) -> None:
    ramps = {
        "actor_lr": Ramp(start=1e-3, end=0.0, over=4000, begin=1000),
        "exploration_noise": Ramp(start=0.3, end=0.1, over=10, begin=0),
        "lr": Ramp(start=1.0, end=0.0, over=1),
    }
    record = record_between(NO_COUNTERS, make_snapshot(1000), dataclasses.replace(header, ramps=ramps))
    recorded = {key: record.get(f"train/{key}") for key in (*ramps, "critic_lr")}
    assert recorded == {"actor_lr": 7.5e-4, "exploration_noise": 0.1, "lr": None, "critic_lr": None}


NO_METRICS = MetricTotals((), np.zeros(0), np.zeros(0))


def snapshot_of(ranks: Sequence[LearnerTotals], collectors: Sequence[CollectorTotals] = ()) -> Snapshot:
    return Snapshot(1.0, 0, 0, tuple(ranks), tuple(collectors), 0, 1, None)


def mean_of(*totals: MetricTotals, before: tuple[MetricTotals, ...] = ()) -> Callable[[str], Any]:
    """Returns the means of the metrics of ranks by name."""
    readings = [
        snapshot_of([LearnerTotals(NO_ACCOUNT, 0, 0, 0.0, each) for each in ranks]) for ranks in (before, totals)
    ]
    header = RunHeader(algo="sac", env_id="", seed=0, mode="alternate", total_timesteps=1)
    record = record_between(*readings, header)
    return lambda name: record.get(f"train/{name}")


def critic(total: float, count: float) -> MetricTotals:
    return MetricTotals(("critic_loss",), np.array([total]), np.array([count]))


def test_the_mean_over_ranks_weighs_each_by_its_count_and_leaves_out_what_is_not_known() -> None:
    after = MetricTotals(("actor_loss", "critic_loss"), np.array([3.0, 16.0]), np.array([1.0, 8.0]))
    joined = mean_of(after, before=(critic(10.0, 5.0),))  # by name: a new metric has appeared
    assert (joined("actor_loss"), joined("critic_loss")) == (3.0, 2.0)
    assert mean_of(critic(1.0, 10.0), critic(0.7, 1.0), critic(0.0, 0.0))("critic_loss") == pytest.approx(1.7 / 11)
    for bad in (np.nan, np.inf):
        assert mean_of(critic(6.0, 3.0), critic(bad, 3.0))("critic_loss") == 2.0
        assert mean_of(critic(bad, 3.0))("critic_loss") is None


def with_rollouts(lags: Mapping[int, int], rollouts: int, lost: int) -> Snapshot:
    """Two ranks and two collectors, each with so many rollouts, of 100 ms, and so many lost on either side."""
    histogram = np.zeros(NUM_LAGS)
    histogram[list(lags)] = list(lags.values())
    account = Account(rollouts * 10**8, 0, rollouts, {"env_step": rollouts * 10**8}, 0)
    rank = LearnerTotals(NO_ACCOUNT, 0, 0, 0.0, NO_METRICS, rollouts=RolloutTotals(lost, histogram))
    return snapshot_of([rank] * 2, [CollectorTotals(account, 0, 100, 7.0, 10, rollouts, lost)] * 2)


@pytest.mark.parametrize(
    ("lags", "mean", "p95"),
    [({0: 6, 1: 3, 5: 1}, 0.8, 5.0), ({0: 95, 7: 5}, 0.35, 0.0), ({0: 94, 3: 1, 7: 5}, 0.38, 3.0)],
)
def test_rollouts_are_counted_timed_and_aged_over_all_ranks_and_collectors(
    header: RunHeader, lags: Mapping[int, int], mean: float, p95: float
) -> None:
    appo = dataclasses.replace(header, algo="appo", mode="free")
    before, now = with_rollouts({9: 50}, 1, 1), with_rollouts({9: 50, **lags}, 3, 4)
    record = record_between(before, now, appo)
    assert (record["perf/policy_lag"], record["perf/policy_lag_p95"]) == (pytest.approx(mean), p95)
    assert (record["perf/rollouts_dropped"], record["perf/rollouts_too_old"]) == (8, 8)
    assert record["timing/collector_rollout_ms"] == 100.0


def test_without_rollouts_the_lag_is_per_vector_step(header: RunHeader) -> None:
    record = record_between(NO_COUNTERS, with_rollouts({}, 0, 0), header)
    assert record["perf/policy_lag"] == 0.7
    assert "perf/policy_lag_p95" not in record


MS = 1_000_000
NUM_ITERATIONS = 40


def account(**mean_ms: int) -> Account:
    phases_ns = {phase: NUM_ITERATIONS * ms * MS for phase, ms in mean_ms.items()}
    return Account(sum(phases_ns.values()), 0, NUM_ITERATIONS, phases_ns, 0)


@pytest.mark.parametrize("num_collectors", [1, 3])
@pytest.mark.parametrize("wait_ms", [0, 500])
def test_flops_and_the_share_of_env_steps_are_of_active_time(
    header: RunHeader, num_collectors: int, wait_ms: int
) -> None:
    """A decision is made for every environment, even those just reset."""
    rank = LearnerTotals(account(collector_wait=wait_ms, train=20), NUM_ITERATIONS, 0, 0.0, NO_METRICS)
    steps = account(learner_wait=wait_ms, action_select=2, env_step=6)
    collector = CollectorTotals(steps, 7 * NUM_ITERATIONS - 4, NUM_ITERATIONS, 0.0, NUM_ITERATIONS)
    counted = dataclasses.replace(
        header, flops_per_update=3e6, attainable_flops_per_sec=6e8, flops_per_decision=900.0, num_envs=7
    )
    record = record_between(NO_COUNTERS, snapshot_of([rank], [collector] * num_collectors), counted)
    assert record["perf/flops_per_sec"] == pytest.approx(3e6 / 0.020, rel=1e-12)
    assert record["perf/flops_of_attainable"] == pytest.approx(0.25, rel=1e-12)
    assert record["perf/collector_flops_per_sec"] == pytest.approx(7 * 900.0 / 0.002, rel=1e-12)
    assert record["perf/env_step_share"] == 0.75


def test_the_costs_of_remote_calls_are_means_per_call_over_all_collectors() -> None:
    def at(wall_s: float, *calls: int) -> Snapshot:
        ns = 10**6
        costs = [LinkTotals(*(k * each * ns for k in range(1, 7)), each, 500 * each, 20 * each, each) for each in calls]
        collectors = [CollectorTotals(NO_ACCOUNT, 0, 0, 0.0, 0, link=each) for each in costs]
        return dataclasses.replace(snapshot_of([], collectors), wall_s=wall_s)

    window = Window(at(1.0, 4, 8), at(3.0, 8, 12))
    assert all_calls(window).calls == 8
    names = ("queued", "remote_busy", "serialise", "transfer", "overhead", "copy")
    means = {f"{name}_ms": number for number, name in enumerate(names, 1)} | {"lag_rows": 20, "lag_versions": 1}
    assert link_keys(all_calls(window), window.wall_s) == means | {"calls_per_sec": 4, "bytes_per_sec": 2000}
    assert link_series(window)["link/1/calls_per_sec"] == 2
    assert link_keys(all_calls(Window(at(1.0, 4), at(2.0, 4))), 1.0) == {}


def test_samples_per_sec_are_those_of_all_ranks_each_on_its_own_clock(make_snapshot: Any, header: RunHeader) -> None:
    before, after = make_snapshot(100), make_snapshot(200)
    before = dataclasses.replace(before, learners=before.learners * 2)
    after = dataclasses.replace(after, learners=after.learners * 2, wall_s=99.0)  # the supervisor's clock is another
    record = record_between(before, after, header)
    assert record["perf/samples_per_sec"] == pytest.approx(2 * 256 / 6.6e-3)
    assert "perf/samples_per_sec" not in record_between(after, after, header)


def test_the_samples_of_the_warm_up_are_in_no_rate(make_snapshot: Any, header: RunHeader) -> None:
    after = make_snapshot(200)
    warm = dataclasses.replace(after.learners[0], warmup_updates=50)
    record = record_between(NO_COUNTERS, dataclasses.replace(after, learners=(warm,)), header)
    whole = record_between(NO_COUNTERS, after, header)["perf/samples_per_sec"]
    assert record["perf/samples_per_sec"] == pytest.approx(0.75 * whole)  # type: ignore[operator]  # numbers


def test_restarts_are_in_the_record_from_the_first_one_on(make_snapshot: Any, header: RunHeader) -> None:
    restarted = dataclasses.replace(make_snapshot(1000), restarts=2, learner_restarts=1)
    records = [record_between(NO_COUNTERS, now, header) for now in (make_snapshot(1000), restarted)]
    assert [(each.get("collect/restarts"), each.get("train/restarts")) for each in records] == [(None, None), (2, 1)]
