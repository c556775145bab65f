from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from offpolicy.config.schema import specs
from offpolicy.model.bottleneck import (
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
from offpolicy.model.rates import Rates
from offpolicy.model.throughput import bound_steps_per_sec
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.types import Lateness


def rates(collector: float | None = None, learner: float | None = None, mode: str = "overlap") -> Rates:
    together = bound_steps_per_sec(collector, learner, mode) if collector and learner else None
    return Rates(100.0, 100.0, collector, 0.01, learner, 1.0, together)


@pytest.mark.promise("verdict-right")
def test_a_learner_that_never_waits_is_the_bottleneck() -> None:
    verdict = find_bottleneck(
        {"collector_wait": 1, "train": 94, "other": 5}, {"learner_wait": 90, "env_step": 10}, rates(), "overlap"
    )
    assert (verdict.bottleneck, verdict.phase, verdict.label) == ("learner", "train", "learner(train 94%)")


@pytest.mark.promise("verdict-right")
def test_a_collector_that_never_waits_is_the_bottleneck() -> None:
    verdict = find_bottleneck(
        {"collector_wait": 70, "train": 30}, {"learner_wait": 2, "env_step": 80, "action_select": 18}, rates(), "free"
    )
    assert (verdict.bottleneck, verdict.phase, verdict.label) == ("collector", "env_step", "collector(env_step 80%)")


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


def test_a_wait_for_a_rank_that_waits_for_its_collectors_is_not_the_learners_fault() -> None:
    """Rank 0 has its rollouts and waits for rank 1, which waits for its own."""
    learner, collectors = {"rank_barrier": 75, "train": 25}, {"learner_wait": 30, "env_step": 70}
    assert find_bottleneck(learner, collectors, rates(), "free").phase == "rank_barrier"
    verdict = find_bottleneck(learner, collectors, rates(), "free", WindowEvidence(longest_wait=0.75))
    assert verdict.label == "collector(env_step 70%)"


@pytest.mark.parametrize(("transfer", "label"), [(0.8, "link(transfer 60%)"), (0.2, "link(overhead 60%)")])
def test_a_collecting_side_that_waits_for_the_link_most_is_bound_by_it(transfer: float, label: str) -> None:
    learner, collectors = {"collector_wait": 70, "train": 30}, {"learner_wait": 10, "link_wait": 60, "env_step": 30}
    verdict = find_bottleneck(learner, collectors, rates(), "overlap", WindowEvidence(transfer=transfer))
    assert (verdict.bottleneck, verdict.label) == ("link", label)
    assert verdict.advice
    assert find_bottleneck(learner, {**collectors, "env_step": 70}, rates(), "overlap").label.startswith("collector(")


LATE = WindowEvidence(straggler=Lateness(rank=3, ms=4.25, share=0.92))


def test_a_wait_for_ranks_names_the_rank_that_is_late_by_how_much_and_how_often() -> None:
    verdict = find_bottleneck({"rank_barrier": 60, "train": 40}, {"learner_wait": 9}, rates(), "overlap", LATE)
    assert verdict.reason == (
        "at the same time, the learner is busy 100% and the collector 0% of the time;"
        " learner rank_barrier takes 60%: rank 3 arrives 4.2 ms late, in 92% of the iterations"
    )
    assert verdict.advice[0].text.startswith("rank 3 arrives late: ")
    assert verdict.advice[1:] == LEARNER_ADVICE[LearnerPhase.RANK_BARRIER]


@pytest.mark.parametrize("table", [LEARNER_ADVICE, ROLLOUT_ADVICE, COLLECTOR_ADVICE, DETAIL_ADVICE])
def test_advice_names_only_configuration_keys(table: Mapping[str, tuple[Advice, ...]]) -> None:
    lines = [advice for several in table.values() for advice in several]
    named = {key for advice in lines for key in re.findall(r"\b[a-z]+\.[a-z_]+\b", advice.text)}
    named |= {advice.key for advice in lines if advice.key is not None}
    assert len(named) >= 3
    assert named <= set(specs())


STARVED = ({"collector_wait": 10, "train": 90}, {"learner_wait": 80, "env_step": 20})


def test_a_side_that_was_not_given_a_core_is_not_to_blame() -> None:
    verdict = find_bottleneck(*STARVED, rates(), "overlap", WindowEvidence(learner_descheduled=0.4))
    assert (verdict.bottleneck, verdict.phase) == ("contention", "train")
    assert verdict.label == "contention(train: descheduled 40%)"
    assert verdict.reason.startswith("the learner could have run and was not given a core for 40% of the time; ")
    assert verdict.advice[0].text.startswith("top: ")
    for other in (WindowEvidence(collector_descheduled=0.9), WindowEvidence(learner_descheduled=0.2)):
        assert find_bottleneck(*STARVED, rates(), "overlap", other).bottleneck == "learner"


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


def cause_of(bottleneck: Bottleneck) -> Cause:
    return Cause(bottleneck, LearnerPhase.TRAIN)


LEARNER, COLLECTOR, BALANCED = Bottleneck.LEARNER, Bottleneck.COLLECTOR, Bottleneck.BALANCED


def test_a_new_cause_is_shown_from_its_third_window_on() -> None:
    steady = SteadyCause()
    shown = [steady.update(cause_of(one)).bottleneck for one in (LEARNER, COLLECTOR, COLLECTOR, COLLECTOR)]
    assert shown == [LEARNER, LEARNER, LEARNER, COLLECTOR]


def test_the_cause_after_the_warm_up_is_shown_at_once() -> None:
    steady = SteadyCause()
    assert steady.update(WARMING_UP.cause) == WARMING_UP.cause
    assert steady.update(cause_of(COLLECTOR)).bottleneck == COLLECTOR
    assert steady.has_changed


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


def test_at_most_three_changes_are_advised() -> None:
    turns = rates(300.0, 100.0, "alternate")
    sides = {"train": 99, "other": 1}, {"learner_wait": 99, "env_step": 1}
    verdict = find_bottleneck(*sides, turns, "alternate", WindowEvidence(overlap_gain=1.2))
    assert len(verdict.advice) > 3
    assert verdict.for_run({}, has_gpu=True).advice == verdict.advice[:3]


def test_without_a_core_nothing_that_adds_load_is_advised() -> None:
    evidence = WindowEvidence(learner_descheduled=0.4, overlap_gain=1.2)
    turns = rates(300.0, 100.0, "alternate")
    verdict = find_bottleneck(
        {"train": 99, "other": 1}, {"learner_wait": 99, "env_step": 1}, turns, "alternate", evidence
    )
    assert verdict.bottleneck == Bottleneck.CONTENTION
    assert {advice.key for advice in verdict.advice} == {None, "threads.learner"}
    assert all(advice.value in (None, "auto") for advice in verdict.advice)


def test_the_side_with_more_own_time_bounds_the_run_and_a_few_percent_are_no_difference() -> None:
    """Of the delay that equals the sides, nine tenths leave the learner to blame and eleven the collector."""
    for own, side in ((110, "collector"), (103, "balanced"), (97, "balanced"), (90, "learner")):
        learner = {"collector_wait": max(own - 100, 0), "train": 100}
        collector = {"learner_wait": max(100 - own, 0), "env_step": own}
        for mode in ("overlap", "alternate"):
            assert find_bottleneck(learner, collector, rates(), mode).bottleneck == side


def test_overlapping_is_not_advised_where_it_may_gain_nothing() -> None:
    for gain, error, mode in (
        (1.04, 0.0, "alternate"),
        (1.2, 0.25, "alternate"),
        (1.0, 0.0, "overlap"),
        (1.2, 0.0, "free"),
    ):
        evidence = WindowEvidence(overlap_gain=gain, prediction_error=error)
        verdict = find_bottleneck(*IN_TURNS, rates(300.0, 100.0, mode), mode, evidence)
        assert "collect.mode" not in {advice.key for advice in verdict.advice}


def test_advice_is_what_to_type_and_leaves_out_what_is_followed_or_not_possible() -> None:
    verdict = find_bottleneck({"collector_wait": 9}, {"env_step": 9}, rates(), "overlap")
    for config, is_advised in (
        ({}, True),
        ({"vectorization": "sync"}, True),
        ({"vectorization": "async"}, False),
        ({"vectorization": "mujoco"}, False),
    ):
        advice = verdict.for_run({"env": config}, has_gpu=False).advice
        assert ("env.vectorization" in {one.key for one in advice}) is is_advised
    for num_envs, text in (
        (4, "env.num_envs=8: more transitions per vector step, now 4"),
        (True, "raise env.num_envs: more transitions per vector step"),
    ):
        advice = verdict.for_run({"env": {"num_envs": num_envs}}, has_gpu=False).advice
        assert text in {one.text for one in advice}
    learner = find_bottleneck({"train": 9}, {"learner_wait": 9}, rates(), "overlap")
    for has_gpu in (True, False):
        advice = learner.for_run({}, has_gpu=has_gpu).advice
        assert ("cuda" in {one.value for one in advice}) is has_gpu
