"""What-ifs: costs per env step, scaled and put together again, with numbers that can be done by hand."""

from __future__ import annotations

import dataclasses

import pytest

from offpolicy.model.throughput import (
    HALVED_UTD,
    ONE_MORE_COLLECTOR,
    TWICE_THE_BATCH,
    Capacities,
    Options,
    Pipeline,
    pipeline_of,
    waterfall,
    what_ifs,
)
from offpolicy.timing.phases import CollectorPhase, LearnerPhase

# Two collectors of 8 ms per env step: I = 250. The learner takes 10 ms: T = 100.
COLLECTOR_S = {CollectorPhase.ENV_STEP: 0.006, CollectorPhase.ACTION_SELECT: 0.002}
REPLAY = Options(has_replay=True, updates=4.0, most_updates=64, epochs=2, may_add_collector=True)
LEARNER_S = {LearnerPhase.TRAIN: 0.008, LearnerPhase.REPLAY_SAMPLE: 0.001, LearnerPhase.WEIGHT_PUBLISH: 0.001}


def pipeline(mode: str = "overlap") -> Pipeline:
    return Pipeline(COLLECTOR_S, LEARNER_S, num_collectors=2, mode=mode)


def predicted(change: str, mode: str = "overlap", *, has_replay: bool = True) -> float:
    return dict(what_ifs(pipeline(mode), dataclasses.replace(REPLAY, has_replay=has_replay)))[change].steps_per_sec


def test_costs_make_capacities_and_the_mode_joins_them() -> None:
    assert pipeline().collector_capacity == pytest.approx(250.0)
    assert pipeline().learner_capacity == pytest.approx(100.0)
    assert pipeline("overlap").steps_per_sec == pytest.approx(100.0)
    assert pipeline("free").steps_per_sec == pytest.approx(100.0)
    assert pipeline("alternate").steps_per_sec == pytest.approx(1.0 / (1.0 / 250.0 + 1.0 / 100.0))


def test_the_costs_of_an_account_are_its_shares_of_the_measured_capacities() -> None:
    collector = {"env_step": 75.0, "action_select": 25.0, "learner_wait": 900.0}
    learner = {"train": 8.0, "replay_sample": 1.0, "weight_publish": 1.0, "collector_wait": 50.0, "evaluation": 30.0}
    found = pipeline_of(collector, learner, Capacities(250.0, 100.0), 2, "overlap")
    assert found.collector_s == pytest.approx({"env_step": 0.006, "action_select": 0.002})
    assert found.learner_s == pytest.approx({"train": 0.008, "replay_sample": 0.001, "weight_publish": 0.001})


def test_a_faster_phase_helps_only_the_side_that_bounds_the_run() -> None:
    assert predicted("env_step 20 % faster") == pytest.approx(100.0)
    assert predicted("train 20 % faster") == pytest.approx(1.0 / 0.0084)
    assert predicted("env_step 20 % faster", "alternate") == pytest.approx(1.0 / (0.0068 / 2 + 0.010))


def test_the_ratio_of_updates_scales_what_an_update_costs_and_not_the_publication() -> None:
    assert predicted(HALVED_UTD) == pytest.approx(1.0 / 0.0055)
    assert predicted(TWICE_THE_BATCH) == pytest.approx(1.0 / 0.019)


def test_one_more_collector_adds_its_share() -> None:
    slow_collectors = Pipeline({CollectorPhase.ENV_STEP: 0.040}, LEARNER_S, 2, "overlap")
    found = dict(what_ifs(slow_collectors, REPLAY))
    assert slow_collectors.steps_per_sec == pytest.approx(50.0)
    assert found[ONE_MORE_COLLECTOR].steps_per_sec == pytest.approx(75.0)


# -- shared cores, ranks and packing -----------------------------------------------------------------------------------


# -- the waterfall ----------------------------------------------------------------------------------------------------

S = 1_000_000_000


def test_a_run_that_does_what_it_could_loses_nothing() -> None:
    losses = waterfall(400.0, 100.0, "overlap", 100.0, {"train": S})
    assert losses == [("min(I, T)", 100.0), ("the rest", 100.0)]


def test_turns_and_pauses_take_their_shares() -> None:
    """Of 10 ms per env step: 4 collecting, 4 learning, 2 evaluating."""
    phases = {"collector_wait": 4 * S, "train": 4 * S, "evaluation": 2 * S}
    losses = waterfall(250.0, 250.0, "alternate", 100.0, phases)
    assert [cause for cause, _ in losses] == ["min(I, T)", "taking turns", "evaluation", "the rest"]
    assert [rate for _, rate in losses] == pytest.approx([250.0, 125.0, 100.0, 100.0])


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
