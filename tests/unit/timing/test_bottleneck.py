from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from offpolicy.config.schema import all_keys
from offpolicy.timing.bottleneck import (
    COLLECTOR_ADVICE,
    DETAIL_ADVICE,
    LEARNER_ADVICE,
    ROLLOUT_ADVICE,
    WARMING_UP,
    Advice,
    Bottleneck,
    Cause,
    Detail,
    SteadyCause,
    WindowEvidence,
    find_bottleneck,
)
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.timing.rates import Rates
from offpolicy.timing.throughput import bound_steps_per_sec
from offpolicy.types import Lateness


def rates(collector: float | None = None, learner: float | None = None, mode: str = "overlap") -> Rates:
    return Rates(100.0, 100.0, collector, 0.01, learner, 1.0, bound_steps_per_sec(collector, learner, mode))


def test_a_learner_that_never_waits_is_the_bottleneck() -> None:
    verdict = find_bottleneck(
        {"collector_wait": 1, "train": 94, "other": 5}, {"learner_wait": 90, "env_step": 10}, rates(), "overlap"
    )
    assert (verdict.bottleneck, verdict.phase, verdict.label) == ("learner", "train", "learner(train 94%)")


def test_a_collector_that_never_waits_is_the_bottleneck() -> None:
    verdict = find_bottleneck(
        {"collector_wait": 70, "train": 30}, {"learner_wait": 2, "env_step": 80, "action_select": 18}, rates(), "free"
    )
    assert (verdict.bottleneck, verdict.phase, verdict.label) == ("collector", "env_step", "collector(env_step 80%)")


def test_in_turns_the_longer_turn_is_the_bottleneck() -> None:
    verdict = find_bottleneck(
        {"collector_wait": 60, "train": 40}, {"learner_wait": 40, "action_select": 60}, rates(), "alternate"
    )
    assert (verdict.bottleneck, verdict.phase) == ("collector", "action_select")


def test_equal_sides_are_balanced() -> None:
    verdict = find_bottleneck(
        {"collector_wait": 49, "train": 51}, {"learner_wait": 51, "env_step": 49}, rates(), "alternate"
    )
    assert verdict.bottleneck == "balanced"


@pytest.mark.parametrize(("own", "side"), [(110, "collector"), (103, "balanced"), (97, "balanced"), (90, "learner")])
def test_a_tenth_more_is_no_balance(own: int, side: str) -> None:
    """Of the delay that equals the sides, nine tenths leave the learner to blame and eleven the collector."""
    learner = {"collector_wait": max(own - 100, 0), "train": 100}
    collector = {"learner_wait": max(100 - own, 0), "env_step": own}
    assert find_bottleneck(learner, collector, rates(), "overlap").bottleneck == side


def test_the_learners_own_wait_for_batches_is_the_learners_fault() -> None:
    learner = {"collector_wait": 0, "replay_batch_wait": 60, "train": 40}
    verdict = find_bottleneck(learner, {"learner_wait": 80, "env_step": 20}, rates(), "overlap")
    assert (verdict.bottleneck, verdict.phase) == ("learner", "replay_batch_wait")


def test_without_time_on_either_side_it_is_warming_up() -> None:
    verdict = find_bottleneck({}, {"env_step": 10}, rates(), "alternate")
    assert (verdict.bottleneck, verdict.phase, verdict.label, verdict.advice) == ("warming up", None, "warming up", ())


IN_TURNS = ({"collector_wait": 25, "train": 75}, {"learner_wait": 75, "env_step": 25})


