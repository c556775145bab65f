"""What the ranks agree on, and how late each of them is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from offpolicy.algos.optim import SoloExchange
from offpolicy.distributed.world import World, with_iteration
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase
from offpolicy.types import LateTotals
from tests.fakes import FakeClock

Requests = Callable[[], tuple[bool, bool]]


class Gate:
    env_steps = 7

    def wait_for(self, env_steps: int) -> None: ...

    def grant(self, env_steps: int) -> None: ...


def alone(requests: Requests = lambda: (False, False)) -> World:
    return World(Gate(), requests, Ledger(LearnerPhase, FakeClock()), SoloExchange())


def test_alone_reports_and_checkpoints_are_made_when_they_are_asked_for() -> None:
    asked = [(True, False), (False, True), (False, False)]
    world, seen = alone(lambda: asked.pop(0)), []
    for _ in range(3):
        world.agree(is_stopping=False)
        seen.append((world.is_reporting, world.is_saving))
    assert seen == [(True, False), (False, True), (False, False)]


def test_alone_the_rank_that_stops_is_rank_0() -> None:
    world = alone()
    assert world.stopped_by is None
    assert world.agree(is_stopping=True) is True
    assert world.stopped_by == 0


def test_alone_what_is_gathered_is_this_ranks() -> None:
    world = alone()
    assert world.gather((1.5, 2.0)).tolist() == [[1.5, 2.0]]
    assert (world.any(True), world.any(False), world.total(3.0)) == (True, False, 3.0)


class FakeGroup:
    """Rank 1 of 2; the other rank brings the same row each time."""

    rank, num_ranks, backend = 1, 2, "gloo"

    def __init__(self, *other: float) -> None:
        self._other = torch.tensor(other, dtype=torch.float64)

    def gather(self, vector: Tensor) -> Tensor:
        return torch.stack([self._other[: len(vector)], vector])


def joined(*other: float, is_leader: bool = False, asks: bool = True) -> World:
    """The world of rank 1: what rank 0 says are env steps, wish for a report, stop, wish to save and work."""
    group, ledger = cast(Any, FakeGroup(*other, 0.0)), Ledger(LearnerPhase, FakeClock())
    return World(Gate(), lambda: (asks, asks), ledger, SoloExchange(), group, is_leader=is_leader)


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
    world = joined(40, False, False, other, is_leader=is_leader)
    world.agree(is_stopping=False)
    assert world.is_saving is is_saving


@pytest.mark.promise("ranks-together")
@pytest.mark.parametrize(("other", "own", "stopped_by"), [(True, False, 0), (False, True, 1), (True, True, 0)])
def test_a_rank_that_stops_stops_all_and_the_first_is_named(other: bool, own: bool, stopped_by: int) -> None:
    world = joined(40, False, other, False)
    assert world.agree(is_stopping=own) is True
    assert world.stopped_by == stopped_by


def test_a_flag_of_any_rank_counts_for_all_and_a_total_is_over_all() -> None:
    assert joined(1.0).any(False)
    assert not joined(0.0).any(False)
    assert joined(4.0).total(3.0) == 7.0


def test_a_rank_is_late_by_what_it_works_longer_than_the_median_rank() -> None:
    late = with_iteration(LateTotals(), (1000, 980, 990), rank=0)
    late = with_iteration(late, (1000, 1010, 990), rank=0)  # it is the median rank
    late = with_iteration(late, (1000, 300, 300), rank=0)  # of a pause a tenth of the work counts
    assert late == (3, 2, 10 + 700, 10 + 100)


def test_publishing_and_reporting_are_no_work_that_makes_a_rank_late() -> None:
    clock, group = FakeClock(), cast(Any, FakeGroup(40, False, False, False, 100))
    ledger = Ledger(LearnerPhase, clock)
    ledger.end_warmup()
    world = World(Gate(), lambda: (False, False), ledger, SoloExchange(), group)
    for phase in (LearnerPhase.TRAIN, LearnerPhase.WEIGHT_PUBLISH):
        with ledger.phase(phase):
            clock.advance(120)
    world.agree(is_stopping=False)
    world.agree(is_stopping=False)  # an iteration without any work
    assert world.late == (2, 1, 20, 12)
