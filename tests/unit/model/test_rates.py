from __future__ import annotations

from dataclasses import astuple, replace

import pytest

from offpolicy.model.rates import compute_rates
from offpolicy.model.windows import of_iterations
from offpolicy.timing.phases import FOR_COLLECTORS, LEARNER_PERIODIC, LearnerPhase
from offpolicy.types import NO_ACCOUNT, CollectorTotals
from tests.unit.model.readings import account, collector, cooled, snapshot


@pytest.mark.promise("rates-from-counters")
def test_steps_per_sec_divides_by_the_collectors_wall_not_the_supervisors() -> None:
    before = snapshot(0.0, NO_ACCOUNT, 0, collector(account(10.0), 1000))
    after = snapshot(99.0, NO_ACCOUNT, 0, collector(account(12.0), 1300))
    assert compute_rates(before, after, "free").steps_per_sec == 150.0


def test_without_accounts_rates_come_from_counters_and_the_supervisors_clock() -> None:
    before = snapshot(10.0, NO_ACCOUNT, 100, collector(NO_ACCOUNT, 1000))
    after = snapshot(12.0, NO_ACCOUNT, 400, collector(NO_ACCOUNT, 1300))
    rates = compute_rates(before, after, "alternate")
    assert (rates.steps_per_sec, rates.updates_per_sec, rates.utd) == (150.0, 150.0, 1.0)
    assert (rates.collector_capacity, rates.learner_capacity, rates.predicted_steps_per_sec) == (None, None, None)


@pytest.mark.parametrize(("mode", "capacity"), [("overlap", 125.0), ("free", 125.0), ("alternate", 200.0)])
def test_the_handshake_costs_capacity_where_the_learner_is_not_waiting_for_it(mode: str, capacity: float) -> None:
    before = snapshot(0.0, NO_ACCOUNT, 0, collector(account(0.0), 0))
    spent = account(2.0, learner_wait=1.0, snapshot=0.2, handshake=0.3, env_step=0.5)
    assert compute_rates(before, snapshot(2.0, NO_ACCOUNT, 0, collector(spent, 100)), mode).collector_capacity == (
        pytest.approx(capacity)
    )


def test_collector_capacity_is_the_sum_over_collectors() -> None:
    fast = account(2.0, learner_wait=1.0)
    slow = account(4.0, learner_wait=0.0)
    after = snapshot(4.0, NO_ACCOUNT, 0, collector(fast, 100), collector(slow, 100))
    before = snapshot(0.0, NO_ACCOUNT, 0, collector(account(0.0), 0), collector(account(0.0), 0))
    rates = compute_rates(before, after, "free")
    assert rates.collector_capacity == pytest.approx(100.0 + 25.0)
    assert rates.steps_per_sec == pytest.approx(50.0 + 25.0)


@pytest.mark.parametrize("is_timed", [True, False])
def test_rates_of_several_hosts_are_those_of_this_host_times_their_number(is_timed: bool) -> None:
    start, end = (account(0.0), account(2.0, learner_wait=1.0)) if is_timed else (NO_ACCOUNT, NO_ACCOUNT)
    before = snapshot(0.0, NO_ACCOUNT, 0, collector(start, 1000, policy_steps=0), env_steps=5 * 1000)
    after = snapshot(2.0, NO_ACCOUNT, 1500, collector(end, 1300, policy_steps=300), env_steps=5 * 1300)
    rates = compute_rates(before, after, "free", num_hosts=5)
    assert (rates.steps_per_sec, rates.updates_per_sec, rates.utd) == (5 * 150.0, 750.0, 1.0)
    assert rates.collector_capacity == (5 * 300.0 if is_timed else None)


def test_learner_capacity_is_of_every_phase_of_work_without_waits_for_collectors_and_periodic_work() -> None:
    pauses = {*FOR_COLLECTORS, *LEARNER_PERIODIC}
    before = snapshot(0.0, account(0.0), 0, collector(NO_ACCOUNT, 0))
    for phase in set(LearnerPhase) - {LearnerPhase.TRAIN, LearnerPhase.OTHER}:
        learner = account(10.0, train=2.0, **{phase: 8.0})
        rates = compute_rates(before, snapshot(10.0, learner, 100, collector(NO_ACCOUNT, 50)), "overlap")
        active_s = 0.02 if phase in pauses else 0.1
        assert (rates.learner_active_s, rates.utd) == pytest.approx((active_s, 2.0))
        assert rates.learner_capacity == pytest.approx(1 / (active_s * 2.0))


