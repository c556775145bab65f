"""The returns of policies that learn nothing: uniformly random actions, and the same action always."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.learning.studies import FINAL_EPISODES
from offpolicy.collect.evaluation import random_actor, run_episodes
from offpolicy.config.schema import RunConfig
from offpolicy.envs.probe import probe
from offpolicy.types import Float32

SEED = 1


def policies(config: RunConfig) -> dict[str, dict[str, Any]]:  # Any: JSON data
    """Mean and standard deviation over the episodes of both policies."""
    spec = probe(config.env)

    def constant(obs: Float32) -> Float32:
        """The middle of every action of a Box, the first of a Discrete."""
        return np.zeros((len(obs), 1 if spec.num_actions else spec.action_dim), np.float32)

    found = {
        name: run_episodes(act, config.env, episodes=FINAL_EPISODES, seed=SEED).ep_return
        for name, act in (("random", random_actor(spec, SEED)), ("constant", constant))
    }
    return {
        name: {"episodes": len(returns), "mean": float(returns.mean()), "std": float(returns.std())}
        for name, returns in found.items()
    }
