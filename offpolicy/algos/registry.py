"""The update rule and the policy of every algorithm of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from offpolicy import plugins
from offpolicy.algos import fast
from offpolicy.algos.adaptation import Adaptation, Teacher
from offpolicy.algos.appo import Appo
from offpolicy.algos.flashsac import FlashSac
from offpolicy.algos.learner import Learner, ReplayRule, RolloutRule
from offpolicy.algos.optim import SoloExchange
from offpolicy.algos.sac import Sac
from offpolicy.algos.td3 import Td3
from offpolicy.config.algorithms import (
    APPO,
    FLASHSAC,
    HORA_ADAPT,
    HORA_TEACH,
    SAC,
    TD3,
    AlgoConfig,
    AlgorithmInfo,
    PolicyKind,
    algorithm_plugin,
)
from offpolicy.errors import ConfigError
from offpolicy.nets import policy
from offpolicy.nets.actor_critic import stochastic_actor
from offpolicy.nets.actors import Actor, deterministic_actor, soft_actor
from offpolicy.nets.hora import StudentActor, TeacherActor
from offpolicy.nets.policy import Policy
from offpolicy.nets.residual import residual_actor
from offpolicy.protocols import Exchange
from offpolicy.types import SpaceSpec

MakeRule = Callable[[AlgoConfig, SpaceSpec, torch.device, int, Exchange], ReplayRule | RolloutRule]
RULES: Mapping[AlgorithmInfo, MakeRule] = {
    FLASHSAC: FlashSac, SAC: Sac, TD3: Td3, APPO: Appo, HORA_TEACH: Teacher, HORA_ADAPT: Adaptation,
}  # fmt: skip

# As the rules of these kinds make their own.
ACTORS: Mapping[PolicyKind, Callable[[AlgoConfig, SpaceSpec], Actor]] = {
    PolicyKind.SQUASHED_GAUSSIAN: soft_actor,
    PolicyKind.DETERMINISTIC: deterministic_actor,
    PolicyKind.RESIDUAL: residual_actor,
    PolicyKind.STOCHASTIC: stochastic_actor,
    PolicyKind.TEACHER: TeacherActor,
    PolicyKind.STUDENT: StudentActor,
}


def make_learner(
    algo: AlgoConfig, spec: SpaceSpec, device: torch.device, seed: int, exchange: Exchange | None = None
) -> Learner:
    """Returns the learner of `algo`; its weights and random numbers are a function of `seed` alone.

    `exchange` joins it with the other ranks: gradients are averaged before each step. Raises `ConfigError` where
    `algo.kernels` is fast and there are no fast kernels for it.
    """
    plugin = algorithm_plugin(algo.name)
    rule: MakeRule = RULES[algo.info] if plugin is None else plugins.resolve(plugin, algo.info.update_rule)
    why_textbook = "algo.kernels=textbook" if algo.kernels == "textbook" else fast.why_not(rule, algo, spec, device)
    if not why_textbook:
        rule = fast.RULES[rule]
    elif algo.kernels == "fast":
        raise ConfigError(f"algo.kernels: got fast, allowed auto or textbook with {why_textbook}")
    learner = Learner(rule(algo, spec, device, seed, exchange or SoloExchange()), algo)
    learner.kernels = "textbook" if why_textbook else "fast"
    learner.why_textbook = why_textbook if rule in fast.RULES else ""
    return learner


def make_policy(algo: AlgoConfig, spec: SpaceSpec) -> Policy:
    """Returns the policy of `algo` on the CPU, initialised from torch's global CPU generator."""
    return policy.make_policy(algo, spec, ACTORS[algo.info.policy])
