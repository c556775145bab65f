"""The rules of the attribution matrix on records made by hand: what they accept, and that they tell a leak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offpolicy.logger.metrics import collector_key, learner_key, prefetch_key, rank_key
from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase
from tests.processes.attribution_rules import Scene, Tour
from tests.processes.delay_plan import Stretch

OVERLAPPED = Scene((), in_turns=False, late=("learner.train", "collector.env_step"))
USUAL = {"learner.train": 1.0, "collector.env_step": 0.1, "collector.learner_wait": 0.9}
# 25 ms later in the collector, of which its own usual wait absorbs 0.9.
LATE_STEP = {"learner.train": 1.0, "collector.env_step": 25.1, "learner.collector_wait": 24.1}
LATE_TRAIN = {"learner.train": 26.0, "collector.env_step": 0.1, "collector.learner_wait": 25.9}


def stretch(phases: Mapping[str, float]) -> Stretch:
    record: dict[str, Any] = {learner_key(phase): phases.get(f"learner.{phase}", 0.0) for phase in LearnerPhase}
    record |= {rank_key(phase, "mean"): phases.get(f"learner.{phase}", 0.0) for phase in LearnerPhase}
    record |= {collector_key(phase): phases.get(f"collector.{phase}", 0.0) for phase in CollectorPhase}
    record |= {prefetch_key(phase): 0.0 for phase in PackerPhase}
    return Stretch([record] * 3, [20] * 3)


def violations(late: str, of: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The phases that are told."""
    usual = stretch(USUAL)
    tour = Tour(OVERLAPPED, {name: stretch(phases) for name, phases in of.items()}, dict.fromkeys(of, usual))
    return [each.split(" ")[0] for each in tour.violations(late)]


def test_what_a_delay_must_do_is_accepted() -> None:
    of = {"learner.train": LATE_TRAIN, "collector.env_step": LATE_STEP}
    assert [violations(late, of) for late in of] == [[], []]


def test_a_leak_into_another_phase_is_told() -> None:
    for leak, told in ((1.0, []), (2.0, ["learner.replay_sample"])):
        of = {"learner.train": LATE_TRAIN | {"learner.replay_sample": leak}}
        assert violations("learner.train", of) == told


def test_a_delay_that_is_seen_elsewhere_is_told_in_both_phases() -> None:
    merged = LATE_STEP | {"learner.collector_wait": 0.0, "learner.rank_barrier": 24.1}
    assert set(violations("collector.env_step", {"collector.env_step": merged})) == {
        "learner.collector_wait",
        "learner.rank_barrier",
    }


def test_who_waits_waits_less_by_what_its_own_phases_take_more_and_by_no_more_than_that() -> None:
    cold = dict.fromkeys(("learner.replay_sample", "learner.h2d", "learner.weight_publish"), 1.0)
    waits_less = LATE_STEP | {"learner.collector_wait": 21.1}
    assert violations("collector.env_step", {"collector.env_step": waits_less | cold}) == []
    assert violations("collector.env_step", {"collector.env_step": waits_less}) == ["learner.collector_wait"]


def test_what_all_delays_do_alike_is_demanded_of_each_and_what_one_does_alone_is_a_leak() -> None:
    late = ("learner.train", "learner.h2d", "learner.weight_publish")
    cold = {
        name: {**USUAL, name: USUAL.get(name, 0.0) + 25.0, "collector.learner_wait": 25.9, "collector.other": 2.0}
        for name in late
    }
    assert violations("learner.train", cold) == []
    missing = cold | {"learner.train": cold["learner.train"] | {"collector.other": 0.0}}
    assert "collector.other" in violations("learner.train", missing)
    alone = {name: phases | {"collector.other": 0.0} for name, phases in cold.items()}
    alone["learner.train"] = alone["learner.train"] | {"collector.other": 2.0}
    assert "collector.other" in violations("learner.train", alone)
