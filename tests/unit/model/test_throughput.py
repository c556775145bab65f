from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from offpolicy.model.rates import compute_rates
from offpolicy.model.throughput import (
    NUM_SLICES,
    bound_steps_per_sec,
    later,
    learner_side_ns,
    predicted_steps_per_sec,
    seconds_per_step,
    spread_of,
)
from offpolicy.model.windows import CollectorWindow, Elapsed
from offpolicy.timing.histogram import bins_of
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.types import HISTOGRAM_BINS, Account
from tests.unit.model.readings import S, collector, snapshot

MS = 1_000_000


@pytest.mark.parametrize(("mode", "expected"), [("alternate", 75.0), ("overlap", 100.0), ("free", 100.0)])
def test_prediction_adds_turns_up_and_bounds_overlap_by_the_slower_side(mode: str, expected: float) -> None:
    assert bound_steps_per_sec(300.0, 100.0, mode) == pytest.approx(expected)


def test_a_simulated_pipeline_runs_at_the_predicted_rate() -> None:
    """Turns of 2 ms of collecting and 6 ms of learning per env step, 500 of them, on a fake clock."""
    wall_ns, collect_ns, learn_ns = 500 * 8_000_000, 500 * 2_000_000, 500 * 6_000_000
    learner = Account(wall_ns, 1, 500, {LearnerPhase.COLLECTOR_WAIT: collect_ns, LearnerPhase.TRAIN: learn_ns}, 0)
    steps = Account(wall_ns, 1, 500, {CollectorPhase.LEARNER_WAIT: learn_ns, CollectorPhase.ENV_STEP: collect_ns}, 0)
    rates = compute_rates(None, snapshot(4.0, learner, 500, collector(steps, 500)), "alternate")
    assert rates.predicted_steps_per_sec == pytest.approx(rates.steps_per_sec, rel=1e-9)
    overlapped = bound_steps_per_sec(rates.collector_capacity, rates.learner_capacity, "overlap")
    assert overlapped != pytest.approx(rates.steps_per_sec, rel=0.1)


def histogram(*durations_ms: float) -> np.ndarray:
    counts = np.zeros(HISTOGRAM_BINS, np.int64)
    np.add.at(counts, bins_of((np.array(durations_ms) * MS).astype(np.int64)), 1)
    return counts


def test_a_cost_varies_as_the_longest_phase_about_its_mean() -> None:
    """A phase of 4 or 12 ms in iterations of 16 ms: a quarter less or more."""
    counts = np.stack([histogram(*[4.0] * 50, *[12.0] * 50), histogram(*[8.0] * 100)])
    steps = replace(window(100, env_step=800, action_select=799, learner_wait=50), histogram=counts)
    for num_summed, deviation in ((1.0, 0.25), (4.0, 0.125)):  # the mean of four varies half as much
        slices = spread_of(steps, ["learner_wait"], num_summed)
        assert sorted(set(slices.round(2))) == pytest.approx([1 - deviation, 1 + deviation], abs=0.02)
        assert slices.mean() == pytest.approx(1.0)


def costs(*seconds: float) -> list[np.ndarray]:
    """Costs that do not vary."""
    return [np.full(NUM_SLICES, each) for each in seconds]


def test_the_later_of_two_even_costs_is_longer_by_a_third() -> None:
    even = (np.arange(NUM_SLICES) + 0.5) / NUM_SLICES  # E[max] of two uniform numbers is 2/3, of three 3/4
    assert later((even, even)).mean() == pytest.approx(2 / 3, rel=0.01)
    assert later((even, even, even)).mean() == pytest.approx(3 / 4, rel=0.01)
    assert later((even,)) is even
    assert later((even, np.full(NUM_SLICES, 2.0))).mean() == 2.0


@pytest.mark.parametrize(
    ("mode", "num_collectors", "seconds"),
    [
        ("alternate", 1, 1.0),
        ("overlap", 1, 2 / 3),
        ("free", 1, 0.5),
        ("alternate", 2, 0.5 + 2 / 3),  # the learner waits for both
        ("overlap", 2, 3 / 4),
        ("free", 2, 0.5),
    ],
)
def test_what_each_mode_makes_of_costs_that_vary(mode: str, num_collectors: int, seconds: float) -> None:
    even = (np.arange(NUM_SLICES) + 0.5) / NUM_SLICES
    assert seconds_per_step(mode, even, [even] * num_collectors) == pytest.approx(seconds, rel=0.01)


