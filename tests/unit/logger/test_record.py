from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.config.schedules import Ramp
from offpolicy.logger.record import EpisodeWindow, Record, RunHeader, build_record, judge_window, metric_means
from offpolicy.timing.bottleneck import Bottleneck, Verdict
from offpolicy.timing.phases import LEARNER_PERIODIC, LEARNER_WAITS, CollectorPhase, LearnerPhase
from offpolicy.timing.rates import compute_rates
from offpolicy.types import Account, EpisodeRecord, MetricTotals, Snapshot

GOLDEN = Path(__file__).with_name("golden_record.json")
NO_EPISODES = EpisodeWindow()
TIMED = ("timing/", "cpu/", "perf/bottleneck", "perf/iter", "rank/", "prefetch/")


def test_a_full_record_equals_the_golden_file(record: Record) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert list(record) == list(golden)
    numbers = {key: value for key, value in golden.items() if not isinstance(value, str)}
    assert {key: value for key, value in record.items() if key in numbers} == pytest.approx(numbers, rel=1e-12)
    assert {key: record[key] for key in golden if key not in numbers} == {
        key: value for key, value in golden.items() if key not in numbers
    }


def test_the_phases_of_each_side_sum_to_its_wall(record: Record) -> None:
    learner = sum(record[f"timing/learner_{phase}_ms"] for phase in LearnerPhase)  # type: ignore[misc]  # numbers
    collector = sum(record[f"timing/collector_{phase}_ms"] for phase in CollectorPhase)  # type: ignore[misc]
    assert learner == pytest.approx(record["perf/iter_ms"], rel=1e-12)
    assert collector == pytest.approx(record["perf/collector_cycle_ms"], rel=1e-12)


def test_a_phase_that_never_opened_is_zero_not_absent(record: Record) -> None:
    assert record["timing/learner_rank_barrier_ms"] == 0.0


def test_means_are_of_the_window_not_since_the_start(make_snapshot: Any, header: RunHeader) -> None:
    early, late = make_snapshot(100), make_snapshot(200)
    late.learners[0].metrics.sums[0] = early.learners[0].metrics.sums[0] + 100 * 7.0
    record = build_record(early, late, NO_EPISODES, None, header)
    assert record["train/actor_loss"] == pytest.approx(7.0)


def test_with_timing_off_no_timing_key_is_there_and_the_counters_rates_stay(
    make_snapshot: Any, header: RunHeader
) -> None:
    before, after = make_snapshot(500, is_timed=False), make_snapshot(1000, is_timed=False)
    record = build_record(before, after, NO_EPISODES, None, header)
    assert not [key for key in record if key.startswith(TIMED)]
    assert record["perf/steps_per_sec"] == pytest.approx(500 / 3.3)
    assert record["perf/utd"] == pytest.approx(1.0)


def test_operations_per_second_are_those_of_the_active_time(make_snapshot: Any, header: RunHeader) -> None:
    counted = dataclasses.replace(header, flops_per_update=3e6)
    record = build_record(make_snapshot(500), make_snapshot(1000), NO_EPISODES, None, counted)
    waits = sum(record[f"timing/learner_{phase}_ms"] for phase in (*LEARNER_WAITS, *LEARNER_PERIODIC))
    active_s = (record["perf/iter_ms"] - waits) / 1000.0
    assert waits > 0.0
    assert record["perf/flops_per_sec"] == pytest.approx(3e6 / active_s)
    assert "perf/flops_per_sec" not in build_record(make_snapshot(500), make_snapshot(1000), NO_EPISODES, None, header)


def test_a_record_holds_neither_nan_nor_none(make_snapshot: Any, header: RunHeader) -> None:
    snapshot = make_snapshot(1000)
    snapshot.learners[0].metrics.sums[0] = np.nan
    record = build_record(None, snapshot, NO_EPISODES, None, header)
    assert "train/actor_loss" not in record
    assert None not in record.values()
    json.dumps(record, allow_nan=False)


def verdict_of(before: Snapshot | None, after: Snapshot, header: RunHeader) -> Verdict | None:
    return judge_window(before, after, compute_rates(before, after, header.mode), header.mode)


def test_before_the_first_update_the_bottleneck_is_warming_up(make_snapshot: Any, header: RunHeader) -> None:
    verdict = verdict_of(None, make_snapshot(0), header)
    assert verdict is not None
    assert verdict.bottleneck == Bottleneck.WARMING_UP


def test_rates_are_of_all_hosts(make_snapshot: Any, header: RunHeader) -> None:
    three = dataclasses.replace(header, num_hosts=3)
    record = build_record(make_snapshot(500), make_snapshot(1000), NO_EPISODES, None, three)
    assert record["perf/steps_per_sec"] == pytest.approx(3 * 1000 / 6.6)
    assert record["time/eta_s"] == pytest.approx(18_000 * 6.6 / 3000)


