from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from offpolicy.distributed.arrivals import ArrivalLog
from offpolicy.distributed.clock_offsets import ClockOffsets
from offpolicy.distributed.world import CLOCK_EXCHANGES, RankWorld, SoloWorld
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase
from offpolicy.types import ArrivalTotals
from tests.fakes import FakeClock


class Gate:
    env_steps = 7

    def wait_for(self, env_steps: int) -> None: ...

    def grant(self, env_steps: int) -> None: ...


def test_alone_env_steps_are_those_of_the_last_agreement() -> None:
    gate = Gate()
    world = SoloWorld(gate, never, never)
    assert world.env_steps == 7
    gate.env_steps = 9  # between two agreements
    assert world.env_steps == 7
    assert world.agree(is_stopping=False) is False
    assert world.env_steps == 9


def test_alone_a_report_is_made_when_it_is_wanted() -> None:
    wishes = [True, False]
    world = SoloWorld(Gate(), lambda: wishes.pop(0), never)
    assert not world.is_reporting
    world.agree(is_stopping=False)
    assert world.is_reporting
    world.agree(is_stopping=False)
    assert not world.is_reporting


def test_alone_the_rank_that_stops_is_rank_0() -> None:
    world = SoloWorld(Gate(), never, never)
    assert world.stopped_by is None
    assert world.agree(is_stopping=True) is True
    assert world.stopped_by == 0


def test_alone_gathered_values_are_a_table_of_one_row() -> None:
    table = SoloWorld(Gate(), never, never).gather((1.5, True, 3))
    np.testing.assert_array_equal(table, [[1.5, 1.0, 3.0]])
    assert table.dtype == np.float64


class FakeGroup:
    """Rank 1 of 2; the other rank brings the same row each time, and arrives at everything at instant 0."""

    rank, num_ranks = 1, 2

    def __init__(self, other: tuple[float, ...], clock: FakeClock) -> None:
        self._other, self._clock = other, clock
        self.num_gathered = 0
        self.took_ns = 0  # time that a gathering takes

    def gather(self, vector: Tensor) -> Tensor:
        self._clock.advance(self.took_ns)
        self.num_gathered += 1
        stamps = torch.zeros(len(vector) - len(self._other), dtype=torch.float64)
        return torch.stack([torch.cat((torch.tensor(self._other, dtype=torch.float64), stamps)), vector])


def never() -> bool:
    return False


def joined(*other: float, is_leader: bool = False) -> RankWorld:
    return timed(*other, is_leader=is_leader)[0]


def timed(*other: float, is_leader: bool = False) -> tuple[RankWorld, Any, Ledger]:
    """A world, its group and its ledger, which stands at 0."""
    clock = FakeClock()
    group: Any = FakeGroup(other, clock)
    ledger = Ledger(LearnerPhase, clock)
    ledger.end_warmup()
    arrivals = ArrivalLog(1, ledger, ClockOffsets(2, ranks_per_host=2))
    return RankWorld(group, Gate(), lambda: True, lambda: True, arrivals, ledger, is_leader=is_leader), group, ledger


@pytest.mark.parametrize(("is_leader", "env_steps"), [(False, 40), (True, 47)])
def test_env_steps_are_counted_once_per_host(is_leader: bool, env_steps: int) -> None:
    world = joined(40, False, False, False, is_leader=is_leader)
    assert world.agree(is_stopping=False) is False
    assert (world.env_steps, world.stopped_by) == (env_steps, None)


@pytest.mark.parametrize(("wants_report", "wants_save"), [(False, True), (True, False)])
def test_rank_0_alone_decides_when_to_report_and_when_to_save(wants_report: bool, wants_save: bool) -> None:
    world = joined(40, wants_report, False, wants_save)
    world.agree(is_stopping=False)
    assert (world.is_reporting, world.is_saving) == (wants_report, wants_save)


@pytest.mark.parametrize(("other", "own", "stopped_by"), [(True, False, 0), (False, True, 1), (True, True, 0)])
def test_a_rank_that_stops_stops_all_and_the_first_is_named(other: bool, own: bool, stopped_by: int) -> None:
    world = joined(40, False, other, False)
    assert world.agree(is_stopping=own) is True
    assert world.stopped_by == stopped_by


def test_recount_agrees_on_env_steps_alone() -> None:
    world = joined(40, is_leader=True)
    world.recount()
    assert world.env_steps == 47


def test_a_gathering_is_an_exchange_and_carries_its_own_arrival() -> None:
    world, group, ledger = timed(40)
    group.took_ns = 7
    np.testing.assert_array_equal(world.gather((2.0,)), [[40.0], [2.0]])
    account = ledger.account()
    assert (account.phases_ns["param_sync"], account.wall_ns) == (7, 7)
    assert world.late_waits_ns == [0, 0]
    assert world.arrivals().iterations == 0
    world, _, _ = timed(40, False, False, False)
    world.agree(is_stopping=False)
    assert world.arrivals() == (1, 0, 0, 0, 0)


def test_clocks_are_compared_by_exchanges_and_one_gathering() -> None:
    world, group, _ = timed()
    world.compare_clocks()
    assert group.num_gathered == CLOCK_EXCHANGES + 1
    assert world.arrivals().iterations == 0


def test_alone_nobody_is_late() -> None:
    world = SoloWorld(Gate(), never, never)
    assert (world.arrivals(), world.late_waits_ns) == (ArrivalTotals(), (0,))
