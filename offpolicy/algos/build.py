"""From a configuration to its learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from offpolicy.algos.learner import Learner
from offpolicy.algos.replay_learner import ReplayLearner, UpdateRule
from offpolicy.algos.sac import Sac
from offpolicy.algos.td3 import Td3
from offpolicy.config import AlgoConfig
from offpolicy.types import SpaceSpec

RULES: Mapping[str, Callable[[AlgoConfig, SpaceSpec, torch.device, int], UpdateRule]] = {"sac": Sac, "td3": Td3}


def make_learner(algo: AlgoConfig, spec: SpaceSpec, device: torch.device, seed: int) -> Learner:
    """The learner named by `algo.name`; its weights and random numbers are a function of `seed` alone."""
    return ReplayLearner(RULES[algo.name](algo, spec, device, seed))
