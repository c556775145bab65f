"""The last evaluation: all ranks wait for its result together, until it is known or somebody asks to stop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from offpolicy.config.schema import RunConfig
from offpolicy.training.judges import Evaluator


class OtherRank:
    """The session of a rank that does not evaluate, and what the ranks say in each round."""

    env_steps = 60
    team = SimpleNamespace(average_every=0)

    def __init__(self, missing: list[bool], stopping: list[bool]) -> None:
        self.seat = SimpleNamespace(rank=1)
        self.job = SimpleNamespace(cfg=RunConfig.from_mapping({}))
        self._votes, self._meetings = iter([False, *missing]), iter(stopping)  # nobody's environment has failed

    def vote(self, flag: bool) -> bool:
        assert not flag, "a rank that does not evaluate misses nothing"
        return next(self._votes)

    def meet(self) -> bool:
        return next(self._meetings)

    @property
    def has_heard_all(self) -> bool:
        return next(self._votes, None) is None and next(self._meetings, None) is None


@pytest.mark.parametrize(
    ("missing", "stopping", "is_complete"),
    [
        ([False], [], True),
        ([True, True, False], [False, False], True),
        ([True, True, True], [False, True], False),  # a stop ends the waiting, and the run is not complete
        ([True, False], [True], True),  # it came with the result
    ],
)
def test_every_rank_waits_for_the_last_result_or_a_stop(
    missing: list[bool], stopping: list[bool], is_complete: bool
) -> None:
    session = OtherRank(missing, stopping)
    assert Evaluator(cast(Any, session), last_step=0).run_last(is_complete=True) is is_complete
    assert session.has_heard_all


def test_a_run_that_was_asked_to_stop_before_waits_for_nothing() -> None:
    session = OtherRank([], [])
    assert not Evaluator(cast(Any, session), last_step=0).run_last(is_complete=False)
