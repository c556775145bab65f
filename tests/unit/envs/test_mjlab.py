"""mjlab's cart-pole in the replay, where mjlab is installed (`pip install mjlab==1.6.0`, 2.3 GB, in a venv for it)."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.batches.mjlab import MjlabBatch
from offpolicy.envs.vector import make_vector
from offpolicy.replay.row_layout import RowLayout
from tests.unit.envs.test_batch import recorded

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # those of the simulator

NUM_ENVS, EPISODE, STEPS, SEED = 2, 5, 12, 1
TASK = "Mjlab-Cartpole-Balance"  # whose episodes end at the time limit alone


def make_short(num_envs: int) -> MjlabBatch:
    """Its episodes have `EPISODE` steps."""
    batch = MjlabBatch(num_envs, TASK)
    batch.env.cfg.episode_length_s = EPISODE * batch.env.step_dt
    return batch


def actions_of(step: int) -> np.ndarray:
    return np.array([[0.9], [-0.7]], np.float32) * (1 + step % 3) / 3


def untouched() -> tuple[np.ndarray, np.ndarray]:
    """Observations [T + 1, N, 5] and rewards [T, N] of mjlab itself, with the same seed and no end of an episode."""
    env: Any = MjlabBatch(NUM_ENVS, TASK).env
    import torch

    with contextlib.closing(env):
        obs, reward = [env.reset(seed=SEED)[0]["actor"].numpy().copy()], []
        for step in range(EPISODE):
            result = env.step(torch.from_numpy(actions_of(step)))
            obs.append(result[0]["actor"].numpy().copy())
            reward.append(result[1].numpy().copy())
    return np.stack(obs), np.stack(reward)


def test_the_replay_has_the_observation_in_which_an_episode_ended_and_the_reward_of_its_step() -> None:
    """An episode that ends at step 5 has the rows of one that goes on; mjlab's reward is the same memory each step."""
    pytest.importorskip("mjlab")
    true_obs, true_reward = untouched()
    cfg = EnvConfig(id="", batch=f"{__name__}:make_short", action_bounds=(-1.0, 1.0))
    with contextlib.closing(make_vector(cfg, NUM_ENVS)) as vector:
        begun = vector.begin([SEED] * NUM_ENVS, np.ones(NUM_ENVS, np.bool_))
        actions = [actions_of(step) for step in range(STEPS)]
        outcomes, rows = recorded(vector, begun, actions, RowLayout(obs_dim=10, action_dim=1))
    assert [bool(each.truncated.all()) for each in outcomes] == [step % EPISODE == EPISODE - 1 for step in range(STEPS)]
    rows = rows.reshape(STEPS, NUM_ENVS, -1)
    obs, next_obs, reward = rows[:, :, :5], rows[:, :, 10:15], rows[:, :, 21]  # `actor` is the first group
    for step in range(EPISODE):
        np.testing.assert_array_equal(obs[step], true_obs[step])
        np.testing.assert_array_equal(next_obs[step], true_obs[step + 1])
        np.testing.assert_array_equal(reward[step], true_reward[step])
        np.testing.assert_array_equal(outcomes[step].reward, true_reward[step])
    assert np.abs(next_obs[EPISODE - 1] - obs[EPISODE]).max() > 0.05  # it is not the first of the next episode
