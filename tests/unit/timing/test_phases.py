"""The vocabulary of the time accounts: what other modules rely on in every set of phases."""

from __future__ import annotations

from enum import StrEnum

import pytest

from offpolicy.timing.phases import (
    LEARNER_PERIODIC,
    LEARNER_WAITS,
    CollectorPhase,
    EvaluatorPhase,
    LearnerPhase,
    PackerPhase,
)


@pytest.mark.parametrize("phases", [LearnerPhase, CollectorPhase, PackerPhase, EvaluatorPhase])
def test_every_account_has_other_as_its_last_phase(phases: type[StrEnum]) -> None:
    assert list(phases)[-1] == "other"


@pytest.mark.parametrize("phases", [LearnerPhase, CollectorPhase, PackerPhase, EvaluatorPhase])
def test_the_name_of_a_phase_is_its_value(phases: type[StrEnum]) -> None:
    assert [phase.name.lower() for phase in phases] == [phase.value for phase in phases]


def test_a_learner_phase_is_work_a_wait_or_periodic_but_never_two_of_them() -> None:
    assert not set(LEARNER_WAITS) & set(LEARNER_PERIODIC)
    assert LearnerPhase.TRAIN not in {*LEARNER_WAITS, *LEARNER_PERIODIC}


def test_the_learners_waits_are_those_for_another_process_or_thread() -> None:
    assert set(LEARNER_WAITS) == {"collector_wait", "replay_batch_wait", "rank_barrier", "sync_coordination"}