def test_overlapping_is_advised_where_turns_cost_more_than_five_percent() -> None:
    in_turns = rates(300.0, 100.0, "alternate")
    verdict = find_bottleneck(*IN_TURNS, in_turns, "alternate", WindowEvidence(overlap_gain=1.2))
    text = "collect.mode=auto: about 90 instead of 75 env steps/s"
    assert verdict.advice[0] == Advice(text, "collect.mode", "auto")
    unsure = WindowEvidence(overlap_gain=1.2, prediction_error=0.08)
    assert find_bottleneck(*IN_TURNS, in_turns, "alternate", unsure).advice[0].text == (
        "collect.mode=auto: about 90 (+-8%) instead of 75 env steps/s"
    )


@pytest.mark.parametrize(("gain", "error"), [(1.05, 0.0), (1.05, 0.04), (1.2, 0.2)])
def test_overlapping_is_advised_from_the_least_gain_on(gain: float, error: float) -> None:
    evidence = WindowEvidence(overlap_gain=gain, prediction_error=error)
    verdict = find_bottleneck(*IN_TURNS, rates(300.0, 100.0, "alternate"), "alternate", evidence)
    assert verdict.advice[0].key == "collect.mode"


@pytest.mark.parametrize(
    ("gain", "error", "mode"),
    [(1.04, 0.0, "alternate"), (1.2, 0.25, "alternate"), (1.0, 0.0, "overlap"), (1.2, 0.0, "free")],
)
def test_overlapping_is_not_advised_where_it_may_gain_nothing(gain: float, error: float, mode: str) -> None:
    evidence = WindowEvidence(overlap_gain=gain, prediction_error=error)
    verdict = find_bottleneck(*IN_TURNS, rates(300.0, 100.0, mode), mode, evidence)
    assert "collect.mode" not in {advice.key for advice in verdict.advice}


def test_the_reason_states_both_sides_and_both_capacities() -> None:
    verdict = find_bottleneck(
        {"collector_wait": 5, "train": 95}, {"learner_wait": 90, "env_step": 10}, rates(4100.0, 155.0), "overlap"
    )
    assert verdict.reason == (
        "at the same time, the learner is busy 95% and the collector 10% of the time;"
        " learner train takes 95% (I=4100, T=155 env steps/s)"
    )


def test_a_wait_for_a_rank_that_waits_for_its_collectors_is_not_the_learners_fault() -> None:
    """Rank 0 has its rollouts and waits for rank 1, which waits for its own."""
    learner, collectors = {"rank_barrier": 75, "train": 25}, {"learner_wait": 30, "env_step": 70}
    assert find_bottleneck(learner, collectors, rates(), "free").phase == "rank_barrier"
    verdict = find_bottleneck(learner, collectors, rates(), "free", WindowEvidence(longest_wait=0.75))
    assert verdict.label == "collector(env_step 70%)"


LATE = WindowEvidence(straggler=Lateness(rank=3, ms=4.25, share=0.92))


def test_a_wait_for_ranks_names_the_rank_that_is_late_by_how_much_and_how_often() -> None:
    verdict = find_bottleneck({"rank_barrier": 60, "train": 40}, {"learner_wait": 9}, rates(), "overlap", LATE)
    assert verdict.reason == (
        "at the same time, the learner is busy 100% and the collector 0% of the time;"
        " learner rank_barrier takes 60%: rank 3 arrives 4.2 ms late, in 92% of the iterations"
    )
    assert verdict.advice[0].text.startswith("rank 3 arrives late: ")
    assert verdict.advice[1:] == LEARNER_ADVICE[LearnerPhase.RANK_BARRIER]


def test_a_wait_for_ranks_of_which_none_is_late_names_none() -> None:
    verdict = find_bottleneck({"rank_barrier": 60, "train": 40}, {"learner_wait": 9}, rates(), "overlap")
    assert verdict.reason.endswith("rank_barrier takes 60%")
    assert verdict.advice == LEARNER_ADVICE[LearnerPhase.RANK_BARRIER]


def test_a_late_rank_is_not_named_where_something_else_takes_longer() -> None:
    verdict = find_bottleneck({"rank_barrier": 40, "train": 60}, {"learner_wait": 9}, rates(), "overlap", LATE)
    assert "rank 3" not in f"{verdict.reason} {verdict.advice}"


