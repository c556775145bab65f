from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from offpolicy.distributed.arrivals import ArrivalLog
from offpolicy.distributed.clock_offsets import ClockOffsets
from offpolicy.distributed.world import RankWorld, SoloWorld
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase
from tests.fakes import FakeClock


class Gate:
    env_steps = 7

    def wait_for(self, env_steps: int) -> None: ...

    def grant(self, env_steps: int) -> None: ...


def no() -> bool:
    return False


def test_alone_a_checkpoint_is_saved_when_it_is_wanted() -> None:
    wishes = [True, False]
    world = SoloWorld(Gate(), no, lambda: wishes.pop(0))
    seen = [world.is_saving]
    for _ in range(2):
        world.agree(is_stopping=False)
        seen.append(world.is_saving)
    assert seen == [False, True, False]


def test_alone_the_rank_that_stops_is_rank_0() -> None:
    world = SoloWorld(Gate(), no, no)
    assert world.stopped_by is None
    assert world.agree(is_stopping=True) is True
    assert world.stopped_by == 0


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


def joined(*other: float, is_leader: bool = False, wants_save: Callable[[], bool] = no) -> RankWorld:
    return timed(*other, is_leader=is_leader, wants_save=wants_save)[0]


def timed(*other: float, is_leader: bool = False, wants_save: Callable[[], bool] = no) -> tuple[RankWorld, Any, Ledger]:
    """A world, its group and its ledger, which stands at 0."""
    clock = FakeClock()
    group: Any = FakeGroup(other, clock)
    ledger = Ledger(LearnerPhase, clock)
    ledger.end_warmup()
    arrivals = ArrivalLog(1, ledger, ClockOffsets(2, ranks_per_host=2))
    return RankWorld(group, Gate(), lambda: True, wants_save, arrivals, ledger, is_leader=is_leader), group, ledger


@pytest.mark.parametrize(("is_leader", "env_steps"), [(False, 40), (True, 47)])
def test_env_steps_are_counted_once_per_host(is_leader: bool, env_steps: int) -> None:
    world = joined(40, False, False, False, is_leader=is_leader)
    assert world.agree(is_stopping=False) is False
    assert (world.env_steps, world.stopped_by) == (env_steps, None)


@pytest.mark.parametrize("wants_report", [False, True])
def test_rank_0_alone_decides_when_to_report(wants_report: bool) -> None:
    world = joined(40, wants_report, False, False)
    world.agree(is_stopping=False)
    assert world.is_reporting is wants_report


@pytest.mark.promise("ranks-together")
@pytest.mark.parametrize(("other", "is_leader", "is_saving"), [(1, False, True), (0, True, True), (0, False, False)])
def test_a_checkpoint_that_one_leader_wants_is_saved_by_all(other: int, is_leader: bool, is_saving: bool) -> None:
    world = joined(40, False, False, other, is_leader=is_leader, wants_save=lambda: True)
    world.agree(is_stopping=False)
    assert world.is_saving is is_saving


@pytest.mark.promise("ranks-together")
@pytest.mark.parametrize(("other", "own", "stopped_by"), [(True, False, 0), (False, True, 1), (True, True, 0)])
def test_a_rank_that_stops_stops_all_and_the_first_is_named(other: bool, own: bool, stopped_by: int) -> None:
    world = joined(40, False, other, False)
    assert world.agree(is_stopping=own) is True
    assert world.stopped_by == stopped_by