def test_in_free_mode_collectors_share_the_steps() -> None:
    """One of 10 and one of 30 ms per env step of the run, if they did as many: together 15."""
    assert seconds_per_step("free", *costs(0.001), costs(0.010, 0.030)) == pytest.approx(0.015)
    assert seconds_per_step("overlap", *costs(0.001), costs(0.010, 0.030)) == pytest.approx(0.030)


def test_in_free_mode_ranks_wait_for_the_one_whose_collectors_are_slowest() -> None:
    """Rank 0 has collectors 0 and 2, rank 1 has 1 and 3. Each of 10, 30, 10 and 30 ms per env step of the run."""
    collectors = costs(0.010, 0.030) * 2
    assert seconds_per_step("free", *costs(0.001), collectors) == pytest.approx(0.015)
    assert seconds_per_step("free", *costs(0.001), collectors, num_groups=2) == pytest.approx(0.030)
    assert seconds_per_step("free", *costs(0.040), collectors, num_groups=2) == pytest.approx(0.040)


def window(iterations: int, **phases_ms: float) -> Elapsed:
    phases_ns = {name: round(ms * MS) for name, ms in phases_ms.items()}
    wall_ns = sum(phases_ns.values())
    return Elapsed(wall_ns, wall_ns, iterations, phases_ns, 0)


def test_the_side_of_the_learners_is_without_waits_for_collectors_of_any_rank() -> None:
    first = window(1, train=60, rank_barrier=30, collector_wait=10, evaluation=50)
    assert learner_side_ns([first]) == 90 * MS
    waiting = window(1, train=60, rank_barrier=10, collector_wait=30, evaluation=50)  # the first one waits for it
    assert learner_side_ns([first, waiting]) == pytest.approx(70 * MS)
    assert learner_side_ns([first, None]) == 90 * MS
    assert learner_side_ns([]) == learner_side_ns([None]) == 0.0


def test_sides_that_vary_are_predicted_below_the_lesser_capacity() -> None:
    """100 steps, of which half cost the collector 4 ms and half 12; the learner always 8."""
    counts = np.stack([histogram(*[4.0] * 50, *[12.0] * 50), histogram(*[0.0] * 100)])
    steps = CollectorWindow(replace(window(100, env_step=800, learner_wait=0), histogram=counts), 100, 100, 100)
    learner = window(100, train=800)
    assert predicted_steps_per_sec("free", learner, [steps], 125.0) == pytest.approx(125.0)
    assert predicted_steps_per_sec("overlap", learner, [steps], 125.0) == pytest.approx(100.0, rel=0.02)
    assert predicted_steps_per_sec("alternate", learner, [steps], 125.0) == pytest.approx(62.5)
    assert predicted_steps_per_sec("overlap", learner, [steps], None) is None
    assert predicted_steps_per_sec("overlap", learner, [CollectorWindow(None, 1, 1, 1)], 125.0) is None


def varied(phase: str, *durations_ms: float) -> Elapsed:
    """Iterations of one phase that take so long."""
    ns = round(sum(durations_ms) * MS)
    counts = np.stack([histogram(*durations_ms)] * 2)  # of the phase, and of the whole iteration
    return Elapsed(ns, ns, len(durations_ms), {phase: ns}, 0, histogram=counts)


@pytest.mark.parametrize(("num_hosts", "steps_per_sec"), [(1, 200 / 3), (2, 400 / 3)])
def test_ranks_of_other_hosts_have_no_collectors_of_this_one(num_hosts: int, steps_per_sec: float) -> None:
    """Two ranks per host, whose collectors take 10 and 30 ms per env step: the second rank's decide."""
    timed = [Account(S, 1, 100, {CollectorPhase.ENV_STEP: S}, 0) for _ in range(2)]
    collectors = [replace(collector(one, steps), rollouts=1) for one, steps in zip(timed, (100, 33), strict=True)]
    learner = Account(S, 1, 1, {LearnerPhase.TRAIN: S // 1000, LearnerPhase.COLLECTOR_WAIT: S - S // 1000}, 0)
    now = snapshot(1.0, learner, 1, *collectors)
    now = replace(now, learners=now.learners * 2 * num_hosts)
    predicted = compute_rates(None, now, "free", num_hosts).predicted_steps_per_sec
    assert predicted == pytest.approx(steps_per_sec, rel=0.02)