@pytest.mark.parametrize("phase", [LearnerPhase.RANK_BARRIER, LearnerPhase.PARAM_SYNC])
def test_ranks_that_cost_too_much_are_advised_to_exchange_seldom_or_to_be_fewer(phase: LearnerPhase) -> None:
    advice = find_bottleneck({phase: 9}, {"learner_wait": 9}, rates(), "overlap").advice
    assert [one.text.partition(":")[0] for one in advice] == ["runner.sync=parameters", "lower runner.world_size"]
    assert "runner.sync_every" in advice[0].text


def test_a_wait_for_packed_batches_is_advised_to_keep_the_rows_on_the_device() -> None:
    advice = find_bottleneck({"replay_batch_wait": 9}, {"learner_wait": 9}, rates(), "overlap").advice
    assert (advice[0].key, advice[0].value) == ("replay.source", "resident")
    assert "replay.slots" in advice[1].text


@pytest.mark.parametrize("phase", [phase for phase in LearnerPhase if phase != LearnerPhase.COLLECTOR_WAIT])
def test_every_learner_phase_has_advice(phase: LearnerPhase) -> None:
    assert find_bottleneck({phase: 9}, {"learner_wait": 9}, rates(), "overlap").advice == LEARNER_ADVICE[phase]


def test_rollouts_are_advised_nothing_that_only_a_replay_has() -> None:
    texts = [advice.text for several in ROLLOUT_ADVICE.values() for advice in several]
    assert len(texts) > 10
    assert not [text for text in texts if re.search(r"replay|algo\.(batch_size|utd)|double_buffer", text)]


@pytest.mark.parametrize("phase", [phase for phase in CollectorPhase if phase != CollectorPhase.LEARNER_WAIT])
def test_every_collector_phase_has_advice(phase: CollectorPhase) -> None:
    assert find_bottleneck({"collector_wait": 9}, {phase: 9}, rates(), "overlap").advice == COLLECTOR_ADVICE[phase]


@pytest.mark.parametrize("table", [LEARNER_ADVICE, ROLLOUT_ADVICE, COLLECTOR_ADVICE, DETAIL_ADVICE])
def test_advice_names_only_configuration_keys(table: Mapping[str, tuple[Advice, ...]]) -> None:
    lines = [advice for several in table.values() for advice in several]
    named = {key for advice in lines for key in re.findall(r"\b[a-z]+\.[a-z_]+\b", advice.text)}
    named |= {advice.key for advice in lines if advice.key is not None}
    assert len(named) >= 3
    assert named <= set(all_keys())


def test_the_text_of_a_setting_begins_with_it() -> None:
    settings = [advice for several in LEARNER_ADVICE.values() for advice in several if advice.value is not None]
    assert {advice.text.partition(":")[0] for advice in settings} == {
        *("device=cuda", "device=cpu", "replay.source=resident", "runner.sync=parameters", "collect.mode=free"),
        *("checkpoint.replay=false", "eval.beside=true", "runner=double_buffer", "threads.learner=auto"),
        "replay.source=prefetch",
    }


STARVED = ({"collector_wait": 10, "train": 90}, {"learner_wait": 80, "env_step": 20})


def test_a_side_that_was_not_given_a_core_is_not_to_blame() -> None:
    verdict = find_bottleneck(*STARVED, rates(), "overlap", WindowEvidence(learner_descheduled=0.4))
    assert (verdict.bottleneck, verdict.phase) == ("contention", "train")
    assert verdict.label == "contention(train: descheduled 40%)"
    assert verdict.reason.startswith("the learner could have run and was not given a core for 40% of the time; ")
    assert verdict.advice[0].text.startswith("top: ")


