"""The account of a process that took over: it closes, and a window over the restart does too."""

from __future__ import annotations

import numpy as np

from offpolicy.timing.continued import continued
from offpolicy.timing.windows import elapsed
from offpolicy.types import Account, SchedulerStats, SlowTime, TaggedTime


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


def test_without_a_predecessor_or_without_timing_nothing_is_added() -> None:
    one = account(8, 1)
    assert continued(None, one) is one
    assert continued(one, None) is None
