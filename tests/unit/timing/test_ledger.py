"""The account closes, to the nanosecond, on every path."""

from __future__ import annotations

import pytest

from offpolicy.model.windows import percentiles_of
from offpolicy.timing.clock import Every, Stopwatch, check_clock
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase as Phase
from tests.fakes import FakeClock


def ledger_at(now_ns: int = 0, *, is_warm: bool = True) -> tuple[Ledger, FakeClock]:
    clock = FakeClock(now_ns)
    ledger = Ledger(Phase, clock)
    if is_warm:
        ledger.end_warmup()
    return ledger, clock


@pytest.mark.promise("account-closes")
def test_phases_and_other_sum_to_wall_to_the_nanosecond() -> None:
    ledger, clock = ledger_at()
    clock.advance(3)
    with ledger.phase(Phase.TRAIN):
        clock.advance(1_000_001)
    clock.advance(7)
    with ledger.phase(Phase.LOG):
        clock.advance(11)
    account = ledger.account()
    assert account.phases_ns[Phase.TRAIN] == 1_000_001
    assert account.phases_ns[Phase.LOG] == 11
    assert account.phases_ns[Phase.OTHER] == 10
    assert sum(account.phases_ns.values()) == account.wall_ns == 1_000_022


class Scripted:
    """A clock that reads the given instants."""

    def __init__(self, *instants: int) -> None:
        self.now_ns = iter(instants).__next__


def test_an_inner_phase_takes_its_time_out_of_the_outer_one() -> None:
    ledger, clock = ledger_at()
    with ledger.phase(Phase.TRAIN):
        clock.advance(5)
        with ledger.phase(Phase.PARAM_SYNC):
            clock.advance(40)
        clock.advance(6)
    account = ledger.account()
    assert (account.phases_ns[Phase.TRAIN], account.phases_ns[Phase.PARAM_SYNC]) == (11, 40)
    assert sum(account.phases_ns.values()) == account.wall_ns


@pytest.mark.promise("account-closes")
def test_an_exception_keeps_its_interval_and_the_account_still_closes() -> None:
    ledger, clock = ledger_at()
    with pytest.raises(KeyError), ledger.phase(Phase.TRAIN):  # noqa: PT012  # the time before the raise is the point
        clock.advance(9)
        raise KeyError
    clock.advance(1)
    account = ledger.account()
    assert account.phases_ns[Phase.TRAIN] == 9
    assert account.phases_ns[Phase.OTHER] == 1
    assert sum(account.phases_ns.values()) == account.wall_ns == 10


def test_warm_up_is_kept_apart_and_starts_at_the_birth_of_the_process() -> None:
    clock = FakeClock(100)
    ledger = Ledger(Phase, clock, opened_ns=40)
    with ledger.phase(Phase.COLLECTOR_WAIT):
        clock.advance(60)
    ledger.end_warmup()
    with ledger.phase(Phase.TRAIN):
        clock.advance(5)
    account = ledger.account()
    assert account.warmup_ns == 120
    assert account.wall_ns == 5
    assert account.phases_ns[Phase.COLLECTOR_WAIT] == 0


def test_every_is_due_once_per_period_and_does_not_catch_up() -> None:
    clock = FakeClock()
    every = Every(Stopwatch(clock).elapsed_s, 2.0)
    due = []
    for second in range(1, 10):
        clock.advance(1_000_000_000 if second != 4 else 5_000_000_000)
        due.append(every.is_due())
    assert due == [False, True, False, True, False, True, False, True, False]


def test_tagged_time_is_that_of_this_iteration_alone() -> None:
    ledger, clock = ledger_at()
    for us in (5, 70, 6):
        with ledger.phase(Phase.TRAIN):
            clock.advance(1000 * us)
        if us == 70:
            ledger.tag(Phase.TRAIN)
        ledger.close()
    assert ledger.account().tagged == (1, 70_000)
    assert ledger.account().phases_ns[Phase.TRAIN] == 81_000


def test_what_comes_after_the_last_iteration_is_set_apart_within_the_account() -> None:
    ledger, clock = ledger_at()
    with ledger.phase(Phase.TRAIN):
        clock.advance(10)
    ledger.close()
    assert ledger.account().cooldown is None
    clock.advance(2)
    ledger.begin_cooldown()
    with ledger.phase(Phase.EVALUATION):
        clock.advance(300)
    ledger.begin_cooldown()  # only the first call counts
    account = ledger.account()
    assert account.cooldown is not None
    assert {phase: ns for phase, ns in account.cooldown.phases_ns.items() if ns} == {"evaluation": 300, "other": 2}
    assert sum(account.phases_ns.values()) == account.wall_ns == 312
    assert 0 <= account.cooldown.cpu_ns < account.cpu_ns
    assert account.cooldown.scheduler.runnable_ns <= account.scheduler.runnable_ns


def test_the_beginning_of_a_span_is_charged_to_another_phase_and_the_sum_stays() -> None:
    ledger, clock = ledger_at(50)
    with ledger.phase(Phase.TRAIN):
        clock.advance(7)
        with ledger.phase(Phase.PARAM_SYNC):
            arrived_ns = ledger.switched_ns
            clock.advance(100)
            ledger.charge_head(Phase.RANK_BARRIER, arrived_ns - 5)  # before it: nothing
            ledger.charge_head(Phase.RANK_BARRIER, arrived_ns + 30)
    account = ledger.account()
    spent = [account.phases_ns[phase] for phase in (Phase.TRAIN, Phase.RANK_BARRIER, Phase.PARAM_SYNC)]
    assert spent == [7, 30, 70]
    assert sum(account.phases_ns.values()) == account.wall_ns == 107


def test_moved_time_is_that_of_the_other_phase_in_the_same_iteration_and_the_sum_stays() -> None:
    ledger, clock = ledger_at()
    for moved_ns in (0, 4_000_000):
        with ledger.phase(Phase.TRAIN):
            clock.advance(9_000_000)
            ledger.move(Phase.TRAIN, Phase.REPLAY_SAMPLE, moved_ns)  # while it is open
        ledger.close()
    account = ledger.account()
    assert (account.phases_ns[Phase.TRAIN], account.phases_ns[Phase.REPLAY_SAMPLE]) == (14_000_000, 4_000_000)
    assert sum(account.phases_ns.values()) == account.wall_ns == 18_000_000
    assert account.histogram is not None
    spread = percentiles_of(account.histogram[list(Phase).index(Phase.TRAIN)])
    assert spread is not None
    assert (spread.p50, spread.max) == (pytest.approx(5.0, rel=0.03), pytest.approx(9.0, rel=0.03))


def test_a_check_of_the_clock_sees_its_cost_its_smallest_step_and_steps_back() -> None:
    """A pause in the series, in which another program had the core, does not make it slow."""
    clock = Scripted(*(50 * number + (70_000_000 if number > 800 else 0) for number in range(2_000)))
    assert check_clock(clock, readings=2_000)[1:] == (50.0, 50, 0)
    assert check_clock(Scripted(100, 100, 140, 260), readings=4)[1:] == (40, 40, 0)
    assert check_clock(Scripted(100, 90, 200, 150), readings=4).backward_steps == 2