@pytest.mark.parametrize("can_lower", [True, False])
def test_collectors_are_to_be_lowered_only_where_they_can_be(can_lower: bool) -> None:  # noqa: FBT001
    evidence = WindowEvidence(learner_descheduled=0.4, can_lower_collectors=can_lower)
    texts = [advice.text for advice in find_bottleneck(*STARVED, rates(), "overlap", evidence).advice]
    assert any(text.startswith("lower threads.collector") for text in texts) == can_lower


def test_the_other_sides_want_of_a_core_bounds_nothing() -> None:
    assert (
        find_bottleneck(*STARVED, rates(), "overlap", WindowEvidence(collector_descheduled=0.9)).bottleneck == "learner"
    )
    assert (
        find_bottleneck(*STARVED, rates(), "overlap", WindowEvidence(learner_descheduled=0.2)).bottleneck == "learner"
    )


def test_resets_are_named_where_they_are_most_of_the_steps() -> None:
    sides = {"collector_wait": 70, "train": 30}, {"learner_wait": 0, "env_step": 90, "other": 10}
    verdict = find_bottleneck(*sides, rates(), "overlap", WindowEvidence(resets=0.8))
    assert (verdict.bottleneck, verdict.phase, verdict.detail) == ("collector", "env_step", "resets")
    assert verdict.label == "collector(env_step: resets 72%)"
    assert "80% of it because environments are reset" in verdict.reason
    assert find_bottleneck(*sides, rates(), "overlap", WindowEvidence(resets=0.4)).label == "collector(env_step 90%)"


def test_a_device_that_waits_for_launches_is_named() -> None:
    verdict = find_bottleneck(*STARVED, rates(), "overlap", WindowEvidence(launch_bound=0.8))
    assert verdict.label == "learner(train: launch-bound 90%)"
    assert "in 80% of the iterations the device waited for launches" in verdict.reason
    assert find_bottleneck(*STARVED, rates(), "overlap", WindowEvidence(launch_bound=0.1)).label == "learner(train 90%)"


def test_an_update_that_waits_for_another_thread_is_named() -> None:
    verdict = find_bottleneck(*STARVED, rates(), "overlap", WindowEvidence(train_blocked=0.4))
    assert verdict.label == "learner(train: blocked 36%)"  # of the wall: 40 % of 90 %
    assert "40% of it waits for another thread" in verdict.reason
    seldom = find_bottleneck(*STARVED, rates(), "overlap", WindowEvidence(train_blocked=0.2))
    assert seldom.label == "learner(train 90%)"


@pytest.mark.parametrize(
    ("field", "least", "detail"),
    [
        ("learner_descheduled", 0.25, Detail.DESCHEDULED),
        ("launch_bound", 0.5, Detail.LAUNCH_BOUND),
        ("train_blocked", 0.25, Detail.BLOCKED),
    ],
)
def test_a_detail_of_the_update_is_named_from_its_least_share_on(field: str, least: float, detail: Detail) -> None:
    at, below = (WindowEvidence(**{field: share}) for share in (least, least - 0.001))
    assert find_bottleneck(*STARVED, rates(), "overlap", at).detail == detail
    assert find_bottleneck(*STARVED, rates(), "overlap", below).detail is None


def test_resets_are_named_from_half_of_the_steps_on() -> None:
    sides = {"collector_wait": 70, "train": 30}, {"env_step": 90, "other": 10}
    found = [find_bottleneck(*sides, rates(), "overlap", WindowEvidence(resets=share)).detail for share in (0.5, 0.499)]
    assert found == [Detail.RESETS, None]


def test_a_side_without_a_core_is_named_before_its_resets() -> None:
    sides = {"collector_wait": 70, "train": 30}, {"env_step": 90, "other": 10}
    verdict = find_bottleneck(*sides, rates(), "overlap", WindowEvidence(resets=0.9, collector_descheduled=0.3))
    assert verdict.label == "contention(env_step: descheduled 30%)"


