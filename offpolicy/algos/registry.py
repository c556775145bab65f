"""The update rule of every algorithm of the configuration, and its learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from offpolicy import plugins
from offpolicy.algos.adaptation import Adaptation
from offpolicy.algos.appo import Appo
from offpolicy.algos.base_learner import BaseLearner
from offpolicy.algos.flashsac import FlashSac
from offpolicy.algos.learners import ReplayAlgorithm, ReplayLearner, RolloutAlgorithm, RolloutLearner
from offpolicy.algos.optim import SoloExchange
from offpolicy.algos.sac import Sac
from offpolicy.algos.td3 import Td3
from offpolicy.config.sections import (
    APPO,
    FLASHSAC,
    HORA_ADAPT,
    HORA_TEACH,
    SAC,
    TD3,
    AlgoConfig,
    AlgorithmInfo,
    algorithm_plugin,
)
from offpolicy.protocols import Exchange
from offpolicy.types import SpaceSpec

REPLAY_ALGORITHMS: Mapping[
    AlgorithmInfo, Callable[[AlgoConfig, SpaceSpec, torch.device, int, Exchange], ReplayAlgorithm]
] = {FLASHSAC: FlashSac, SAC: Sac, TD3: Td3}
ROLLOUT_ALGORITHMS: Mapping[
    AlgorithmInfo, Callable[[AlgoConfig, SpaceSpec, torch.device, int, Exchange], RolloutAlgorithm]
] = {APPO: Appo, HORA_TEACH: Appo, HORA_ADAPT: Adaptation}


def make_learner(
    algo: AlgoConfig,
    spec: SpaceSpec,
    device: torch.device,
    seed: int,
    exchange: Exchange | None = None,
    average_every: int = 0,
) -> BaseLearner:
    """Returns the learner of `algo`; its weights and random numbers are a function of `seed` alone.

    `exchange` joins it with the other ranks: gradients are averaged before each step, or, with `average_every` > 0,
    the networks every so many iterations.
    """
    group = exchange or SoloExchange()
    own = SoloExchange() if average_every else group
    plugin = algorithm_plugin(algo.name)
    rule = None if plugin is None else plugins.resolve(plugin, algo.info.update_rule)
    if algo.learns_from_rollouts:
        make_rollout = rule or ROLLOUT_ALGORITHMS[algo.info]
        return RolloutLearner(make_rollout(algo, spec, device, seed, own), group, average_every)
    algorithm = (rule or REPLAY_ALGORITHMS[algo.info])(algo, spec, device, seed, own)
    return ReplayLearner(algorithm, group, average_every, algo.policy_delay)
