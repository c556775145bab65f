from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest

from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.timing.rates import (
    Elapsed,
    compute_rates,
    elapsed,
    of_iterations,
    predict_steps_per_sec,
    slow_excess_ms,
    tagged_excess_ns,
)
from offpolicy.types import (
    Account,
    CollectorTotals,
    Cooldown,
    LearnerTotals,
    MetricTotals,
    SchedulerStats,
    SlowTime,
    Snapshot,
    TaggedTime,
)

S = 1_000_000_000
NO_METRICS = MetricTotals((), np.zeros(0), np.zeros(0))


def account(wall_s: float, warmup_s: float = 1.0, iterations: int = 0, **phases_s: float) -> Account:
    phases = {name: int(seconds * S) for name, seconds in phases_s.items()}
    phases["other"] = int(wall_s * S) - sum(phases.values())
    return Account(int(wall_s * S), int(warmup_s * S), iterations, phases, cpu_ns=0)


def cooled(timed: Account, **phases_s: float) -> Account:
    """The account with a cooldown of these phases, which are part of it."""
    phases = {name: int(phases_s.get(name, 0.0) * S) for name in timed.phases_ns}
    return replace(timed, cooldown=Cooldown(phases, 0, SchedulerStats()))


def collector(timed: Account | None, steps: int, policy_steps: int | None = None) -> CollectorTotals:
    return CollectorTotals(timed, steps, steps, 0.0, steps if policy_steps is None else policy_steps)


def snapshot(
    wall_s: float, learner: Account | None, updates: int, *collectors: CollectorTotals, env_steps: int = 0
) -> Snapshot:
    totals = LearnerTotals(learner, updates, 0, 0.0, NO_METRICS)
    return Snapshot(wall_s, env_steps, updates, (totals,), collectors, 0, 1, 0.0)


def test_steps_per_sec_divides_by_the_collectors_wall_not_the_supervisors() -> None:
    before = snapshot(0.0, None, 0, collector(account(10.0), 1000))
    after = snapshot(99.0, None, 0, collector(account(12.0), 1300))
    assert compute_rates(before, after, "free").steps_per_sec == 150.0


def test_without_accounts_rates_come_from_counters_and_the_supervisors_clock() -> None:
    before = snapshot(10.0, None, 100, collector(None, 1000))
    after = snapshot(12.0, None, 400, collector(None, 1300))
    rates = compute_rates(before, after, "alternate")
    assert (rates.steps_per_sec, rates.updates_per_sec, rates.utd) == (150.0, 150.0, 1.0)
    assert (rates.collector_capacity, rates.learner_capacity, rates.predicted_steps_per_sec) == (None, None, None)


def test_collector_capacity_leaves_out_its_wait_for_the_learner() -> None:
    before = snapshot(0.0, None, 0, collector(account(0.0), 0))
    after = snapshot(2.0, None, 0, collector(account(2.0, learner_wait=1.5, env_step=0.4), 100))
    assert compute_rates(before, after, "overlap").collector_capacity == pytest.approx(200.0)


@pytest.mark.parametrize(("mode", "capacity"), [("overlap", 125.0), ("free", 125.0), ("alternate", 200.0)])
def test_the_handshake_costs_capacity_where_the_learner_is_not_waiting_for_it(mode: str, capacity: float) -> None:
    before = snapshot(0.0, None, 0, collector(account(0.0), 0))
    spent = account(2.0, learner_wait=1.0, snapshot=0.2, handshake=0.3, env_step=0.5)
    assert compute_rates(before, snapshot(2.0, None, 0, collector(spent, 100)), mode).collector_capacity == (
        pytest.approx(capacity)
    )


def test_collector_capacity_is_the_sum_over_collectors() -> None:
    fast = account(2.0, learner_wait=1.0)
    slow = account(4.0, learner_wait=0.0)
    after = snapshot(4.0, None, 0, collector(fast, 100), collector(slow, 100))
    before = snapshot(0.0, None, 0, collector(account(0.0), 0), collector(account(0.0), 0))
    rates = compute_rates(before, after, "free")
    assert rates.collector_capacity == pytest.approx(100.0 + 25.0)
    assert rates.steps_per_sec == pytest.approx(50.0 + 25.0)


