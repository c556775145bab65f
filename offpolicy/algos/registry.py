"""From a configuration to its learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from offpolicy.algos.adaptation import Adaptation
from offpolicy.algos.appo import Appo
from offpolicy.algos.base_learner import BaseLearner
from offpolicy.algos.learners import ReplayAlgorithm, ReplayLearner, RolloutAlgorithm, RolloutLearner
from offpolicy.algos.optim import SoloExchange
from offpolicy.algos.sac import Sac
from offpolicy.algos.td3 import Td3
from offpolicy.config.schema import AlgoConfig
from offpolicy.protocols import Exchange
from offpolicy.types import SpaceSpec


def _hora(algo: AlgoConfig, spec: SpaceSpec, device: torch.device, seed: int, exchange: Exchange) -> RolloutAlgorithm:
    rule = Adaptation if algo.is_adapting else Appo
    return rule(algo, spec, device, seed, exchange)


REPLAY_RULES: Mapping[str, Callable[[AlgoConfig, SpaceSpec, torch.device, int, Exchange], ReplayAlgorithm]] = {
    "sac": Sac,
    "td3": Td3,
}
ROLLOUT_RULES: Mapping[str, Callable[[AlgoConfig, SpaceSpec, torch.device, int, Exchange], RolloutAlgorithm]] = {
    "appo": Appo,
    "hora": _hora,
}


def make_learner(
    algo: AlgoConfig,
    spec: SpaceSpec,
    device: torch.device,
    seed: int,
    exchange: Exchange | None = None,
    average_every: int = 0,
) -> BaseLearner:
    """The learner named by `algo.name`; its weights and random numbers are a function of `seed` alone.

    `exchange` joins it with the other ranks: gradients are averaged before each step, or, with `average_every` > 0,
    the networks every so many iterations.
    """
    group = exchange or SoloExchange()
    own = SoloExchange() if average_every else group
    if algo.name in ROLLOUT_RULES:
        return RolloutLearner(ROLLOUT_RULES[algo.name](algo, spec, device, seed, own), group, average_every)
    return ReplayLearner(REPLAY_RULES[algo.name](algo, spec, device, seed, own), group, average_every)
