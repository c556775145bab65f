from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from offpolicy.model.throughput import (
    HALVED_UTD,
    NUM_SLICES,
    ONE_MORE_COLLECTOR,
    TWICE_THE_BATCH,
    Capacities,
    Options,
    Pipeline,
    bound_steps_per_sec,
    later,
    learner_side_ns,
    pipeline_of,
    predicted_steps_per_sec,
    seconds_per_step,
    spread_of,
    waterfall,
    what_ifs,
)
from offpolicy.model.windows import CollectorWindow, Elapsed
from offpolicy.timing.histogram import bins_of
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.types import HISTOGRAM_BINS
from tests.unit.model.readings import S

MS = 1_000_000


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


# Two collectors of 8 ms per env step: I = 250. The learner takes 10 ms: T = 100.
COLLECTOR_S = {CollectorPhase.ENV_STEP: 0.006, CollectorPhase.ACTION_SELECT: 0.002}
REPLAY = Options(has_replay=True, updates=4.0, most_updates=64, epochs=2, may_add_collector=True)
LEARNER_S = {LearnerPhase.TRAIN: 0.008, LearnerPhase.REPLAY_SAMPLE: 0.001, LearnerPhase.WEIGHT_PUBLISH: 0.001}


def pipeline(mode: str = "overlap") -> Pipeline:
    return Pipeline(COLLECTOR_S, LEARNER_S, num_collectors=2, mode=mode)


def predicted(change: str, mode: str = "overlap") -> float:
    return dict(what_ifs(pipeline(mode), REPLAY))[change].steps_per_sec


def test_the_costs_of_an_account_are_its_shares_of_the_measured_capacities() -> None:
    collector = {"env_step": 75.0, "action_select": 25.0, "learner_wait": 900.0}
    learner = {"train": 8.0, "replay_sample": 1.0, "weight_publish": 1.0, "collector_wait": 50.0, "evaluation": 30.0}
    found = pipeline_of(collector, learner, Capacities(250.0, 100.0), 2, "overlap")
    assert found.collector_s == pytest.approx({"env_step": 0.006, "action_select": 0.002})
    assert found.learner_s == pytest.approx({"train": 0.008, "replay_sample": 0.001, "weight_publish": 0.001})


def test_waits_of_the_slower_learner_add_up() -> None:
    phases = {"train": 5 * S, "rank_barrier": 2 * S, "replay_batch_wait": 1 * S, "collector_wait": 2 * S}
    losses = dict(waterfall(1000.0, 200.0, "overlap", 100.0, phases))
    assert losses["replay_batch_wait"] == pytest.approx(1 / (0.005 + 0.001))
    assert losses["rank_barrier"] == pytest.approx(1 / (0.005 + 0.001 + 0.002))
    assert losses["the rest"] == 100.0


def test_the_sum_of_the_costs_is_the_time_per_env_step() -> None:
    phases = {"train": 50, "rank_barrier": 3, "checkpoint": 7, "evaluation": 11, "collector_wait": 29}
    rates = [rate for _, rate in waterfall(300.0, 120.0, "free", 55.0, phases)]
    costs = [1.0 / rates[0], *(1.0 / after - 1.0 / before for before, after in zip(rates, rates[1:], strict=False))]
    assert sum(costs) == pytest.approx(1.0 / 55.0, rel=1e-12)
    assert costs[1:4] == pytest.approx([0.03 / 55.0, 0.11 / 55.0, 0.07 / 55.0])


def test_costs_make_capacities_the_mode_joins_them_and_a_change_helps_the_side_that_bounds_the_run() -> None:
    assert (pipeline().collector_capacity, pipeline().learner_capacity) == pytest.approx((250.0, 100.0))
    for mode, expected in (("overlap", 100.0), ("free", 100.0), ("alternate", 1.0 / (1.0 / 250.0 + 1.0 / 100.0))):
        assert pipeline(mode).steps_per_sec == pytest.approx(expected)
        assert bound_steps_per_sec(250.0, 100.0, mode) == pytest.approx(expected)
    assert predicted("env_step 20 % faster") == pytest.approx(100.0)
    assert predicted("train 20 % faster") == pytest.approx(1.0 / 0.0084)
    assert predicted("env_step 20 % faster", "alternate") == pytest.approx(1.0 / (0.0068 / 2 + 0.010))
    assert predicted(HALVED_UTD) == pytest.approx(1.0 / 0.0055)
    assert predicted(TWICE_THE_BATCH) == pytest.approx(1.0 / 0.019)
    slow_collectors = Pipeline({CollectorPhase.ENV_STEP: 0.040}, LEARNER_S, 2, "overlap")
    assert slow_collectors.steps_per_sec == pytest.approx(50.0)
    assert dict(what_ifs(slow_collectors, REPLAY))[ONE_MORE_COLLECTOR].steps_per_sec == pytest.approx(75.0)
