from __future__ import annotations

from dataclasses import replace

import pytest

from offpolicy.timing.phases import CollectorPhase
from offpolicy.timing.windows import Elapsed, elapsed, of_iterations, slow_excess_ms, tagged_excess_ns
from offpolicy.types import Account, Cooldown, SchedulerStats, SlowTime, TaggedTime
from tests.unit.timing.readings import S, account, snapshot
from tests.unit.timing.readings import collector as collector_of

MS = 1_000_000


def test_a_warmup_that_ends_in_the_window_never_gives_negative_time() -> None:
    before = account(5.0, warmup_s=0.0, iterations=7, collector_wait=5.0)
    before = replace(before, tagged=TaggedTime(2, 9 * MS), slow=SlowTime(2, {"collector_wait": S, "other": 0}))
    after = account(1.0, warmup_s=6.0, iterations=3, train=0.5)
    after = replace(after, tagged=TaggedTime(1, 5 * MS), slow=SlowTime(1, {"train": S // 4, "other": 0}))
    window = elapsed(before, after)
    assert window is not None
    assert (window.tagged, window.slow) == (after.tagged, after.slow)
    assert (window.wall_ns, window.total_ns, window.iterations) == (1 * S, 2 * S, 3)
    assert window.phases_ns == after.phases_ns


def test_the_phases_of_a_window_sum_to_its_wall() -> None:
    before = account(5.0, collector_wait=1.0, train=3.0)
    after = account(9.0, collector_wait=2.0, train=5.5)
    window = elapsed(before, after)
    assert window is not None
    assert sum(window.phases_ns.values()) == window.wall_ns == 4 * S


def test_what_is_slow_is_that_of_the_window() -> None:
    before = replace(account(1.0, iterations=100, train=0.5), slow=SlowTime(3, {"train": S, "other": S}))
    after = replace(account(3.0, iterations=300, train=1.5), slow=SlowTime(5, {"train": S + S // 10, "other": S}))
    window = elapsed(before, after)
    assert window is not None
    assert window.slow == SlowTime(2, {"train": S // 10, "other": 0})
    excess_ms = slow_excess_ms(window.slow, window.iterations, window.phases_ns)
    assert excess_ms == pytest.approx({"train": 50.0 - 5.0, "other": -5.0})
    assert slow_excess_ms(None, 5, {}) == {}


def test_nothing_is_slow_in_a_window_whose_slow_iterations_were_all_before_it() -> None:
    slow = SlowTime(3, {"train": S, "other": S})
    before = replace(account(1.0, iterations=100, train=0.5), slow=slow)
    window = elapsed(before, replace(account(3.0, iterations=300, train=1.5), slow=slow))
    assert window is not None
    assert slow_excess_ms(window.slow, window.iterations, window.phases_ns) == {}


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


def tagged_by(weights: list[int], times_us: list[int]) -> Elapsed:
    """A window in which every iteration was tagged."""
    pairs = list(zip(weights, times_us, strict=True))
    squares = sum(w * w for w in weights), sum(w * t for w, t in pairs), sum(t * t for t in times_us)
    tagged = TaggedTime(len(pairs), 1000 * sum(times_us), sum(weights), *squares)
    return Elapsed(tagged.ns, tagged.ns, len(pairs), {CollectorPhase.ENV_STEP: tagged.ns}, 0, tagged=tagged)


def test_where_every_step_holds_resets_their_number_tells_what_they_cost() -> None:
    """A step takes 900 us, and 300 us for each reset, up to 20 us more or less."""
    weights = [1, 2, 3, 4] * 25
    times_us = [900 + 300 * weight + (index * 7 % 41 - 20) for index, weight in enumerate(weights)]
    excess_ns = tagged_excess_ns(tagged_by(weights, times_us), CollectorPhase.ENV_STEP)
    assert excess_ns == pytest.approx(300_000 * sum(weights), rel=0.05)


def test_resets_cost_no_more_than_the_steps_that_hold_them() -> None:
    """The slope says 300 us for each reset, more than there is: the steps with few of them are the short ones."""
    weights = [1, 2, 3, 4] * 25
    window = tagged_by(weights, [300 * weight - 200 for weight in weights])
    assert tagged_excess_ns(window, CollectorPhase.ENV_STEP) == window.wall_ns


@pytest.mark.parametrize(
    ("weights", "times_us"),
    [
        ([3] * 50, [900 + index for index in range(50)]),  # always as many
        ([1, 2] * 25, [900 + 37 * (index % 26) for index in range(50)]),  # noise hides it
        ([1, 2, 3, 4], [10, 20, 30, 40]),  # too few
        ([1, 2, 3, 4, 5], [1284, 1416, 1884, 2016, 2484]),  # so few tell little of the noise
    ],
)
def test_where_their_number_does_not_tell_nobody_does(weights: list[int], times_us: list[int]) -> None:
    assert tagged_excess_ns(tagged_by(weights, times_us), CollectorPhase.ENV_STEP) is None


def test_cpu_time_of_the_warm_up_before_a_window_is_no_part_of_it() -> None:
    """Wall and phases begin anew where the warm-up ends; the clocks of processor and scheduler go on."""
    before = Account(0, 100, 0, {"train": 0}, cpu_ns=80, scheduler=SchedulerStats(runnable_ns=30, preemptions=3))
    after = Account(50, 200, 1, {"train": 50}, cpu_ns=120, scheduler=SchedulerStats(runnable_ns=45, preemptions=5))
    window = elapsed(before, after)
    assert window is not None
    assert (window.wall_ns, window.total_ns, window.cpu_ns) == (50, 150, 40)
    assert window.scheduler == SchedulerStats(runnable_ns=15, preemptions=2)


def test_cpu_time_after_the_last_iteration_is_no_part_of_learning() -> None:
    after = Cooldown({"train": 4}, cpu_ns=3, scheduler=SchedulerStats(runnable_ns=2, preemptions=1))
    scheduler = SchedulerStats(runnable_ns=8, preemptions=6)
    timed = Account(10, 0, 1, {"train": 10}, cpu_ns=9, scheduler=scheduler, cooldown=after)
    (collector,) = of_iterations(snapshot(1.0, None, 0, collector_of(timed, 5))).collectors
    assert collector.account is not None
    assert (collector.account.wall_ns, collector.account.cpu_ns) == (6, 6)
    assert collector.account.scheduler == SchedulerStats(runnable_ns=6, preemptions=5)
