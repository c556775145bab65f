from __future__ import annotations

import numpy as np

from offpolicy.distributed.world import SoloWorld


class Gate:
    env_steps = 7

    def wait_for(self, env_steps: int) -> None: ...

    def grant(self, env_steps: int) -> None: ...


def test_alone_env_steps_are_those_of_the_last_meeting() -> None:
    gate = Gate()
    world = SoloWorld(gate, lambda: False)
    assert world.env_steps == 7
    gate.env_steps = 9  # what comes in between is not agreed upon
    assert world.env_steps == 7
    assert world.meet(is_stopping=False) is False
    assert world.env_steps == 9


def test_alone_a_report_is_made_when_it_is_wanted() -> None:
    wishes = [True, False]
    world = SoloWorld(Gate(), lambda: wishes.pop(0))
    assert not world.is_reporting
    world.meet(is_stopping=False)
    assert world.is_reporting
    world.meet(is_stopping=False)
    assert not world.is_reporting


def test_alone_whoever_stops_is_rank_0() -> None:
    world = SoloWorld(Gate(), lambda: False)
    assert world.stopped_by is None
    assert world.meet(is_stopping=True) is True
    assert world.stopped_by == 0


def test_alone_a_gathering_is_a_table_of_one_row() -> None:
    table = SoloWorld(Gate(), lambda: False).gather((1.5, True, 3))
    np.testing.assert_array_equal(table, [[1.5, 1.0, 3.0]])
    assert table.dtype == np.float64