def test_a_window_without_data_gives_none_not_zero() -> None:
    idle = snapshot(5.0, account(5.0), 100, collector(account(5.0), 100))
    later = snapshot(7.0, account(7.0), 100, collector(account(7.0), 100))
    rates = compute_rates(idle, later, "alternate")
    assert set(astuple(rates)) == {None}


def test_random_steps_do_not_dilute_the_utd() -> None:
    after = snapshot(10.0, account(9.0, train=9.0), 900, collector(account(10.0), 1900, policy_steps=900))
    assert compute_rates(None, after, "alternate").utd == pytest.approx(1.0)


def test_steps_of_a_warmup_are_not_divided_by_steady_time() -> None:
    before = snapshot(1.0, NO_ACCOUNT, 0, collector(account(1.0, warmup_s=0.0, iterations=1000), 1000))
    after = snapshot(3.0, NO_ACCOUNT, 0, collector(account(1.0, warmup_s=2.0, iterations=100), 2100))
    assert compute_rates(before, after, "free").steps_per_sec == pytest.approx(100.0)


def test_restored_counters_are_not_counted_again() -> None:
    restored = CollectorTotals(NO_ACCOUNT, 50_000, 50_000, 0.0, 49_000)
    before = snapshot(0.0, NO_ACCOUNT, 49_000, restored)
    fresh = account(2.0, iterations=300, learner_wait=1.0)
    after = snapshot(2.0, account(2.0, train=2.0), 49_300, CollectorTotals(fresh, 50_300, 50_300, 0.0, 49_300))
    rates = compute_rates(before, after, "alternate")
    assert (rates.steps_per_sec, rates.updates_per_sec, rates.utd) == (150.0, 150.0, 1.0)
    assert rates.collector_capacity == pytest.approx(300.0)


def test_rates_end_with_the_last_iteration_of_each_side() -> None:
    """The collector waits 3 s for the final evaluation and for the end of the run."""
    before = snapshot(1.0, account(1.0, train=0.9), 100, collector(account(1.0, learner_wait=0.9), 100))
    steps = cooled(account(6.0, learner_wait=5.7), learner_wait=3.0)
    updates = cooled(account(5.5, train=2.7, evaluation=2.5), evaluation=2.5)
    after = snapshot(7.0, updates, 300, collector(steps, 300))
    rates = compute_rates(before, of_iterations(after), "overlap")
    assert rates.steps_per_sec == pytest.approx(100.0)
    assert rates.learner_capacity == pytest.approx(100.0)
    assert rates.predicted_steps_per_sec == pytest.approx(rates.steps_per_sec)
    assert compute_rates(before, after, "overlap").steps_per_sec == pytest.approx(40.0)  # what it was


@pytest.mark.parametrize("before_updates", [0, 1])
def test_the_updates_of_the_warm_up_are_not_divided_by_steady_time(before_updates: int) -> None:
    """The account begins behind the first iteration, with 4 updates; then come 2 of 50 ms per update."""
    before = snapshot(1.0, account(0.0, warmup_s=0.5), before_updates, collector(account(0.0), 0))
    after = snapshot(2.0, account(0.1, warmup_s=2.0, train=0.1), 6, collector(account(1.0, env_step=0.5), 6))
    after = replace(after, learners=(replace(after.learners[0], warmup_updates=4),))
    rates = compute_rates(before, after, "overlap")
    assert (rates.learner_active_s, rates.updates_per_sec) == pytest.approx((0.05, 20.0))
    later = replace(after.learners[0], account=account(0.3, warmup_s=2.0, train=0.3), updates=10)
    assert compute_rates(after, replace(after, learners=(later,)), "overlap").updates_per_sec == pytest.approx(20.0)
