"""Running, runnable and blocked time of a thread by phase."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from offpolicy.timing import ledger, thread_states
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase as Phase
from offpolicy.timing.thread_states import Shares, StateSampler, shares_of

MS = 1_000_000


def test_each_phase_has_the_time_since_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([(1000, 100, 10), (1050, 140, 12), (1060, 150, 12), (1200, 160, 52)])
    monkeypatch.setattr(thread_states, "thread_times", lambda: next(readings))
    sampler = StateSampler(2)
    sampler.begin()
    for phase in (1, 0, 1):
        sampler.add(phase)
    assert sampler.states().tolist() == [[10, 10, 0], [190, 50, 42]]


def test_what_neither_ran_nor_waited_for_a_core_was_blocked() -> None:
    assert shares_of(np.array([10 * MS, 5 * MS, 2 * MS])) == Shares(0.5, 0.2, pytest.approx(0.3))
    assert shares_of(np.array([10 * MS, 10 * MS + 9, 0])) == Shares(1.0, 0.0, 0.0)


def test_shares_of_a_phase_whose_clocks_say_more_than_its_wall_sum_to_one() -> None:
    assert shares_of(np.array([10 * MS, 9 * MS, 4 * MS])) == Shares(pytest.approx(0.6), 0.4, pytest.approx(0.0))


def test_a_phase_of_which_hardly_anything_was_sampled_has_no_shares() -> None:
    assert shares_of(np.array([MS - 1, 0, 0])) is None


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


@pytest.mark.alone
@pytest.mark.usefixtures("_every_second_iteration")
def test_the_interpreter_held_by_another_thread_is_time_blocked() -> None:
    has_ended = threading.Event()

    def burn() -> None:
        while not has_ended.is_set():
            spin(1)

    thread = threading.Thread(target=burn)
    thread.start()
    try:
        shares = states_of(20, is_blocking=False)
        assert shares.blocked > 0.25 * (1.0 - shares.runnable)  # of the time without other programs
    finally:
        has_ended.set()
        thread.join()