def cause_of(bottleneck: Bottleneck) -> Cause:
    return Cause(bottleneck, LearnerPhase.TRAIN)


LEARNER, COLLECTOR, BALANCED = Bottleneck.LEARNER, Bottleneck.COLLECTOR, Bottleneck.BALANCED


def test_a_new_cause_is_shown_from_its_third_window_on() -> None:
    steady = SteadyCause()
    shown = [steady.update(cause_of(one)).bottleneck for one in (LEARNER, COLLECTOR, COLLECTOR, COLLECTOR)]
    assert shown == [LEARNER, LEARNER, LEARNER, COLLECTOR]


def test_a_cause_that_comes_and_goes_is_not_shown() -> None:
    steady = SteadyCause()
    windows = [LEARNER, COLLECTOR, BALANCED, COLLECTOR, LEARNER, COLLECTOR, COLLECTOR, LEARNER]
    assert {steady.update(cause_of(one)).bottleneck for one in windows} == {LEARNER}


def test_the_cause_after_the_warm_up_is_shown_at_once() -> None:
    steady = SteadyCause()
    assert steady.update(WARMING_UP.cause) == WARMING_UP.cause
    assert steady.update(cause_of(COLLECTOR)).bottleneck == COLLECTOR
    assert steady.has_changed


def test_a_change_of_the_cause_is_reported_once() -> None:
    steady, changes = SteadyCause(), list[bool]()
    for one in (LEARNER, LEARNER, COLLECTOR, COLLECTOR, COLLECTOR, COLLECTOR):
        steady.update(cause_of(one))
        changes.append(steady.has_changed)
    assert changes == [True, False, False, False, True, False]


BUSY_COLLECTOR = ({"collector_wait": 88, "train": 12}, {"learner_wait": 10, "env_step": 80, "other": 10})


@pytest.mark.parametrize(
    ("shown", "label", "reason"),
    [
        (Cause(LEARNER, LearnerPhase.TRAIN), "learner(train 12%)", "learner train takes 12%"),
        (Cause(BALANCED, CollectorPhase.OTHER), "balanced(other 10%)", "collector other takes 10%"),
        (Cause(LEARNER, LearnerPhase.H2D), "learner(h2d 0%)", "learner h2d takes 0%"),
        (
            Cause(COLLECTOR, CollectorPhase.ENV_STEP, Detail.RESETS),
            "collector(env_step: resets 8%)",
            "10% of it because environments are reset",
        ),
        (
            Cause(LEARNER, LearnerPhase.TRAIN, Detail.LAUNCH_BOUND),
            "learner(train: launch-bound 12%)",
            "in 20% of the iterations",
        ),
        (
            Cause(Bottleneck.CONTENTION, LearnerPhase.TRAIN, Detail.DESCHEDULED),
            "contention(train: descheduled 5%)",
            "not given a core for 5% of the time",
        ),
    ],
)
def test_a_cause_that_is_shown_has_the_numbers_of_the_window(shown: Cause, label: str, reason: str) -> None:
    evidence = WindowEvidence(resets=0.1, launch_bound=0.2, learner_descheduled=0.05)
    verdict = find_bottleneck(*BUSY_COLLECTOR, rates(125.0, 833.0), "overlap", evidence, shown)
    assert (verdict.cause, verdict.label) == (shown, label)
    assert reason in verdict.reason
    assert "the learner is busy 12% and the collector 90%" in verdict.reason
    assert "(I=125, T=833 env steps/s)" in verdict.reason


@pytest.mark.parametrize(
    ("config", "is_advised"),
    [
        ({"env": {"vectorization": "sync"}}, True),
        ({"env": {"vectorization": "async"}}, False),
        ({"env": {"vectorization": "mujoco"}}, False),
        ({"env": {"vectorization": "envpool"}}, False),
        ({}, True),
    ],
)
def test_advice_that_is_followed_already_is_left_out(config: dict[str, Any], is_advised: bool) -> None:
    verdict = find_bottleneck({"collector_wait": 9}, {"env_step": 9}, rates(), "overlap")
    advice = verdict.for_run(config, has_gpu=False).advice
    assert ("env.vectorization" in {one.key for one in advice}) is is_advised


