"""Periodic evaluation: when it is due, and how all ranks wait for the last result together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.checkpoint import read_best
from offpolicy.errors import EnvFailure, NumericsError, PeerEnvFailure
from offpolicy.training.evaluators import InlineEvaluator, PeriodicEvaluation
from offpolicy.training.rank import Rank
from offpolicy.training.weight_publisher import WeightPublisher
from offpolicy.types import Float64
from tests.unit.training.conftest import TINY, FakeWorld, MakeRank, run_if_due, tiny_learner


class FakeEvaluator:
    """Notes the env steps that it is asked to evaluate."""

    def __init__(self, error: EnvFailure | NumericsError | None = None) -> None:
        self.asked: list[int] = []
        self.last_result_step, self._error = 0, error
        self.stops_early = False

    def evaluate(self, env_steps: int) -> None:
        self.asked.append(env_steps)
        if self._error is not None:
            raise self._error
        self.last_result_step = env_steps

    def wait_result(self) -> bool:
        return True

    def close(self) -> None:
        self.asked.append(-1)


def evaluation(
    make_rank: MakeRank,
    evaluator: Any,
    world: Any = None,
    *,
    index: int = 0,
    last_step: int = 0,
    **tree: Any,
) -> tuple[PeriodicEvaluation, Any]:
    world = world or FakeWorld()
    rank = make_rank(index=index, **tree)
    return PeriodicEvaluation(rank, world, evaluator, last_step), world


def test_an_evaluation_is_due_at_every_multiple_passed(make_rank: MakeRank) -> None:
    evaluator = FakeEvaluator()
    periodic, world = evaluation(make_rank, evaluator, last_step=100, eval={"every": 100, "episodes": 1})
    for world.env_steps in (150, 199, 205, 299, 460):
        run_if_due(periodic)
    assert evaluator.asked == [205, 460]
    assert periodic.last_step == 460


def test_the_end_is_not_evaluated_twice(make_rank: MakeRank) -> None:
    evaluator = FakeEvaluator()
    periodic, world = evaluation(make_rank, evaluator, eval={"every": 100, "episodes": 1})
    world.env_steps = 200
    run_if_due(periodic)
    assert periodic.run_last(is_complete=True)
    world.env_steps = 250
    assert periodic.run_last(is_complete=True)
    periodic.close()
    assert evaluator.asked == [200, 250, -1]


def test_the_evaluation_of_the_whole_budget_is_left_to_the_end(make_rank: MakeRank) -> None:
    """In the last iteration it was the time of an iteration, and of none of the rates: 73 env steps/s were "lost"."""
    evaluator = FakeEvaluator()
    periodic, world = evaluation(make_rank, evaluator, total_timesteps=1200, eval={"every": 600, "episodes": 1})
    for world.env_steps in (600, 1200, 1204):
        run_if_due(periodic)
    assert evaluator.asked == [600]
    assert periodic.run_last(is_complete=True)
    assert evaluator.asked == [600, 1204]


@pytest.mark.promise("ranks-together")
def test_an_environment_that_fails_on_rank_0_ends_every_rank(make_rank: MakeRank) -> None:
    failure = EnvFailure("it broke")
    on_rank_0, world = evaluation(make_rank, FakeEvaluator(failure), eval={"every": 100, "episodes": 1})
    world.env_steps = 100
    with pytest.raises(EnvFailure, match="it broke"):
        run_if_due(on_rank_0)
    assert [vote.tolist() for vote in world.gathered] == [[1.0]]  # the others learn of it before it is raised
    other, world = evaluation(make_rank, None, FakeWorld(2, lambda own: [np.ones(1)]), eval={"every": 100})
    world.env_steps = 100
    with pytest.raises(PeerEnvFailure, match="failed in the evaluation on rank 0"):
        run_if_due(other)


def test_a_policy_that_has_diverged_on_rank_0_ends_every_rank(make_rank: MakeRank) -> None:
    failure = NumericsError("NaN")
    on_rank_0, world = evaluation(make_rank, FakeEvaluator(failure), eval={"every": 100, "episodes": 1})
    world.env_steps = 100
    with pytest.raises(NumericsError, match=r"^NaN$"):
        run_if_due(on_rank_0)
    assert [vote.tolist() for vote in world.gathered] == [[0.0], [1.0]]  # no environment has failed; the policy has
    votes = iter([np.zeros(1), np.ones(1)])
    other, world = evaluation(make_rank, None, FakeWorld(2, lambda own: [next(votes)]), eval={"every": 100})
    world.env_steps = 100
    with pytest.raises(NumericsError, match="NaN or Inf in the evaluation on rank 0"):
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
    periodic, _ = evaluation(make_rank, None, world)
    assert periodic.run_last(is_complete=True) is is_complete
    assert world.is_done


@pytest.mark.parametrize(("is_reached", "is_complete"), [(True, True), (False, False)])
def test_a_run_that_its_results_end_is_complete_and_is_not_evaluated_again(
    make_rank: MakeRank, is_reached: bool, is_complete: bool
) -> None:
    evaluator = FakeEvaluator()
    periodic, world = evaluation(make_rank, evaluator, stop={"reward": 1.0})
    world.env_steps, evaluator.stops_early = 150, is_reached
    assert periodic.run_last(is_complete=False) is is_complete
    assert evaluator.asked == []


def test_every_rank_agrees_with_rank_0_that_the_results_end_the_run(make_rank: MakeRank) -> None:
    other, _ = evaluation(make_rank, None, FakeWorld(2, lambda own: [np.ones(1)]), stop={"patience": 2})
    assert not other.stops_early
    assert other.run_last(is_complete=False)


POINT_MASS = {"id": "offpolicy.envs.toy:PointMass-v0"}


def inline_evaluator(rank: Rank, last_step: int = 0) -> InlineEvaluator:
    publisher = WeightPublisher(rank, tiny_learner(rank))
    publisher.publish()
    return InlineEvaluator(rank, publisher, last_step)


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