@pytest.mark.parametrize("is_timed", [True, False])
def test_rates_of_several_hosts_are_those_of_this_host_times_their_number(is_timed: bool) -> None:
    start, end = (account(0.0), account(2.0, learner_wait=1.0)) if is_timed else (None, None)
    before = snapshot(0.0, None, 0, collector(start, 1000, policy_steps=0))
    after = snapshot(2.0, None, 1500, collector(end, 1300, policy_steps=300))
    rates = compute_rates(before, after, "free", num_hosts=5)
    assert (rates.steps_per_sec, rates.updates_per_sec, rates.utd) == (5 * 150.0, 750.0, 1.0)
    assert rates.collector_capacity == (5 * 300.0 if is_timed else None)


@pytest.mark.parametrize(
    "phase", ["collector_wait", "replay_batch_wait", "rank_barrier", "sync_coordination", "evaluation", "checkpoint"]
)
def test_learner_capacity_leaves_out_waits_and_periodic_work(phase: str) -> None:
    learner = account(10.0, train=2.0, **{phase: 8.0})
    before = snapshot(0.0, account(0.0), 0, collector(None, 0))
    rates = compute_rates(before, snapshot(10.0, learner, 100, collector(None, 50)), "overlap")
    assert rates.learner_active_s == pytest.approx(0.02)
    assert rates.utd == 2.0
    assert rates.learner_capacity == pytest.approx(1 / (0.02 * 2.0))


@pytest.mark.parametrize("phase", ["train", "replay_sample", "h2d", "param_sync", "weight_publish", "log", "other"])
def test_learner_capacity_counts_every_phase_of_work(phase: str) -> None:
    learner = account(10.0, collector_wait=8.0, **{phase: 2.0} if phase != "other" else {})
    before = snapshot(0.0, account(0.0), 0, collector(None, 0))
    rates = compute_rates(before, snapshot(10.0, learner, 100, collector(None, 100)), "overlap")
    assert rates.learner_active_s == pytest.approx(0.02)


@pytest.mark.parametrize(("mode", "expected"), [("alternate", 75.0), ("overlap", 100.0), ("free", 100.0)])
def test_prediction_adds_turns_up_and_bounds_overlap_by_the_slower_side(mode: str, expected: float) -> None:
    assert predict_steps_per_sec(300.0, 100.0, mode) == pytest.approx(expected)


def test_prediction_refuses_an_unknown_mode() -> None:
    with pytest.raises(KeyError, match="sideways"):
        predict_steps_per_sec(300.0, 100.0, "sideways")


def test_a_window_without_data_gives_none_not_zero() -> None:
    idle = snapshot(5.0, account(5.0), 100, collector(account(5.0), 100))
    later = snapshot(7.0, account(7.0), 100, collector(account(7.0), 100))
    rates = compute_rates(idle, later, "alternate")
    assert set(astuple(rates)) == {None}


@pytest.mark.parametrize(("burst", "period_s"), [(2, 0.25), (8, 1.0), (24, 3.0), (48, 6.0)])
def test_bursts_do_not_bias_the_rate(burst: int, period_s: float) -> None:
    first, last = 5, 5 + int(60 / period_s)
    before = snapshot(0, None, 0, collector(account(first * period_s), first * burst))
    after = snapshot(0, None, 0, collector(account(last * period_s), last * burst))
    assert compute_rates(before, after, "free").steps_per_sec == pytest.approx(8.0, rel=1e-9)


def test_random_steps_do_not_dilute_the_utd() -> None:
    after = snapshot(10.0, account(9.0, train=9.0), 900, collector(account(10.0), 1900, policy_steps=900))
    assert compute_rates(None, after, "alternate").utd == pytest.approx(1.0)


def test_steps_of_a_warmup_are_not_divided_by_steady_time() -> None:
    before = snapshot(1.0, None, 0, collector(account(1.0, warmup_s=0.0, iterations=1000), 1000))
    after = snapshot(3.0, None, 0, collector(account(1.0, warmup_s=2.0, iterations=100), 2100))
    assert compute_rates(before, after, "free").steps_per_sec == pytest.approx(100.0)


