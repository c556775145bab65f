from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from offpolicy.distributed.world import RankWorld, SoloWorld


class Gate:
    env_steps = 7

    def wait_for(self, env_steps: int) -> None: ...

    def grant(self, env_steps: int) -> None: ...


def test_alone_env_steps_are_those_of_the_last_agreement() -> None:
    gate = Gate()
    world = SoloWorld(gate, lambda: False)
    assert world.env_steps == 7
    gate.env_steps = 9  # between two agreements
    assert world.env_steps == 7
    assert world.agree(is_stopping=False) is False
    assert world.env_steps == 9


def test_alone_a_report_is_made_when_it_is_wanted() -> None:
    wishes = [True, False]
    world = SoloWorld(Gate(), lambda: wishes.pop(0))
    assert not world.is_reporting
    world.agree(is_stopping=False)
    assert world.is_reporting
    world.agree(is_stopping=False)
    assert not world.is_reporting


def test_alone_the_rank_that_stops_is_rank_0() -> None:
    world = SoloWorld(Gate(), lambda: False)
    assert world.stopped_by is None
    assert world.agree(is_stopping=True) is True
    assert world.stopped_by == 0


def test_alone_gathered_values_are_a_table_of_one_row() -> None:
    table = SoloWorld(Gate(), lambda: False).gather((1.5, True, 3))
    np.testing.assert_array_equal(table, [[1.5, 1.0, 3.0]])
    assert table.dtype == np.float64


class FakeGroup:
    """Rank 1 of 2; the other rank always brings the same row."""

    rank, num_ranks = 1, 2

    def __init__(self, *other: float) -> None:
        self.other = torch.tensor(other, dtype=torch.float64)

    def gather(self, vector: Tensor) -> Tensor:
        return torch.stack([self.other, vector])


def joined(*other: float, is_leader: bool = False) -> RankWorld:
    group: Any = FakeGroup(*other)
    return RankWorld(group, Gate(), lambda: True, is_leader=is_leader)


@pytest.mark.parametrize(("is_leader", "env_steps"), [(False, 40), (True, 47)])
def test_env_steps_are_counted_once_per_host(is_leader: bool, env_steps: int) -> None:
    world = joined(40, False, False, is_leader=is_leader)
    assert world.agree(is_stopping=False) is False
    assert (world.env_steps, world.stopped_by) == (env_steps, None)


@pytest.mark.parametrize("wants_report", [False, True])
def test_rank_0_alone_decides_when_to_report(wants_report: bool) -> None:
    world = joined(40, wants_report, False)
    world.agree(is_stopping=False)
    assert world.is_reporting is wants_report


@pytest.mark.parametrize(("other", "own", "stopped_by"), [(True, False, 0), (False, True, 1), (True, True, 0)])
def test_a_rank_that_stops_stops_all_and_the_first_is_named(other: bool, own: bool, stopped_by: int) -> None:
    world = joined(40, False, other)
    assert world.agree(is_stopping=own) is True
    assert world.stopped_by == stopped_by


def test_recount_agrees_on_env_steps_alone() -> None:
    world = joined(40, is_leader=True)
    world.recount()
    assert world.env_steps == 47
