"""EnvPool's rows beside Gymnasium's environments, where EnvPool is installed (`pip install 'offpolicy[envpool]'`)."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium
import numpy as np
import pytest

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.vector import make_vector
from offpolicy.errors import ConfigError
from offpolicy.types import Float32, StepOutcome

SEEDS, ALL = [7, 2**30 + 9], np.ones(2, np.bool_)


def rows(task: str, actions: Float32, *, seeds: list[int] = SEEDS, **kwargs: int) -> tuple[Float32, list[StepOutcome]]:
    """The first observations of two environments, and the rows of actions [T, 2, A]."""
    pytest.importorskip("envpool")
    batch = "offpolicy.envs.batches.envpool:EnvPoolBatch"
    with contextlib.closing(make_vector(EnvConfig(id="", batch=batch, kwargs={"task": task, **kwargs}), 2)) as vector:
        vector.begin([0, 0], ALL)  # those of the next one count
        return vector.begin(seeds, ALL), [vector.step(one) for one in actions]


def actions_of(steps: int) -> Float32:
    return np.random.default_rng(0).uniform(-1.0, 1.0, (steps, 2, 1)).astype(np.float32)


def test_a_truncated_episode_has_the_final_observation_of_gymnasium_and_the_row_after_it_is_not_valid() -> None:
    actions = actions_of(8)
    begun, found = rows("Pendulum-v1", actions, max_episode_steps=3)
    assert [row.truncated.tolist() for row in found] == [[step in (2, 6)] * 2 for step in range(8)]
    assert [row.is_valid.tolist() for row in found] == [[step not in (3, 7)] * 2 for step in range(8)]
    assert not any(row.terminated.any() for row in found)
    env: Any = gymnasium.make("Pendulum-v1").unwrapped
    env.reset()
    for obs, start in ((begun, 0), (found[3].next_obs, 4)):  # the two episodes
        for index, (cosine, sine, speed) in enumerate(obs.tolist()):
            env.state = np.array([np.arctan2(sine, cosine), speed])
            for action, row in zip(actions[start : start + 3], found[start : start + 3], strict=True):
                next_obs, reward, *_ = env.step(2.0 * action[index])
                np.testing.assert_allclose(row.next_obs[index], next_obs, atol=1e-4)
                np.testing.assert_allclose(row.reward[index], reward, atol=1e-3)


def test_a_fallen_pole_is_terminated_and_not_truncated() -> None:
    _, found = rows("CartPole-v1", np.ones((30, 2, 1), np.float32))
    ended = [row.next_obs[0] for row in found if row.terminated[0]]
    assert ended
    assert all(abs(obs[2]) > 0.2095 for obs in ended)  # the angle from which Gymnasium's has fallen
    assert not any(row.truncated.any() for row in found)


def test_the_same_seeds_give_the_same_rows_and_others_give_others() -> None:
    actions = actions_of(6)
    (begun, first), (_, again) = (rows("Pendulum-v1", actions, max_episode_steps=3, num_threads=n) for n in (1, 2))
    other_begun, other = rows("Pendulum-v1", actions, seeds=[SEEDS[0], 8], max_episode_steps=3)
    assert np.abs(begun[1] - other_begun[1]).max() > 1e-3
    for one, two, three in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(one.next_obs, two.next_obs)
        np.testing.assert_array_equal(one.next_obs[0], three.next_obs[0])


def test_a_task_that_it_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.kwargs\.task: got 'Nope-v1', allowed one of envpool.list_all_envs"):
        rows("Nope-v1", actions_of(0))