def test_a_warmup_that_ends_in_the_window_never_gives_negative_time() -> None:
    before = account(5.0, warmup_s=0.0, iterations=7, collector_wait=5.0)
    after = account(1.0, warmup_s=6.0, iterations=3, train=0.5)
    window = elapsed(before, after)
    assert window is not None
    assert (window.wall_ns, window.total_ns, window.iterations) == (1 * S, 2 * S, 3)
    assert window.phases_ns == after.phases_ns


def test_the_phases_of_a_window_sum_to_its_wall() -> None:
    before = account(5.0, collector_wait=1.0, train=3.0)
    after = account(9.0, collector_wait=2.0, train=5.5)
    window = elapsed(before, after)
    assert window is not None
    assert sum(window.phases_ns.values()) == window.wall_ns == 4 * S


def test_restored_counters_are_not_counted_again() -> None:
    restored = CollectorTotals(None, 50_000, 50_000, 0.0, 49_000)
    before = snapshot(0.0, None, 49_000, restored)
    fresh = account(2.0, iterations=300, learner_wait=1.0)
    after = snapshot(2.0, account(2.0, train=2.0), 49_300, CollectorTotals(fresh, 50_300, 50_300, 0.0, 49_300))
    rates = compute_rates(before, after, "alternate")
    assert (rates.steps_per_sec, rates.updates_per_sec, rates.utd) == (150.0, 150.0, 1.0)
    assert rates.collector_capacity == pytest.approx(300.0)


def test_a_simulated_pipeline_runs_at_the_predicted_rate() -> None:
    """Turns of 2 ms of collecting and 6 ms of learning per env step, 500 of them, on a fake clock."""
    wall_ns, collect_ns, learn_ns = 500 * 8_000_000, 500 * 2_000_000, 500 * 6_000_000
    learner = Account(wall_ns, 1, 500, {LearnerPhase.COLLECTOR_WAIT: collect_ns, LearnerPhase.TRAIN: learn_ns}, 0)
    steps = Account(wall_ns, 1, 500, {CollectorPhase.LEARNER_WAIT: learn_ns, CollectorPhase.ENV_STEP: collect_ns}, 0)
    rates = compute_rates(None, snapshot(4.0, learner, 500, collector(steps, 500)), "alternate")
    assert rates.predicted_steps_per_sec == pytest.approx(rates.steps_per_sec, rel=1e-9)
    overlapped = predict_steps_per_sec(rates.collector_capacity, rates.learner_capacity, "overlap")
    assert overlapped != pytest.approx(rates.steps_per_sec, rel=0.1)


def test_what_is_slow_is_that_of_the_window() -> None:
    before = replace(account(1.0, iterations=100, train=0.5), slow=SlowTime(3, {"train": S, "other": S}))
    after = replace(account(3.0, iterations=300, train=1.5), slow=SlowTime(5, {"train": S + S // 10, "other": S}))
    window = elapsed(before, after)
    assert window is not None
    assert window.slow == SlowTime(2, {"train": S // 10, "other": 0})
    excess_ms = slow_excess_ms(window.slow, window.iterations, window.phases_ns)
    assert excess_ms == pytest.approx({"train": 50.0 - 5.0, "other": -5.0})
    assert slow_excess_ms(None, 5, {}) == slow_excess_ms(SlowTime(0, {}), 5, {}) == {}


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


@pytest.mark.parametrize(
    ("special", "excess_ms"),
    [(TaggedTime(0, 0), 0.0), (TaggedTime(10, 10 * 31 * 10**6), 10 * 30.0), (TaggedTime(10, 10 * 10**6), 0.0)],
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


@pytest.mark.parametrize(
    ("weights", "times_us"),
    [
        ([3] * 50, [900 + index for index in range(50)]),  # always as many
        ([1, 2] * 25, [900 + 37 * (index % 26) for index in range(50)]),  # noise hides it
        ([1, 2], [10, 20]),  # too few
    ],
)
def test_where_their_number_does_not_tell_nobody_does(weights: list[int], times_us: list[int]) -> None:
    assert tagged_excess_ns(tagged_by(weights, times_us), CollectorPhase.ENV_STEP) is None
