"""The returns of policies that learn nothing: uniformly random actions, and the same action always."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.learning.studies import FINAL_EPISODES
from offpolicy.collect.evaluation import random_actor, run_episodes
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.probe import probe
from offpolicy.types import Float32

SEED = 1
POLICIES = ("random", "constant")


def policies(env: EnvConfig) -> dict[str, dict[str, Any]]:  # Any: JSON data
    """Mean and standard deviation over the episodes of both policies, and the mean of the environment's measure."""
    spec = probe(env)

    def constant(obs: Float32) -> Float32:
        """The middle of every action of a Box, the first of a Discrete."""
        return np.zeros((len(obs), 1 if spec.num_actions else spec.action_dim), np.float32)

    found = {
        name: run_episodes(act, env, episodes=FINAL_EPISODES, seed=SEED)
        for name, act in zip(POLICIES, (random_actor(spec, SEED), constant), strict=True)
    }
    return {
        name: {
            "episodes": len(one.ep_return),
            "mean": float(one.ep_return.mean()),
            "std": float(one.ep_return.std()),
            **({str(env.measure): float(np.nanmean(one.measure))} if env.measure else {}),
        }
        for name, one in found.items()
    }
