"""What a collector does about bad rows: their environments are reset, they are counted, and there is a limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.collect.bad_rows import BadRows
from offpolicy.collect.collector import Progress
from offpolicy.collect.replay_writer import BadRowError
from offpolicy.errors import NumericsError
from offpolicy.types import StepOutcome

NUMBERS, NO, YES = np.zeros(3, np.float32), np.zeros(3, np.bool_), np.ones(3, np.bool_)
OUTCOME = StepOutcome(np.ones((3, 2), np.float32), NUMBERS, NO, YES, YES, NUMBERS, NUMBERS)
BAD = BadRowError(np.array([0, 2]), {"reward": np.array([np.nan, 0.0, np.inf]), "obs": np.ones((3, 2))})


class Vector:
    """Three environments whose episodes begin with `first`."""

    num_envs = 3

    def __init__(self, first: float = 7.0, *, can_reset_some: bool = True) -> None:
        self.first, self.can_reset_some, self.seeds = first, can_reset_some, list[int]()

    def reset(self, seed: int) -> np.ndarray:
        self.seeds.append(seed)
        return np.full((3, 2), self.first, np.float32)

    def reset_some(self, seed: int, numbers: Any, where: np.ndarray) -> np.ndarray:
        return self.reset(seed)


def make(vector: Vector, limit: int = 10) -> tuple[BadRows, SimpleNamespace]:
    """Bad rows, and what they have changed."""
    seen = SimpleNamespace(warnings=[], abandoned=[], ep_return=np.ones(3), ep_length=np.array([4, 5, 6]))
    writer: Any = SimpleNamespace(abandon=seen.abandoned.extend)
    tracker: Any = seen
    env: Any = vector
    return BadRows(limit, 1, 0, env, writer, tracker, seen.warnings.append), seen


@pytest.mark.parametrize(("can_reset_some", "expected"), [(True, [7, 1, 7]), (False, [7, 7, 7])])
def test_the_environments_of_bad_rows_begin_again_and_theirs_are_no_transitions(
    can_reset_some: bool, expected: list[int]
) -> None:
    """Where all can only be reset together, the episodes of all end with the row, and none is glued to another."""
    bad, seen = make(Vector(can_reset_some=can_reset_some))
    outcome = bad.drop(BAD, OUTCOME, Progress(NUMBERS, env_steps=40))
    was_reset = [value == 7 for value in expected]
    assert outcome.next_obs[:, 0].tolist() == expected
    assert outcome.is_valid.tolist() == outcome.truncated.tolist() == [not value for value in was_reset]
    assert (seen.ep_length == 0).tolist() == (seen.ep_return == 0).tolist() == was_reset
    assert seen.abandoned == np.flatnonzero(was_reset).tolist()


def test_each_row_is_counted_and_each_reset_has_a_seed_of_its_own() -> None:
    vector = Vector()
    bad, seen = make(vector)
    for vector_steps in range(3):
        bad.drop(BAD, OUTCOME, Progress(NUMBERS, env_steps=40, vector_steps=vector_steps))
    assert len(set(vector.seeds)) == 3
    assert [text.rpartition(", ")[2] for text in seen.warnings] == [f"{n} of env.max_bad_rows=10" for n in (2, 4, 6)]


@pytest.mark.promise("nan-never-trained")
def test_one_bad_row_beyond_the_limit_names_environment_step_and_seed() -> None:
    bad, seen = make(Vector(), limit=1)
    text = "^NaN or Inf in reward of environment 0 at env step 40, episode step 4, seed 1$"
    with pytest.raises(NumericsError, match=text):
        bad.drop(BAD, OUTCOME, Progress(NUMBERS, env_steps=40))
    assert seen.warnings == []


def test_an_episode_that_begins_with_nan_is_an_error() -> None:
    bad, _ = make(Vector(np.nan))
    with pytest.raises(NumericsError, match="^NaN or Inf in the first observation of environment 0, seed 1$"):
        bad.drop(BAD, OUTCOME, Progress(NUMBERS, env_steps=40))
    with pytest.raises(NumericsError, match="of environment 1, seed 1$"):
        bad.require_finite(np.array([[1, 2], [3, np.nan], [5, 6]], np.float32))
