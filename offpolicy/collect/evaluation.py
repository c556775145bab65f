"""Evaluation of the deterministic policy on fresh, seeded environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from offpolicy.config import EnvConfig
from offpolicy.envs.vector import make_vector
from offpolicy.nets.policy import Policy
from offpolicy.seeding import env_seed
from offpolicy.types import EvalResult, Float32, Float64, StepOutcome

MAX_EVAL_ENVS = 16
Stepper = Callable[[Float32], StepOutcome]


def never() -> bool:
    """Do not stop."""
    return False


def evaluate(
    policy: Policy, env: EnvConfig, *, episodes: int, seed: int, env_steps: int, should_stop: Callable[[], bool] = never
) -> EvalResult | None:
    """Mean and standard deviation of the raw returns of `episodes` complete episodes.

    `should_stop` is asked at every vector step; once it says so, there is no result.
    """
    returns, lengths = rollout_returns(policy, env, episodes=episodes, seed=seed, should_stop=should_stop)
    if len(returns) < episodes:
        return None
    return EvalResult(env_steps, float(returns.mean()), float(returns.std()), float(lengths.mean()), episodes)


def rollout_returns(
    policy: Policy, env: EnvConfig, *, episodes: int, seed: int, should_stop: Callable[[], bool] = never
) -> tuple[Float64, Float64]:
    """Raw returns [episodes] and lengths [episodes]; fewer when told to stop.

    Every environment has a fixed quota of episodes: taking the first to finish would favour short ones.
    """
    num_envs = min(episodes, MAX_EVAL_ENVS)
    quota = np.full(num_envs, episodes // num_envs) + (np.arange(num_envs) < episodes % num_envs)
    vector = make_vector(dataclasses.replace(env, vectorization="sync"), num_envs)
    try:
        return _run_quotas(policy, vector.reset(env_seed(seed, "evaluation")), vector.step, quota, should_stop)
    finally:
        vector.close()


def _run_quotas(
    policy: Policy, obs: Float32, step: Stepper, quota: NDArray[np.int64], should_stop: Callable[[], bool] = never
) -> tuple[Float64, Float64]:
    device = next(policy.parameters()).device
    finished = np.zeros(len(quota), dtype=np.int64)
    running_return, running_length = np.zeros(len(quota)), np.zeros(len(quota))
    returns: list[float] = []
    lengths: list[float] = []
    while (finished < quota).any() and not should_stop():
        with torch.inference_mode():
            action = policy.act(torch.from_numpy(obs).to(device)).cpu().numpy()
        outcome = step(action)
        obs = outcome.next_obs
        running_return += np.where(outcome.is_valid, outcome.reward, 0.0)
        running_length += outcome.is_valid
        for env in np.flatnonzero((outcome.terminated | outcome.truncated) & outcome.is_valid):
            if finished[env] < quota[env]:
                returns.append(running_return[env])
                lengths.append(running_length[env])
            finished[env] += 1
            running_return[env] = running_length[env] = 0.0
    return np.array(returns), np.array(lengths)