def longer(account: Account, phase: str, seconds: int) -> Account:
    extra_ns = seconds * 1_000_000_000
    phases_ns = {**account.phases_ns, phase: account.phases_ns[phase] + extra_ns}
    return dataclasses.replace(account, wall_ns=account.wall_ns + extra_ns, phases_ns=phases_ns)


def test_a_window_of_one_long_evaluation_blames_the_evaluation(make_snapshot: Any, header: RunHeader) -> None:
    before = make_snapshot(500)
    learner, collector = before.learners[0], before.collectors[0]
    after = dataclasses.replace(
        before,
        learners=(dataclasses.replace(learner, account=longer(learner.account, "evaluation", 3)),),
        collectors=(dataclasses.replace(collector, account=longer(collector.account, "learner_wait", 3)),),
    )
    verdict = verdict_of(before, after, header)
    assert verdict is not None
    assert verdict.label == "learner(evaluation 100%)"
    assert "perf/steps_per_sec" not in build_record(before, after, NO_EPISODES, None, header)


def test_without_a_report_of_one_side_nobody_is_blamed(make_snapshot: Any, header: RunHeader) -> None:
    before, after = make_snapshot(500), make_snapshot(600)
    silent = dataclasses.replace(after, collectors=before.collectors)
    assert verdict_of(before, silent, header) is None
    record = build_record(before, silent, NO_EPISODES, None, header)
    assert "perf/bottleneck" not in record
    assert record["perf/iter_ms"] == pytest.approx(6.6)


def test_only_the_last_hundred_episodes_count() -> None:
    window = EpisodeWindow()
    for index in range(150):
        window.add(EpisodeRecord(index, 0, float(index), 1, True, False, float("nan")))
    assert (window.finished, len(window.recent), window.recent[0].ep_return) == (150, 100, 50.0)


def test_success_rate_ignores_episodes_that_do_not_tell(record: Record) -> None:
    assert record["rollout/success_rate"] == 1.0
    assert record["rollout/ep_rew_mean"] == -750.0


def test_metrics_are_joined_by_name_when_new_ones_appear() -> None:
    before = MetricTotals(("critic_loss",), np.array([10.0]), np.array([5.0]))
    after = MetricTotals(("actor_loss", "critic_loss"), np.array([3.0, 16.0]), np.array([1.0, 8.0]))
    assert metric_means([before], [after]) == {"actor_loss": 3.0, "critic_loss": 2.0}


def test_a_metric_that_was_not_counted_in_the_window_is_unknown() -> None:
    totals = MetricTotals(("actor_loss",), np.array([10.0]), np.array([5.0]))
    assert metric_means([totals], [totals]) == {"actor_loss": None}


def of_rank(total: float, count: float) -> MetricTotals:
    return MetricTotals(("critic_loss",), np.array([total]), np.array([count]))


def test_the_mean_over_ranks_weighs_each_by_its_count() -> None:
    ranks = [of_rank(0.1 * 10, 10.0), of_rank(0.7 * 1, 1.0), of_rank(0.0, 0.0)]
    assert metric_means([], ranks) == {"critic_loss": (0.1 * 10 + 0.7) / 11}
    mean_of_means = (0.1 + 0.7) / 2  # the negative control: what an unweighted mean would say
    assert metric_means([], ranks)["critic_loss"] != pytest.approx(mean_of_means, rel=0.1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_one_rank_does_not_know_is_not_spread_to_the_others(bad: float) -> None:
    assert metric_means([], [of_rank(6.0, 3.0), of_rank(bad, 3.0)]) == {"critic_loss": 2.0}
    assert metric_means([], [of_rank(bad, 3.0)]) == {"critic_loss": None}


def test_the_totals_that_are_reduced_stay_as_they_are() -> None:
    before, after = of_rank(6.0, 3.0), of_rank(9.0, 4.0)
    assert metric_means([before, before], [after, after]) == {"critic_loss": 3.0}
    assert (before.sums[0], before.counts[0], after.sums[0], after.counts[0]) == (6.0, 3.0, 9.0, 4.0)


def test_what_is_scheduled_is_told_as_it_is_in_force(make_snapshot: Any, header: RunHeader) -> None:
    ramps = {
        "actor_lr": Ramp(start=1e-3, end=0.0, over=4000, begin=1000),
        "exploration_noise": Ramp(start=0.3, end=0.1, over=10, begin=0),
        "lr": Ramp(start=1.0, end=0.0, over=1),
    }
    record = build_record(None, make_snapshot(1000), EpisodeWindow(), None, dataclasses.replace(header, ramps=ramps))
    told = {key: record.get(f"train/{key}") for key in (*ramps, "critic_lr")}
    assert told == {"actor_lr": 7.5e-4, "exploration_noise": 0.1, "lr": None, "critic_lr": None}