SLOW_STEP = ({"collector_wait": 90, "train": 10}, {"env_step": 99, "other": 1})


@pytest.mark.parametrize("resets", [0.0, 0.8])
@pytest.mark.parametrize(
    ("num_envs", "vectorization", "advised"),
    [
        (1, "sync", ["env.num_envs=4 env.vectorization=async"]),
        (2, "sync", ["env.vectorization=async instead of sync"]),
        (2, "async", ["env.num_envs=4"]),
        (1, "mujoco", ["env.num_envs=2"]),
        (8, "envpool", ["env.num_envs=16"]),
    ],
)
def test_more_environments_are_advised_where_they_step_at_the_same_time(
    num_envs: int, vectorization: str, advised: list[str], resets: float
) -> None:
    """One after another, twice as many take twice as long."""
    verdict = find_bottleneck(*SLOW_STEP, rates(), "overlap", WindowEvidence(resets=resets))
    config = {"env": {"num_envs": num_envs, "vectorization": vectorization}}
    found = [one.text.split(": ")[0] for one in verdict.for_run(config, has_gpu=False).advice]
    assert [text for text in found if text.startswith("env.")] == advised


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"env": {"num_envs": 4}}, "env.num_envs=8: more transitions per vector step, now 4"),
        ({"env": {"num_envs": "four"}}, "raise env.num_envs: more transitions per vector step"),
        ({"env": {"num_envs": True}}, "raise env.num_envs: more transitions per vector step"),
        ({}, "raise env.num_envs: more transitions per vector step"),
    ],
)
def test_advice_to_change_a_number_is_the_words_to_type(config: dict[str, Any], text: str) -> None:
    verdict = find_bottleneck({"collector_wait": 9}, {"env_step": 9}, rates(), "overlap")
    assert text in {advice.text for advice in verdict.for_run(config, has_gpu=False).advice}


def test_a_number_to_lower_stays_one_that_is_allowed() -> None:
    verdict = find_bottleneck({"evaluation": 9}, {"learner_wait": 9}, rates(), "overlap")
    texts = [
        [
            advice.text
            for advice in verdict.for_run({"eval": {"episodes": number, "every": 1_000_000}}, has_gpu=False).advice
        ]
        for number in (10, 1)
    ]
    assert texts[0][1:] == [
        "eval.every=2000000: less often, now 1000000",
        "eval.episodes=5: a shorter evaluation, now 10",
    ]
    assert texts[1][1:] == ["eval.every=2000000: less often, now 1000000"]  # and none to lower what is 1


def test_advice_to_set_a_truth_value_is_left_out_where_it_is_set() -> None:
    verdict = find_bottleneck({"checkpoint": 9}, {"learner_wait": 9}, rates(), "overlap")
    keys = [
        {advice.key for advice in verdict.for_run({"checkpoint": {"replay": replay}}, has_gpu=False).advice}
        for replay in (True, False)
    ]
    assert keys[0] - keys[1] == {"checkpoint.replay"}


