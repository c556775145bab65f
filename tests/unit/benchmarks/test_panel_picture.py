from __future__ import annotations

import pytest

from benchmarks.panel_picture import read_verdict
from offpolicy.logger.record import Record
from offpolicy.timing.bottleneck import Bottleneck, Detail, Verdict
from offpolicy.timing.phases import CollectorPhase, LearnerPhase


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(Bottleneck.LEARNER, LearnerPhase.TRAIN, "busy; learner train takes 92%", share=0.92),
        Verdict(Bottleneck.COLLECTOR, CollectorPhase.OTHER, "collector other takes 40%", share=0.4),
        Verdict(Bottleneck.COLLECTOR, CollectorPhase.ENV_STEP, "collector env_step takes 90%", (), 0.6, Detail.RESETS),
    ],
)
def test_a_verdict_is_read_back_from_its_record(verdict: Verdict) -> None:
    record: Record = {"perf/bottleneck": verdict.label, "perf/bottleneck_reason": verdict.reason}
    assert read_verdict(record) == verdict


def test_advice_is_read_back_in_its_order() -> None:
    record: Record = {
        "perf/bottleneck": "learner(train 92%)",
        "perf/bottleneck_reason": "learner train takes 92%",
        "perf/bottleneck_advice": "a=1: faster; b=2",
    }
    verdict = read_verdict(record)
    assert verdict is not None
    assert [advice.text for advice in verdict.advice] == ["a=1: faster", "b=2"]


def test_a_record_without_a_verdict_has_none() -> None:
    assert read_verdict({}) is None
