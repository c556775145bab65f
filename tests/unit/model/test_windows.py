"""What an account holds between two reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offpolicy.model.windows import Elapsed, elapsed, tagged_excess_ns
from offpolicy.timing.phases import CollectorPhase
from offpolicy.types import Account, SchedulerStats, TaggedTime
from tests.unit.model.readings import S, account

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


def test_cpu_time_of_the_warm_up_before_a_window_is_no_part_of_it() -> None:
    """Wall and phases begin again where the warm-up ends; the clocks of processor and scheduler go on."""
    before = Account(0, 100, 0, {"train": 0}, cpu_ns=80, scheduler=SchedulerStats(runnable_ns=30, preemptions=3))
    after = Account(50, 200, 1, {"train": 50}, cpu_ns=120, scheduler=SchedulerStats(runnable_ns=45, preemptions=5))
    window = elapsed(before, after)
    assert window is not None
    assert (window.wall_ns, window.total_ns, window.cpu_ns) == (50, 150, 40)
    assert window.scheduler == SchedulerStats(runnable_ns=15, preemptions=2)