@pytest.mark.parametrize(
    ("saves", "steps_per_sec", "key"),
    [
        ({"every": 50_000, "every_min": 1.0}, 80.0, "every_min=2.0"),  # the clock saves ten times as often
        ({"every": 50_000, "every_min": 1.0}, 5_000.0, "every=100000"),
        ({"every": 0, "every_min": 1.0}, 5_000.0, "every_min=2.0"),
        ({"every": 50_000, "every_min": 0.0}, 80.0, "every=100000"),
        ({"every": 50_000, "every_min": 1.0}, None, "every=100000"),
    ],
)
def test_what_decides_how_often_a_run_saves_is_advised(
    saves: dict[str, float], steps_per_sec: float | None, key: str
) -> None:
    for sides in (({"checkpoint": 9}, {"learner_wait": 9}), ({"collector_wait": 9}, {"snapshot": 9})):
        verdict = find_bottleneck(*sides, rates(), "overlap")
        advice = verdict.for_run({"checkpoint": saves}, has_gpu=False, steps_per_sec=steps_per_sec).advice
        assert [one.text.split(":")[0] for one in advice if one.text.startswith("checkpoint.every")] == [
            f"checkpoint.{key}"
        ]


@pytest.mark.parametrize(("source", "advised"), [("direct", ["double_buffer"]), ("prefetch", [])])
def test_packing_beside_training_is_advised_where_it_is_not_done(source: str, advised: list[str]) -> None:
    verdict = find_bottleneck({"h2d": 9}, {"learner_wait": 9}, rates(), "overlap")
    found = verdict.for_run({"replay": {"source": source}, "device": "cuda"}, has_gpu=True).advice
    assert [one.value for one in found if one.value in ("double_buffer", "prefetch")] == advised


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_gpu_is_advised_only_where_there_is_one(has_gpu: bool) -> None:
    verdict = find_bottleneck({"train": 9}, {"learner_wait": 9}, rates(), "overlap").for_run({}, has_gpu=has_gpu)
    assert ("cuda" in {advice.value for advice in verdict.advice}) is has_gpu


def test_at_most_three_changes_are_advised() -> None:
    turns = rates(300.0, 100.0, "alternate")
    sides = {"train": 99, "other": 1}, {"learner_wait": 99, "env_step": 1}
    verdict = find_bottleneck(*sides, turns, "alternate", WindowEvidence(overlap_gain=1.2))
    assert len(verdict.advice) > 3
    assert verdict.for_run({}, has_gpu=True).advice == verdict.advice[:3]


@pytest.mark.parametrize(("idle_cores", "is_advised"), [(None, True), (0.6, True), (0.3, False)])
def test_another_process_is_advised_where_a_core_is_idle(idle_cores: float | None, is_advised: bool) -> None:
    sides = {"collector_wait": 90, "train": 10}, {"env_step": 99, "other": 1}
    found = find_bottleneck(*sides, rates(), "overlap", WindowEvidence(idle_cores=idle_cores)).advice
    assert ("env.vectorization" in {advice.key for advice in found}) is is_advised
    assert any(advice.text.startswith("raise env.num_envs") for advice in found)


def test_a_single_environment_is_not_stepped_in_a_process_of_its_own() -> None:
    verdict = find_bottleneck({"collector_wait": 90, "train": 10}, {"env_step": 99, "other": 1}, rates(), "overlap")
    many, one = (verdict.for_run({"env": {"num_envs": number}}, has_gpu=False).advice for number in (2, 1))
    assert {advice.key for advice in many} - {advice.key for advice in one} == {"env.vectorization"}


def test_what_the_configuration_refuses_is_not_advised_and_nothing_twice() -> None:
    sides = {"replay_sample": 90, "train": 10}, {"learner_wait": 90, "env_step": 10}
    packing = find_bottleneck(*sides, rates(), "overlap")
    keys = [advice.key for advice in packing.for_run({}, has_gpu=False).advice]
    assert (keys[0], "replay.source" in keys) == ("runner.name", False)
    ranks = packing.for_run({}, has_gpu=False, is_allowed=lambda key, _: key != "runner.name")
    assert ranks.advice[0].text.startswith("replay.source=prefetch")


def test_without_a_gpu_nothing_is_kept_on_it() -> None:
    waiting = find_bottleneck({"h2d": 90, "train": 10}, {"learner_wait": 90, "env_step": 10}, rates(), "overlap")
    values = [{advice.value for advice in waiting.for_run({}, has_gpu=has_gpu).advice} for has_gpu in (True, False)]
    assert ["resident" in found for found in values] == [True, False]


