"""Running, runnable and blocked time of a thread by phase."""

from __future__ import annotations

import time

import numpy as np
import pytest

from offpolicy.timing import ledger
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase as Phase
from offpolicy.timing.thread_states import Shares, shares_of

MS = 1_000_000


def test_what_neither_ran_nor_waited_for_a_core_was_blocked() -> None:
    assert shares_of(np.array([10 * MS, 5 * MS, 2 * MS])) == Shares(0.5, 0.2, pytest.approx(0.3))
    assert shares_of(np.array([10 * MS, 10 * MS + 9, 0])) == Shares(1.0, 0.0, 0.0)


# -- of a real thread -------------------------------------------------------------------------------------------------


@pytest.fixture
def _every_second_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "SAMPLE_EVERY_NS", 1)


def states_of(work_ms: float, *, is_blocking: bool) -> Shares:
    """The states of a phase that works, or sleeps, in every iteration."""
    timed = Ledger(Phase)
    timed.end_warmup()
    for _ in range(20):
        with timed.phase(Phase.TRAIN):
            if is_blocking:
                time.sleep(work_ms / 1000.0)
            else:
                spin(work_ms)
        timed.close()
    states = timed.account().states
    assert states is not None
    shares = shares_of(states[timed.names.index(Phase.TRAIN)])
    assert shares is not None
    return shares


def spin(work_ms: float) -> None:
    """Uses the CPU in Python for so long."""
    until_ns = time.thread_time_ns() + int(work_ms * MS)
    while time.thread_time_ns() < until_ns:
        pass


@pytest.mark.alone
@pytest.mark.usefixtures("_every_second_iteration")
def test_a_phase_that_sleeps_is_blocked_and_one_that_works_is_not() -> None:
    assert states_of(10, is_blocking=True).blocked > 0.9
    assert states_of(10, is_blocking=False).blocked < 0.1
