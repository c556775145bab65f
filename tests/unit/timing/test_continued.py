"""The account of a process that took over: it closes, and a window over the restart does too."""

from __future__ import annotations

import numpy as np

from offpolicy.timing.continued import continued, continued_learner
from offpolicy.timing.windows import elapsed
from offpolicy.types import (
    Account,
    ArrivalTotals,
    DeviceTotals,
    LearnerTotals,
    MetricTotals,
    SchedulerStats,
    SlowTime,
    TaggedTime,
)


def account(wall_ns: int, warmup_ns: int, iterations: int = 0, **more: object) -> Account:
    phases_ns = {"env_step": wall_ns - wall_ns // 4, "other": wall_ns // 4}
    return Account(wall_ns, warmup_ns, iterations, phases_ns, cpu_ns=wall_ns // 2, **more)  # type: ignore[arg-type]


def test_phases_and_iterations_add_up_and_the_new_warm_up_is_other() -> None:
    both = continued(account(1000, 300, 10), account(200, 70, 2))
    assert both == Account(1270, 300, 12, {"env_step": 900, "other": 370}, cpu_ns=600)
    assert both is not None
    assert sum(both.phases_ns.values()) == both.wall_ns


def test_a_window_over_the_restart_holds_all_of_its_time() -> None:
    before = account(1000, 300, 10)
    window = elapsed(before, continued(before, account(200, 70, 2)))
    assert window is not None
    assert (window.wall_ns, window.total_ns, window.iterations) == (270, 270, 2)
    assert window.phases_ns == {"env_step": 150, "other": 120}


def test_the_warm_up_goes_on_if_the_dead_one_had_not_ended_its_own() -> None:
    both = continued(account(0, 300), account(200, 70, 2))
    assert both is not None
    assert (both.wall_ns, both.warmup_ns, both.iterations) == (200, 370, 2)


def test_what_is_counted_by_iteration_adds_up() -> None:
    counts, states = np.array([[1, 2]]), np.array([[3, 4, 5]])
    slow = SlowTime(1, {"env_step": 5, "other": 6})
    tagged, scheduler = TaggedTime(1, 2, 3, 4, 5, 6), SchedulerStats(7, 8)
    one = account(8, 1, 1, histogram=counts, states=states, slow=slow, tagged=tagged, scheduler=scheduler)
    both = continued(one, one)
    assert both is not None
    assert (both.tagged, both.scheduler) == (TaggedTime(2, 4, 6, 8, 10, 12), SchedulerStats(14, 16))
    assert both.slow == SlowTime(2, {"env_step": 10, "other": 12})
    assert both.histogram is not None
    assert both.histogram.tolist() == [[2, 4]]
    assert both.states is not None
    assert both.states.tolist() == [[6, 8, 10]]


def test_the_scheduler_is_counted_on_where_the_dead_one_had_not_ended_its_warm_up() -> None:
    both = continued(
        account(0, 300, scheduler=SchedulerStats(7, 8)), account(200, 70, 2, scheduler=SchedulerStats(1, 2))
    )
    assert both is not None
    assert both.scheduler == SchedulerStats(8, 10)


def test_what_was_slow_before_stays_slow_where_nothing_has_been_since() -> None:
    slow = SlowTime(1, {"env_step": 5, "other": 6})
    both, first = (
        continued(account(8, 1, 1, slow=slow), account(8, 1)),
        continued(account(8, 1), account(8, 1, slow=slow)),
    )
    assert both is not None
    assert first is not None
    assert both.slow == first.slow == slow


def test_without_a_predecessor_or_without_timing_nothing_is_added() -> None:
    one = account(8, 1)
    assert continued(None, one) is one
    assert continued(one, None) is None


def metrics(total: float, count: float) -> MetricTotals:
    return MetricTotals(("loss",), np.array([total]), np.array([count]))


def test_a_learner_that_began_again_counts_what_both_have_done_and_the_updates_of_its_networks() -> None:
    """The checkpoint was saved after 40 updates; the dead one had done 50, the new one has done 45."""
    before = LearnerTotals(account(1000, 300, 50), 50, 500, 9.0, metrics(100.0, 50.0), warmup_updates=1)
    now = LearnerTotals(account(200, 70, 5), 45, 50, 1.0, metrics(90.0, 45.0), warmup_updates=41)
    both = continued_learner(before, now, metrics(80.0, 40.0))
    assert (both.updates, both.samples, both.sample_age_sum, both.warmup_updates) == (45, 550, 10.0, 1)
    assert (both.metrics.sums.tolist(), both.metrics.counts.tolist()) == ([110.0], [55.0])
    assert both.account is not None
    assert both.account.iterations == 55


def test_the_packers_account_goes_on_as_well() -> None:
    before = LearnerTotals(None, 1, 0, 0.0, metrics(0.0, 0.0), packer=account(1000, 300, 10))
    now = LearnerTotals(None, 1, 0, 0.0, metrics(0.0, 0.0), packer=account(200, 70, 2))
    packer = continued_learner(before, now, metrics(0.0, 0.0)).packer
    assert packer is not None
    assert (packer.iterations, packer.wall_ns) == (12, 1270)


def test_the_time_between_the_last_report_and_the_new_process_is_other() -> None:
    before = LearnerTotals(account(1000, 300, 10), 10, 0, 0.0, metrics(0.0, 0.0), reported_ns=5000)
    now = LearnerTotals(account(200, 70, 2), 2, 0, 0.0, metrics(0.0, 0.0), reported_ns=6000)
    both = continued_learner(before, now, metrics(0.0, 0.0)).account
    assert both is not None
    assert both.wall_ns == 1000 + (6000 - 5000)
    assert sum(both.phases_ns.values()) == both.wall_ns


def test_a_process_that_seems_to_have_begun_before_the_last_report_takes_no_time_back() -> None:
    """The kernel tells the start of a process to 10 ms."""
    before = LearnerTotals(account(1000, 300, 10), 10, 0, 0.0, metrics(0.0, 0.0), reported_ns=5000)
    now = LearnerTotals(account(200, 70, 2), 2, 0, 0.0, metrics(0.0, 0.0), reported_ns=5100)
    both = continued_learner(before, now, metrics(0.0, 0.0)).account
    assert both is not None
    assert both.wall_ns == sum(both.phases_ns.values()) == 1000 + 70 + 200


def test_device_time_and_lateness_add_up_but_not_the_error_of_the_clocks() -> None:
    device, late = DeviceTotals(*range(8)), ArrivalTotals(1, 2, 3, 4, clock_error_ns=5)
    one = LearnerTotals(None, 1, 0, 0.0, metrics(0.0, 0.0), device=device, arrivals=late)
    both = continued_learner(one, one, metrics(0.0, 0.0))
    assert both.device == DeviceTotals(*range(0, 16, 2))
    assert both.arrivals == ArrivalTotals(2, 4, 6, 8, clock_error_ns=5)
    assert both.account is None