def test_threads_that_no_run_tries_are_not_advised() -> None:
    sides = {"train": 90, "other": 10}, {"learner_wait": 90, "env_step": 10}
    found = find_bottleneck(*sides, rates(), "overlap", WindowEvidence(may_try_threads=False)).advice
    assert "threads.learner" not in {advice.key for advice in found}
    assert found


def test_overlapping_is_advised_before_the_remedies_of_a_detail() -> None:
    sides = {"collector_wait": 60, "train": 40}, {"learner_wait": 40, "env_step": 60}
    evidence = WindowEvidence(resets=0.8, overlap_gain=1.6)
    found = find_bottleneck(*sides, rates(100.0, 100.0, "alternate"), "alternate", evidence).advice
    assert [advice.key for advice in found[:2]] == ["collect.mode", "env.vectorization"]


def test_without_a_core_nothing_that_adds_load_is_advised() -> None:
    evidence = WindowEvidence(learner_descheduled=0.4, overlap_gain=1.2)
    turns = rates(300.0, 100.0, "alternate")
    verdict = find_bottleneck(
        {"train": 99, "other": 1}, {"learner_wait": 99, "env_step": 1}, turns, "alternate", evidence
    )
    assert verdict.bottleneck == Bottleneck.CONTENTION
    assert {advice.key for advice in verdict.advice} == {None, "threads.learner"}
    assert all(advice.value in (None, "auto") for advice in verdict.advice)


def test_a_number_that_the_configuration_refuses_is_not_advised() -> None:
    verdict = find_bottleneck({"collector_wait": 9}, {"env_step": 9}, rates(), "overlap")
    config = {"env": {"num_envs": 4}}
    advised = verdict.for_run(config, has_gpu=False, is_allowed=lambda key, value: (key, value) != ("env.num_envs", 8))
    assert [advice.key for advice in advised.advice] == ["env.vectorization"]


@pytest.mark.parametrize(
    ("phase", "table", "config", "key"),
    [
        ("train", LEARNER_ADVICE, {"algo": {"batch_size": 1}}, "algo.batch_size"),
        ("train", ROLLOUT_ADVICE, {"algo": {"epochs": 1}}, "algo.epochs"),
        ("evaluation", LEARNER_ADVICE, {"eval": {"every": 0}}, "eval.every"),
        ("log", LEARNER_ADVICE, {"log": {"every_s": 0.0}}, "log.every_s"),
    ],
)
def test_a_number_that_cannot_move_is_not_advised(
    phase: LearnerPhase, table: Mapping[str, tuple[Advice, ...]], config: dict[str, Any], key: str
) -> None:
    evidence = WindowEvidence(learner_advice=table)
    verdict = find_bottleneck({phase: 9}, {"learner_wait": 9}, rates(), "overlap", evidence)
    found = [{one.key for one in verdict.for_run(each, has_gpu=True).advice} for each in ({}, config)]
    assert found[0] - found[1] == {key}


def test_advice_that_cannot_hold_takes_no_place_of_the_three() -> None:
    verdict = find_bottleneck({"evaluation": 9}, {"learner_wait": 9}, rates(), "overlap")
    advice = tuple(Advice("", "algo.batch_size", factor=0.5) for _ in range(3))
    found = replace(verdict, advice=(*advice, *verdict.advice)).for_run({"algo": {"batch_size": 1}}, has_gpu=False)
    assert found.advice == verdict.advice


def test_no_advice_holds_what_separates_advice_in_records() -> None:
    tables = (LEARNER_ADVICE, ROLLOUT_ADVICE, COLLECTOR_ADVICE, DETAIL_ADVICE)
    texts = [advice.text for table in tables for several in table.values() for advice in several]
    assert [text for text in texts if "; " in text] == []
