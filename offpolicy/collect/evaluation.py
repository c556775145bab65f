"""Evaluation of a policy on fresh, seeded environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from offpolicy.config import EnvConfig
from offpolicy.envs.vector import make_vector
from offpolicy.nets.policy import Policy
from offpolicy.seeding import env_seed, generator
from offpolicy.types import EvalResult, Float32, Float64, SpaceSpec, StepOutcome

# Environments side by side: those that are stepped in one call cost little more when they are many.
MAX_EVAL_ENVS = {"sync": 16, "mujoco": 128}
Stepper = Callable[[Float32], StepOutcome]
Actor = Callable[[Float32], Float32]  # observations [N, O] to actions [N, A]


class Episodes(NamedTuple):
    """Complete episodes. Episode i begins with a seed of its own, whoever acts and however many run side by side."""

    ep_return: Float64  # [E] raw
    length: Float64  # [E]
    measure: Float64  # [E] what `env.measure` names; NaN where nothing is measured


def never() -> bool:
    """Do not stop."""
    return False


def evaluate(
    policy: Policy, env: EnvConfig, *, episodes: int, seed: int, env_steps: int, should_stop: Callable[[], bool] = never
) -> EvalResult | None:
    """Mean and standard deviation of the raw returns of `episodes` complete episodes of the deterministic policy.

    `should_stop` is asked at every vector step; once it says so, there is no result.
    """
    found = run_episodes(acting(policy), env, episodes=episodes, seed=seed, should_stop=should_stop)
    if len(found.ep_return) < episodes:
        return None
    returns, lengths = found.ep_return, found.length
    return EvalResult(env_steps, float(returns.mean()), float(returns.std()), float(lengths.mean()), episodes)


def acting(policy: Policy) -> Actor:
    """A policy as its deterministic actions, of arrays."""
    device = next(policy.parameters()).device

    def act(obs: Float32) -> Float32:
        with torch.inference_mode():
            action: Float32 = policy.act(torch.from_numpy(obs).to(device)).cpu().numpy()
        return action

    return act


def random_actions(spec: SpaceSpec, seed: int) -> Actor:
    """Actions drawn uniformly, whatever is observed: from [-1, 1], or from the numbers of discrete ones."""
    rng = generator(seed, "random_policy")
    if spec.num_actions:
        return lambda obs: rng.integers(spec.num_actions, size=(len(obs), 1)).astype(np.float32)
    return lambda obs: rng.uniform(-1.0, 1.0, (len(obs), spec.action_dim)).astype(np.float32)


def run_episodes(
    act: Actor, env: EnvConfig, *, episodes: int, seed: int, should_stop: Callable[[], bool] = never
) -> Episodes:
    """`episodes` complete episodes, each begun with a seed of its own; fewer when told to stop.

    Waves of one episode per environment: taking the first to finish would favour short ones.
    """
    vectorization = "mujoco" if env.vectorization == "mujoco" else "sync"
    num_envs = min(episodes, MAX_EVAL_ENVS[vectorization])
    vector = make_vector(dataclasses.replace(env, vectorization=vectorization), num_envs)
    try:
        waves: list[Float64] = []
        for first in range(0, episodes, num_envs):
            obs = vector.reset(env_seed(seed, "evaluation"), first)
            waves.append(_run_wave(act, obs, vector.step, should_stop))
            if should_stop():  # a slow environment is not reset once more for nothing
                break
    finally:
        vector.close()
    found = np.concatenate(waves)[:episodes]
    return Episodes(*found[np.isfinite(found[:, 1])].T)  # those that have a length


def _run_wave(act: Actor, obs: Float32, step: Stepper, should_stop: Callable[[], bool] = never) -> Float64:
    """The first episode of every environment: return, length, measure [N, 3]; NaN for one that was not finished."""
    found = np.full((len(obs), 3), np.nan)
    running = np.zeros((2, len(obs)))  # return and length so far
    is_over = np.zeros(len(obs), np.bool_)
    while not is_over.all() and not should_stop():
        outcome = step(act(obs))
        obs = outcome.next_obs
        running += np.where(outcome.is_valid, (outcome.reward, np.ones(len(obs))), 0.0)
        ends = (outcome.terminated | outcome.truncated) & ~is_over
        found[ends] = np.stack((*running, outcome.measure), axis=1)[ends]
        is_over |= ends
    return found
