"""Evaluation: complete episodes, a fixed quota per environment, raw returns, fresh seeds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from offpolicy.collect.evaluation import MAX_EVAL_ENVS, _run_wave, acting, evaluate, random_actions, run_episodes
from offpolicy.config import AlgoConfig, EnvConfig
from offpolicy.envs.vector import VectorAdapter
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
        return StepOutcome(np.zeros((2, 1), np.float32), reward, self.was_done, zeros, is_valid, success, success)


def test_every_environment_contributes_one_episode_however_long_it_is() -> None:
    found = _run_wave(acting(make(1, 1)), np.zeros((2, 1), np.float32), LengthIsReturn().step)
    assert found[:, 0].tolist() == [1.0, 5.0]  # by environment, not by who is first
    assert found[:, 1].tolist() == [1.0, 5.0]


def test_episodes_begin_alike_however_many_run_side_by_side_and_whoever_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    act = acting(make(4, 2))
    together = run_episodes(act, POINT_MASS, episodes=5, seed=3)
    monkeypatch.setitem(MAX_EVAL_ENVS, "sync", 2)
    in_waves = run_episodes(act, POINT_MASS, episodes=5, seed=3)
    assert np.array_equal(together.ep_return, in_waves.ep_return)
    firsts: list[list[np.ndarray]] = [[], []]
    for scale, seen in zip((0.0, 0.9), firsts, strict=True):

        def other(obs: np.ndarray, scale: float = scale, seen: list[np.ndarray] = seen) -> np.ndarray:
            seen.append(obs)
            return np.full((len(obs), 2), scale, np.float32)

        run_episodes(other, POINT_MASS, episodes=2, seed=3)
    assert np.array_equal(firsts[0][0], firsts[1][0])


def test_once_told_to_stop_no_environment_is_reset_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAX_EVAL_ENVS, "sync", 1)
    begun: list[int] = []
    reset = VectorAdapter.reset

    def counted(vector: VectorAdapter, seed: int, first: int = 0) -> np.ndarray:
        begun.append(first)
        return reset(vector, seed, first)

    monkeypatch.setattr(VectorAdapter, "reset", counted)
    found = run_episodes(acting(make(4, 2)), POINT_MASS, episodes=5, seed=1, should_stop=lambda: True)
    assert begun == [0]
    assert len(found.ep_return) == 0


def test_the_measure_is_that_of_the_episodes_end() -> None:
    hand = "offpolicy.envs.hand:HandRotation-v0"
    kwargs = {"groups": ["obs"], "max_episode_steps": 4}
    cfg = EnvConfig(id=hand, kwargs=kwargs, vectorization="mujoco", measure="net_rotation")
    act = random_actions(SpaceSpec(96, 16, (-1.0,) * 16, (1.0,) * 16), seed=1)
    found = run_episodes(act, cfg, episodes=3, seed=1)
    assert np.isfinite(found.measure).all()
    assert len(set(found.measure)) == 3
    assert np.isnan(run_episodes(act, dataclasses.replace(cfg, measure=None), episodes=3, seed=1).measure).all()


def test_random_actions_reach_both_ends_and_every_choice() -> None:
    obs = np.zeros((400, 3), np.float32)
    box = random_actions(SpaceSpec(3, 2, (-1.0,) * 2, (1.0,) * 2), seed=1)(obs)
    assert (box.shape, box.dtype) == ((400, 2), np.float32)
    assert box.min() < -0.95 < 0.95 < box.max()
    choices = random_actions(SpaceSpec(3, 1, (0.0,), (3.0,), num_actions=4), seed=1)(obs)
    assert set(choices[:, 0].tolist()) == {0.0, 1.0, 2.0, 3.0}


def test_exactly_the_episodes_asked_for_are_counted() -> None:
    for episodes in (1, 5, 33):
        returns, lengths, _ = run_episodes(acting(make(3, 1)), COUNTER, episodes=episodes, seed=0)
        assert len(returns) == episodes
        assert set(lengths) == {7.0}


def test_the_same_seed_gives_the_same_returns_and_another_seed_others() -> None:
    policy = make(4, 2)
    first = evaluate(policy, POINT_MASS, episodes=3, seed=1, env_steps=10)
    assert first == evaluate(policy, POINT_MASS, episodes=3, seed=1, env_steps=10)
    assert first.mean_reward != evaluate(policy, POINT_MASS, episodes=3, seed=2, env_steps=10).mean_reward
    assert (first.env_steps, first.episodes) == (10, 3)
