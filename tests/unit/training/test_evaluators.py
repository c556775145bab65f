"""Periodic evaluation: when it is due, and how all ranks wait for the last result together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.checkpoint import read_best
from offpolicy.errors import EnvFailure, NumericsError, PeerEnvFailure
from offpolicy.training.evaluators import Evaluator, InlineEvaluator
from offpolicy.training.rank import Rank
from offpolicy.training.reporter import WeightPublisher
from offpolicy.types import Float64
from tests.unit.training.conftest import TINY, FakeWorld, MakeRank, run_if_due, tiny_learner


class FakeEvaluator(Evaluator):
    """Notes the env steps that it is asked to evaluate, and the end as -1."""

    error: EnvFailure | NumericsError | None = None

    def __init__(self, rank: Rank, world: FakeWorld, last_step: int) -> None:
        super().__init__(rank, world, last_step)
        self.asked: list[int] = []
        self.is_reached = False

    @property
    def stops_early(self) -> bool:
        return self.is_reached

    def evaluate(self, env_steps: int) -> None:
        self.asked.append(env_steps)
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.asked.append(-1)


def on_rank_0(make_rank: MakeRank, *, last_step: int = 0, **tree: Any) -> tuple[FakeEvaluator, FakeWorld]:
    world = FakeWorld()
    return FakeEvaluator(make_rank(**tree), world, last_step), world


def on_another_rank(make_rank: MakeRank, world: FakeWorld, **tree: Any) -> Evaluator:
    return Evaluator(make_rank(**tree), world, 0)


def test_an_evaluation_is_due_at_every_multiple_passed(make_rank: MakeRank) -> None:
    evaluator, world = on_rank_0(make_rank, last_step=100, eval={"every": 100, "episodes": 1})
    for world.env_steps in (150, 199, 205, 299, 460):
        run_if_due(evaluator)
    assert evaluator.asked == [205, 460]


def test_the_end_is_not_evaluated_twice(make_rank: MakeRank) -> None:
    evaluator, world = on_rank_0(make_rank, eval={"every": 100, "episodes": 1})
    world.env_steps = 200
    run_if_due(evaluator)
    assert evaluator.run_last(is_complete=True)
    world.env_steps = 250
    assert evaluator.run_last(is_complete=True)
    evaluator.close()
    assert evaluator.asked == [200, 250, -1]


def test_the_evaluation_of_the_whole_budget_is_left_to_the_end(make_rank: MakeRank) -> None:
    """In the last iteration it was the time of an iteration, and of none of the rates: 73 env steps/s were "lost"."""
    evaluator, world = on_rank_0(make_rank, total_timesteps=1200, eval={"every": 600, "episodes": 1})
    for world.env_steps in (600, 1200, 1204):
        run_if_due(evaluator)
    assert evaluator.asked == [600]
    assert evaluator.run_last(is_complete=True)
    assert evaluator.asked == [600, 1204]


@pytest.mark.promise("ranks-together")
@pytest.mark.parametrize(
    ("failure", "votes", "elsewhere", "text"),
    [
        (EnvFailure("it broke"), [1.0], PeerEnvFailure, "failed in the evaluation on rank 0"),
        (NumericsError("it broke"), [0.0, 1.0], NumericsError, "NaN or Inf in the evaluation on rank 0"),
    ],
)
def test_what_fails_in_an_evaluation_on_rank_0_ends_every_rank(
    make_rank: MakeRank, failure: EnvFailure | NumericsError, votes: list[float], elsewhere: type[Exception], text: str
) -> None:
    evaluator, world = on_rank_0(make_rank, eval={"every": 100, "episodes": 1})
    world.env_steps, evaluator.error = 100, failure
    with pytest.raises(type(failure), match=r"^it broke$"):
        run_if_due(evaluator)
    assert [vote.tolist() for vote in world.gathered] == [[vote] for vote in votes]  # before it is raised
    said = iter(votes)
    world = FakeWorld(2, lambda own: [np.array([next(said)])])
    other = on_another_rank(make_rank, world, eval={"every": 100})
    world.env_steps = 100
    with pytest.raises(elsewhere, match=text):
        run_if_due(other)


class OtherRanks(FakeWorld):
    """The votes of the ranks in each round, and whether one of them is stopping when they agree."""

    def __init__(self, missing: Sequence[bool], stopping: Sequence[bool]) -> None:
        super().__init__(2)
        self.env_steps = 60
        self._votes = iter([False, False, *missing])  # first: neither the environment nor the policy has failed
        self._meetings = iter(stopping)

    def gather(self, values: Sequence[float] | Float64) -> Float64:
        assert not values[0], "a rank that does not evaluate misses nothing"
        return np.array([values, (next(self._votes),)], dtype=np.float64)

    def agree(self, *, is_stopping: bool) -> bool:
        return next(self._meetings)

    @property
    def is_done(self) -> bool:
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
    make_rank: MakeRank, missing: list[bool], stopping: list[bool], is_complete: bool
) -> None:
    world = OtherRanks(missing, stopping)
    assert on_another_rank(make_rank, world).run_last(is_complete=True) is is_complete
    assert world.is_done


@pytest.mark.parametrize(("is_reached", "is_complete"), [(True, True), (False, False)])
def test_a_run_that_its_results_end_is_complete_and_is_not_evaluated_again(
    make_rank: MakeRank, is_reached: bool, is_complete: bool
) -> None:
    evaluator, world = on_rank_0(make_rank, stop={"reward": 1.0})
    world.env_steps, evaluator.is_reached = 150, is_reached
    assert evaluator.run_last(is_complete=False) is is_complete
    assert evaluator.asked == []


POINT_MASS = {"id": "offpolicy.envs.toy:PointMass-v0"}


def inline_evaluator(rank: Rank) -> InlineEvaluator:
    publisher = WeightPublisher(rank, tiny_learner(rank))
    publisher.publish()
    return InlineEvaluator(rank, FakeWorld(), 0, publisher)


def test_the_inline_evaluator_sends_the_result_of_the_published_weights(make_rank: MakeRank) -> None:
    rank = make_rank(eval={"episodes": 2}, env=POINT_MASS, **TINY)
    evaluator = inline_evaluator(rank)
    evaluator.evaluate(40)
    begun, *_, (kind, fields), ended = rank.child.sent  # type: ignore[attr-defined]  # a fake child
    assert (kind, fields["env_steps"], fields["episodes"], fields["policy_version"]) == ("eval", 40, 2, 1)
    assert (begun, ended) == (
        ("activity", {"text": "evaluating 2 episodes: learning waits"}),
        ("activity", {"text": ""}),
    )
    assert (evaluator.last_result_step, evaluator.wait_result()) == (40, True)
    evaluator.close()


def test_the_inline_evaluator_stops_the_run_and_says_why_once_the_return_is_reached(make_rank: MakeRank) -> None:
    rank = make_rank(eval={"episodes": 1}, env=POINT_MASS, stop={"reward": -1e9}, **TINY)
    evaluator = inline_evaluator(rank)
    assert not evaluator.stops_early
    evaluator.evaluate(40)
    assert evaluator.stops_early
    *_, (kind, fields), _ended = rank.child.sent  # type: ignore[attr-defined]  # a fake child
    assert (kind, fields["text"][:14]) == ("early_stop", "stopped early:")
    best = read_best(Path(rank.job.run_dir))
    assert best.env_steps == 40
    evaluator.close()
