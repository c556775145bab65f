"""Evaluation: complete episodes, a fixed quota per environment, raw returns, fresh seeds."""

from __future__ import annotations

import numpy as np
import torch

from offpolicy.collect.evaluation import _run_quotas, evaluate, rollout_returns
from offpolicy.config import AlgoConfig, EnvConfig
from offpolicy.nets.policy import Policy, make_policy
from offpolicy.types import SpaceSpec, StepOutcome

POINT_MASS = EnvConfig(id="offpolicy.envs.toy:PointMass-v0")
COUNTER = EnvConfig(id="offpolicy.envs.toy:Counter-v0", kwargs={"truncate_at": 7})


def make(obs_dim: int, action_dim: int) -> Policy:
    spec = SpaceSpec(obs_dim, action_dim, (-1.0,) * action_dim, (1.0,) * action_dim)
    torch.manual_seed(0)
    return make_policy(AlgoConfig(hidden_dims=(8,)), spec).eval()


class LengthIsReturn:
    """Two environments whose episodes last 1 and 5 steps, reward 1 per step: short ones finish more often."""

    def __init__(self) -> None:
        self.t = np.zeros(2, dtype=np.int64)
        self.was_done = np.zeros(2, dtype=np.bool_)

    def step(self, action: np.ndarray) -> StepOutcome:
        is_valid = ~self.was_done
        self.t = np.where(is_valid, self.t + 1, 0)
        self.was_done = (self.t >= np.array([1, 5])) & is_valid
        zeros, success = np.zeros(2, dtype=np.bool_), np.zeros(2, np.float32)
        reward = np.where(is_valid, 1.0, 100.0)  # a reset row's reward must not be counted
        return StepOutcome(np.zeros((2, 1), np.float32), reward, self.was_done, zeros, is_valid, success)


def test_every_environment_contributes_its_quota_however_long_its_episodes_are() -> None:
    policy = make(1, 1)
    returns, lengths = _run_quotas(policy, np.zeros((2, 1), np.float32), LengthIsReturn().step, np.array([3, 3]))
    assert sorted(returns) == [1.0, 1.0, 1.0, 5.0, 5.0, 5.0]
    assert sorted(lengths) == sorted(returns)


def test_exactly_the_episodes_asked_for_are_counted() -> None:
    for episodes in (1, 5, 33):
        returns, lengths = rollout_returns(make(3, 1), COUNTER, episodes=episodes, seed=0)
        assert len(returns) == episodes
        assert set(lengths) == {7.0}


def test_the_same_seed_gives_the_same_returns_and_another_seed_others() -> None:
    policy = make(4, 2)
    first = evaluate(policy, POINT_MASS, episodes=3, seed=1, env_steps=10)
    assert first == evaluate(policy, POINT_MASS, episodes=3, seed=1, env_steps=10)
    assert first.mean_reward != evaluate(policy, POINT_MASS, episodes=3, seed=2, env_steps=10).mean_reward
    assert (first.env_steps, first.episodes) == (10, 3)
