"""What-ifs: costs per env step, scaled and put together again, with numbers that can be done by hand."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.timing.throughput import NUM_SLICES
from offpolicy.timing.what_if import (
    HALVED_EPOCHS,
    HALVED_UTD,
    ONE_MORE_COLLECTOR,
    TWICE_THE_BATCH,
    Capacities,
    Cores,
    Options,
    Pipeline,
    cores_of,
    flip_delay_s,
    pipeline_of,
    waterfall,
    what_ifs,
)

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


def test_a_side_that_only_waited_cannot_be_scaled() -> None:
    with pytest.raises(ValueError, match="without active time"):
        pipeline_of({"learner_wait": 1.0}, {"train": 1.0}, Capacities(1.0, 1.0), 1, "overlap")


def test_a_faster_phase_helps_only_the_side_that_bounds_the_run() -> None:
    assert predicted("env_step 20 % faster") == pytest.approx(100.0)
    assert predicted("train 20 % faster") == pytest.approx(1.0 / 0.0084)
    assert predicted("env_step 20 % faster", "alternate") == pytest.approx(1.0 / (0.0068 / 2 + 0.010))


def test_the_ratio_of_updates_scales_what_an_update_costs_and_not_the_publication() -> None:
    assert predicted(HALVED_UTD) == pytest.approx(1.0 / 0.0055)
    assert predicted(TWICE_THE_BATCH) == pytest.approx(1.0 / 0.019)


def test_with_one_update_per_iteration_there_are_fewer_iterations_and_publications() -> None:
    one = dataclasses.replace(REPLAY, updates=1.0)
    collector = {**COLLECTOR_S, CollectorPhase.WEIGHT_APPLY: 0.001}
    found = dict(what_ifs(Pipeline(collector, LEARNER_S, 2, "overlap"), one))[HALVED_UTD]
    assert found.learner_capacity == pytest.approx(200.0)
    assert found.collector_capacity == pytest.approx(2 / 0.0085)


@pytest.mark.parametrize(
    ("updates", "iterations", "applied"),
    [
        (1.5, 0.75, 0.75),  # one iteration per vector step, then three for four of them
        (64.0, 1.0, 1.0),
        (100.0, 0.5, 1.0),  # of 64 and 36 updates, then one of 50
        (256.0, 0.5, 1.0),
        (320.0, 0.6, 1.0),  # five full iterations, then two full ones and a half
    ],
)
def test_half_the_updates_need_fewer_iterations_where_one_cannot_hold_them(
    updates: float, iterations: float, applied: float
) -> None:
    options = dataclasses.replace(REPLAY, updates=updates)
    collector = {**COLLECTOR_S, CollectorPhase.WEIGHT_APPLY: 0.001}
    learner = {**LEARNER_S, LearnerPhase.LOG: 0.002, LearnerPhase.OTHER: 0.003}
    found = dict(what_ifs(Pipeline(collector, learner, 2, "overlap"), options))[HALVED_UTD]
    assert found.learner_s == pytest.approx({
        "train": 0.004, "replay_sample": 0.0005,
        "weight_publish": 0.001 * iterations, "log": 0.002 * iterations, "other": 0.003 * iterations,
    })  # fmt: skip
    assert found.collector_s[CollectorPhase.WEIGHT_APPLY] == pytest.approx(0.001 * applied)


def test_what_cannot_be_is_not_offered() -> None:
    odd = Options(has_replay=False, updates=1.0, most_updates=64, epochs=3, may_add_collector=False)
    changes = {what_if.change for what_if in what_ifs(pipeline(), odd)}
    assert not {ONE_MORE_COLLECTOR, HALVED_EPOCHS} & changes


def test_one_more_collector_adds_its_share() -> None:
    slow_collectors = Pipeline({CollectorPhase.ENV_STEP: 0.040}, LEARNER_S, 2, "overlap")
    found = dict(what_ifs(slow_collectors, REPLAY))
    assert slow_collectors.steps_per_sec == pytest.approx(50.0)
    assert found[ONE_MORE_COLLECTOR].steps_per_sec == pytest.approx(75.0)


def test_other_modes_are_offered_and_not_the_one_that_runs() -> None:
    def modes(mode: str) -> set[str]:
        return {w.change for w in what_ifs(pipeline(mode), REPLAY) if w.change.startswith("collect.mode")}

    assert modes("alternate") == {"collect.mode=overlap"}
    assert modes("overlap") == modes("free") == {"collect.mode=alternate"}
    assert predicted("collect.mode=overlap", "alternate") == pytest.approx(100.0)


def test_without_a_replay_there_is_no_ratio_and_no_batch() -> None:
    changes = {what_if.change for what_if in what_ifs(pipeline(), dataclasses.replace(REPLAY, has_replay=False))}
    assert not {HALVED_UTD, TWICE_THE_BATCH} & changes
    assert predicted(HALVED_EPOCHS, has_replay=False) == pytest.approx(1.0 / 0.006)


def test_at_the_flip_both_sides_can_do_the_same() -> None:
    delay_s = flip_delay_s(pipeline())
    assert delay_s == pytest.approx(2 * (0.010 - 0.004))
    env_step_s = COLLECTOR_S[CollectorPhase.ENV_STEP]
    at_the_flip = pipeline().scaled({CollectorPhase.ENV_STEP: 1.0 + delay_s / env_step_s})
    assert at_the_flip.collector_capacity == pytest.approx(at_the_flip.learner_capacity)
    assert flip_delay_s(Pipeline(COLLECTOR_S, {LearnerPhase.TRAIN: 0.001}, 2, "overlap")) == pytest.approx(-0.006)


# -- shared cores, ranks and packing -----------------------------------------------------------------------------------


def test_waits_for_ranks_grow_with_the_work_and_packing_does_not_shrink_with_it() -> None:
    """10 ms per env step, of which the ranks wait 2 ms for each other; or 2 ms for the packing thread."""
    collector, measured = {"env_step": 1.0}, Capacities(1000.0, 100.0)
    ranks = pipeline_of(collector, {"train": 8.0, "rank_barrier": 2.0, "collector_wait": 9.0}, measured, 1, "free")
    assert ranks.steps_per_sec == pytest.approx(100.0)
    assert ranks.scaled({"train": 0.5}).steps_per_sec == pytest.approx(200.0)
    packed = pipeline_of(collector, {"train": 8.0, "replay_batch_wait": 2.0}, measured, 1, "free")
    assert packed.steps_per_sec == pytest.approx(100.0)
    assert packed.scaled({"train": 0.5}).steps_per_sec == pytest.approx(100.0)
    assert packed.scaled({"train": 2.0}).steps_per_sec == pytest.approx(1.0 / 0.016)
    assert packed.own_learner_capacity == pytest.approx(125.0)


def on_cores(count: float, threads: int, **changes: Any) -> Pipeline:
    """One collector of 2 ms and a learner of 8 ms, in turns; with one thread less the learner takes 4 ms more."""
    cores = Cores(count, threads, extra_s={threads: 0.0, threads - 1: 0.004}, **changes)
    return Pipeline({"env_step": 0.002}, {"train": 0.008}, 1, "alternate", cores=cores)


def test_a_learner_with_all_the_cores_gains_nothing_by_overlapping() -> None:
    now = on_cores(2.0, 2)
    assert (now.steps_per_sec, now.overlapped().steps_per_sec) == pytest.approx((100.0, 100.0))
    assert now.overlapped().measured_mode == "alternate"
    assert on_cores(2.5, 2).overlapped().steps_per_sec == pytest.approx(1.0 / 0.009)
    assert on_cores(3.0, 2).overlapped().steps_per_sec == pytest.approx(125.0)


def test_with_a_choice_of_threads_the_best_number_counts() -> None:
    """Alone on two cores one thread takes 12 ms, with two threads both take turns: 10 ms."""
    choice = dataclasses.replace(on_cores(2.0, 2), threads=(1, 2))
    assert (choice.steps_per_sec, choice.overlapped().steps_per_sec) == pytest.approx((100.0, 100.0))
    slow_steps = dataclasses.replace(choice, collector_s={"env_step": 0.012})
    assert slow_steps.steps_per_sec == pytest.approx(50.0)
    assert slow_steps.overlapped().steps_per_sec == pytest.approx(1.0 / 0.012)


def test_both_sides_are_slower_beside_each_other() -> None:
    now = on_cores(3.0, 2, beside_factor=1.25)
    assert now.overlapped().steps_per_sec == pytest.approx(100.0)
    back = dataclasses.replace(now, mode="alternate", measured_mode="overlap")  # what was measured holds it already
    assert back.steps_per_sec == pytest.approx(125.0)
    assert dataclasses.replace(now, mode="overlap").steps_per_sec == pytest.approx(125.0)


def test_a_collector_that_takes_the_learners_core_does_not_slow_it_down_beside_it_as_well() -> None:
    assert on_cores(2.0, 2, beside_factor=1.25).overlapped().steps_per_sec == pytest.approx(100.0)
    half = 1.0 / (1.125 * 0.008 + 0.5 * 1.125 * 0.002)  # half of the time on the learner's cores, half beside them
    assert on_cores(2.5, 2, beside_factor=1.25).overlapped().steps_per_sec == pytest.approx(half)


def test_what_varies_is_slower_in_overlap_than_in_free_mode() -> None:
    """A side of 5 or 15 ms beside one of 10: the later one takes 12.5 ms on average."""
    uneven = np.repeat([0.5, 1.5], NUM_SLICES // 2)
    now = Pipeline({"env_step": 0.010}, {"train": 0.010}, 1, "overlap", learner_spread=uneven)
    assert now.steps_per_sec == pytest.approx(80.0)
    assert dataclasses.replace(now, mode="free").steps_per_sec == pytest.approx(100.0)


def test_no_collector_is_added_and_no_thread_tried_where_there_is_no_core() -> None:
    threads = dataclasses.replace(REPLAY, thread_numbers=(1,))
    full = {what_if.change: what_if.pipeline for what_if in what_ifs(on_cores(2.0, 2), threads)}
    assert ONE_MORE_COLLECTOR not in full
    assert full["threads.learner=1"].steps_per_sec == pytest.approx(1.0 / 0.014)
    assert full["threads.learner=1"].learner_capacity == pytest.approx(1.0 / 0.012), "T was that of the present number"
    assert ONE_MORE_COLLECTOR in {what_if.change for what_if in what_ifs(on_cores(4.0, 2), threads)}


def test_the_cores_of_a_host_are_shared_by_its_own_collectors() -> None:
    """Two hosts of four cores, each with a rank of two threads and two collectors."""
    cores = Cores(4.0, 2, num_hosts=2)
    assert cores.crowding(2, 4) == 0.0
    assert cores.crowding(4, 4) == 1.0
    assert Cores(4.0, 2).crowding(2, 4) == 0.5


def test_several_ranks_of_a_host_leave_fewer_cores_to_its_collectors() -> None:
    assert Cores(4.0, 2, num_ranks=2).crowding(2, 1) == 1.0
    assert Cores(5.0, 2, num_ranks=2).crowding(2, 1) == 0.0


def test_a_collector_is_added_only_where_it_has_a_core_as_well() -> None:
    """Two threads and one collector have all three cores."""
    assert ONE_MORE_COLLECTOR not in {what_if.change for what_if in what_ifs(on_cores(3.0, 2), REPLAY)}


def test_packing_takes_as_long_as_its_updates_and_rows_ask_for() -> None:
    learner = {"train": 2.0, "replay_batch_wait": 8.0}
    packed = pipeline_of({"env_step": 1.0}, learner, Capacities(1000.0, 10.0), 1, "free")
    found = {what_if.change: what_if.pipeline.steps_per_sec for what_if in what_ifs(packed, REPLAY)}
    assert found[HALVED_UTD] == pytest.approx(20.0)
    assert found[TWICE_THE_BATCH] == pytest.approx(5.0)
    assert found["train 20 % faster"] == pytest.approx(10.0)


def test_a_learner_with_more_threads_is_no_faster_than_packing() -> None:
    cores = Cores(8.0, 1, extra_s={1: 0.0, 2: -0.004})
    now = Pipeline({"env_step": 0.001}, {"train": 0.008}, 1, "free", packer_s=0.007, cores=cores, threads=(2,))
    assert now.steps_per_sec == pytest.approx(1.0 / 0.007)
    assert dataclasses.replace(now, packer_s=0.0).steps_per_sec == pytest.approx(1.0 / 0.004)


def test_a_wait_for_packed_batches_that_is_hardly_noticed_does_not_bound_the_learner() -> None:
    learner = {"train": 99.0, "replay_batch_wait": 1.0}
    packed = pipeline_of({"env_step": 1.0}, learner, Capacities(10_000.0, 100.0), 1, "free")
    assert packed.scaled({"train": 0.5}).steps_per_sec == pytest.approx(2.0 / 0.0099)


def test_seconds_by_threads_are_held_against_the_present_number() -> None:
    assert cores_of(2.0, 2, 1, 1, {1: 0.012, 2: 0.008}, 1.0).extra_s == pytest.approx({1: 0.004, 2: 0.0})
    assert cores_of(2.0, 3, 1, 1, {1: 0.012, 2: 0.008}, 1.0).extra_s == {}


def test_a_pipeline_is_the_same_after_it_was_json() -> None:
    now = dataclasses.replace(on_cores(2.0, 2), threads=(1, 2), learner_spread=np.linspace(0.5, 1.5, NUM_SLICES))
    again = Pipeline.from_mapping(json.loads(json.dumps(now.to_mapping())))
    assert again.to_mapping() == now.to_mapping()
    assert again.overlapped().steps_per_sec == now.overlapped().steps_per_sec
    assert Pipeline.from_mapping(json.loads(json.dumps(pipeline().to_mapping()))).cores is None


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


def test_waits_of_the_faster_learner_are_hidden() -> None:
    phases = {"train": 5 * S, "rank_barrier": 2 * S, "collector_wait": 3 * S}
    assert "rank_barrier" not in dict(waterfall(100.0, 200.0, "overlap", 100.0, phases))


def test_the_sum_of_the_costs_is_the_time_per_env_step() -> None:
    phases = {"train": 50, "rank_barrier": 3, "checkpoint": 7, "evaluation": 11, "collector_wait": 29}
    rates = [rate for _, rate in waterfall(300.0, 120.0, "free", 55.0, phases)]
    costs = [1.0 / rates[0], *(1.0 / after - 1.0 / before for before, after in zip(rates, rates[1:], strict=False))]
    assert sum(costs) == pytest.approx(1.0 / 55.0, rel=1e-12)
    assert costs[1:4] == pytest.approx([0.03 / 55.0, 0.11 / 55.0, 0.07 / 55.0])


@pytest.mark.parametrize(("phases", "collector"), [({}, 100.0), ({"train": 0}, 100.0), ({"train": 9}, 0.0)])
def test_without_an_account_there_is_no_waterfall(phases: dict[str, int], collector: float) -> None:
    with pytest.raises(ValueError, match="a waterfall needs"):
        waterfall(collector, 100.0, "overlap", 50.0, phases)


def test_a_batch_that_loses_its_threads_to_the_learner_steps_more_slowly() -> None:
    now = dataclasses.replace(pipeline("alternate"), env_step_factors={"overlap": 2.0})
    assert now.collector_capacity == pytest.approx(250.0)
    then = dict(what_ifs(now, REPLAY))["collect.mode=overlap"]
    assert then.collector_capacity == pytest.approx(2.0 / 0.014)
    assert now.overlapped().collector_capacity == then.collector_capacity
    back = dataclasses.replace(now, mode="overlap")  # measured so: the cost is in it already
    assert back.collector_capacity == pytest.approx(250.0)
    assert Pipeline.from_mapping(json.loads(json.dumps(now.to_mapping()))).env_step_factors == {"overlap": 2.0}
