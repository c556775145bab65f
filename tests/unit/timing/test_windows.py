"""What an account holds between two reports, also where a process has taken over from a dead one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from offpolicy.timing.continued import continued, continued_learner
from offpolicy.timing.phases import CollectorPhase
from offpolicy.timing.windows import Elapsed, elapsed, tagged_excess_ns
from offpolicy.types import (
    NO_ACCOUNT,
    Account,
    ArrivalTotals,
    DeviceTotals,
    LearnerTotals,
    MetricTotals,
    SchedulerStats,
    TaggedTime,
)
from tests.unit.timing.readings import S, account

MS = 1_000_000


def test_a_warmup_that_ends_in_the_window_never_gives_negative_time() -> None:
    before = account(5.0, warmup_s=0.0, iterations=7, collector_wait=5.0)
    before = replace(before, tagged=TaggedTime(2, 9 * MS))
    after = account(1.0, warmup_s=6.0, iterations=3, train=0.5)
    after = replace(after, tagged=TaggedTime(1, 5 * MS))
    window = elapsed(before, after)
    assert window is not None
    assert window.tagged == after.tagged
    assert (window.wall_ns, window.total_ns, window.iterations) == (1 * S, 2 * S, 3)
    assert window.phases_ns == after.phases_ns


def test_the_phases_of_a_window_sum_to_its_wall() -> None:
    before = account(5.0, collector_wait=1.0, train=3.0)
    after = account(9.0, collector_wait=2.0, train=5.5)
    window = elapsed(before, after)
    assert window is not None
    assert sum(window.phases_ns.values()) == window.wall_ns == 4 * S


@pytest.mark.parametrize(
    ("special", "excess_ms"),
    [
        (TaggedTime(0, 0), 0.0),
        (TaggedTime(10, 10 * 31 * 10**6), 10 * 30.0),
        (TaggedTime(10, 10 * 10**6), 0.0),
        (TaggedTime(10, 4 * 10**6), 0.0),  # they were the shorter ones
    ],
)
def test_what_resets_cost_is_what_their_steps_take_longer_than_the_others(
    special: TaggedTime, excess_ms: float
) -> None:
    """100 vector steps; those without a reset take 1 ms."""
    env_step_ns = 90 * 10**6 + special.ns if special.iterations else 100 * 10**6
    window = Elapsed(env_step_ns, env_step_ns, 100, {CollectorPhase.ENV_STEP: env_step_ns}, 0, tagged=special)
    assert tagged_excess_ns(window, CollectorPhase.ENV_STEP) == pytest.approx(excess_ms * 1e6)


def test_where_every_step_holds_a_reset_what_they_cost_is_not_known() -> None:
    window = Elapsed(9, 9, 3, {CollectorPhase.ENV_STEP: 9}, 0, tagged=TaggedTime(3, 9))
    assert tagged_excess_ns(window, CollectorPhase.ENV_STEP) is None


def test_cpu_time_of_the_warm_up_before_a_window_is_no_part_of_it() -> None:
    """Wall and phases begin anew where the warm-up ends; the clocks of processor and scheduler go on."""
    before = Account(0, 100, 0, {"train": 0}, cpu_ns=80, scheduler=SchedulerStats(runnable_ns=30, preemptions=3))
    after = Account(50, 200, 1, {"train": 50}, cpu_ns=120, scheduler=SchedulerStats(runnable_ns=45, preemptions=5))
    window = elapsed(before, after)
    assert window is not None
    assert (window.wall_ns, window.total_ns, window.cpu_ns) == (50, 150, 40)
    assert window.scheduler == SchedulerStats(runnable_ns=15, preemptions=2)


def life(wall_ns: int, warmup_ns: int, iterations: int = 0, **more: object) -> Account:
    phases_ns = {"env_step": wall_ns - wall_ns // 4, "other": wall_ns // 4}
    return Account(wall_ns, warmup_ns, iterations, phases_ns, cpu_ns=wall_ns // 2, **more)  # type: ignore[arg-type]


def test_phases_and_iterations_add_up_and_the_new_warm_up_is_other() -> None:
    both = continued(life(1000, 300, 10), life(200, 70, 2))
    assert both == Account(1270, 300, 12, {"env_step": 900, "other": 370}, cpu_ns=600)
    assert both is not None
    assert sum(both.phases_ns.values()) == both.wall_ns


@pytest.mark.promise("account-closes")
def test_a_window_over_the_restart_holds_all_of_its_time() -> None:
    before = life(1000, 300, 10)
    window = elapsed(before, continued(before, life(200, 70, 2)))
    assert window is not None
    assert (window.wall_ns, window.total_ns, window.iterations) == (270, 270, 2)
    assert window.phases_ns == {"env_step": 150, "other": 120}


def test_the_warm_up_goes_on_if_the_dead_one_had_not_ended_its_own() -> None:
    both = continued(life(0, 300), life(200, 70, 2))
    assert both is not None
    assert (both.wall_ns, both.warmup_ns, both.iterations) == (200, 370, 2)


def test_what_is_counted_by_iteration_adds_up() -> None:
    counts = np.array([[1, 2]])
    tagged, scheduler = TaggedTime(1, 2), SchedulerStats(7, 8)
    one = life(8, 1, 1, histogram=counts, tagged=tagged, scheduler=scheduler)
    both = continued(one, one)
    assert both is not None
    assert (both.tagged, both.scheduler) == (TaggedTime(2, 4), SchedulerStats(14, 16))
    assert both.histogram is not None
    assert both.histogram.tolist() == [[2, 4]]


def metrics(total: float, count: float) -> MetricTotals:
    return MetricTotals(("loss",), np.array([total]), np.array([count]))


def test_a_learner_that_began_again_counts_what_both_have_done_and_the_updates_of_its_networks() -> None:
    """The checkpoint was saved after 40 updates; the dead one had done 50, the new one has done 45."""
    before = LearnerTotals(life(1000, 300, 50), 50, 500, 9.0, metrics(100.0, 50.0), warmup_updates=1)
    now = LearnerTotals(life(200, 70, 5), 45, 50, 1.0, metrics(90.0, 45.0), warmup_updates=41)
    both = continued_learner(before, now, metrics(80.0, 40.0))
    assert (both.updates, both.samples, both.sample_age_sum, both.warmup_updates) == (45, 550, 10.0, 1)
    assert (both.metrics.sums.tolist(), both.metrics.counts.tolist()) == ([110.0], [55.0])
    assert both.account.iterations == 55


def test_the_time_between_the_last_report_and_the_new_process_is_other() -> None:
    before = LearnerTotals(life(1000, 300, 10), 10, 0, 0.0, metrics(0.0, 0.0), reported_ns=5000)
    now = LearnerTotals(life(200, 70, 2), 2, 0, 0.0, metrics(0.0, 0.0), reported_ns=6000)
    both = continued_learner(before, now, metrics(0.0, 0.0)).account
    assert both is not None
    assert both.wall_ns == 1000 + (6000 - 5000)
    assert sum(both.phases_ns.values()) == both.wall_ns


def test_device_time_and_lateness_add_up_but_not_the_error_of_the_clocks() -> None:
    device, late = DeviceTotals(*range(7)), ArrivalTotals(1, 2, 3, 4, clock_error_ns=5)
    one = LearnerTotals(NO_ACCOUNT, 1, 0, 0.0, metrics(0.0, 0.0), device=device, arrivals=late)
    both = continued_learner(one, one, metrics(0.0, 0.0))
    assert both.device == DeviceTotals(*range(0, 14, 2))
    assert both.arrivals == ArrivalTotals(2, 4, 6, 8, clock_error_ns=5)
    assert both.account.is_empty
