"""What SAC and TD3 are made of: seeds, target networks, and the critics with their targets."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from offpolicy.algos.losses import critic_loss, polyak_update
from offpolicy.algos.optim import GuardedAdam, Objective, OptimizerStep
from offpolicy.config.schema import AlgoConfig
from offpolicy.nets.critics import TwinCritic
from offpolicy.nets.normalizer import RunningMoments
from offpolicy.nets.policy import Policy
from offpolicy.types import Batch, SpaceSpec

Network = TypeVar("Network", bound=nn.Module)


class Seeds:
    """Two independent streams of one seed: the initial weights and the random numbers of the updates."""

    def __init__(self, seed: int) -> None:
        weights, updates = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        self._weights, self._updates = int(weights), int(updates)

    @contextmanager
    def initial_weights(self) -> Iterator[None]:
        """Networks built on the CPU inside are a function of the seed; torch's global generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self._weights)
            yield

    def generator(self, device: torch.device) -> torch.Generator:
        """The generator of the updates."""
        return torch.Generator(device).manual_seed(self._updates)


class TargetNetwork(Generic[Network]):
    """A copy of a network that follows it by Polyak averaging and never takes part in a backward pass."""

    def __init__(self, source: Network, tau: float) -> None:
        self.module: Network = copy.deepcopy(source).requires_grad_(False)
        self._tau = tau
        self._targets = tuple(self.module.parameters())
        self._sources = tuple(source.parameters())

    def follow(self) -> None:
        """One Polyak step towards the source."""
        polyak_update(self._targets, self._sources, self._tau)


class CriticTrainer:
    """The twin critics, their targets and the one optimiser that holds both."""

    def __init__(self, algo: AlgoConfig, critic: TwinCritic, descent: OptimizerStep) -> None:
        self.online = critic
        self.optimizer = GuardedAdam(dict(critic.named_parameters()), algo.value(algo.critic_lr, 0), descent.guard)
        self._descent = descent
        self._target = TargetNetwork(critic, algo.tau)
        self._max_grad_norm = algo.max_grad_norm

    @property
    def target(self) -> TwinCritic:
        """The target critics."""
        return self._target.module

    def target_q(self, obs: Tensor, action: Tensor) -> Tensor:
        """The target critics' values. [B, O], [B, A] -> [C, B]."""
        return self.target.forward(obs, action)

    def step(self, batch: Batch, target_q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One update towards target_q [B]. Returns critic_loss, q_mean and target_q_mean, on the device."""
        q = self.online.forward(batch.obs, batch.action)
        loss = critic_loss(q, target_q)
        self._descent.step(Objective(loss, self.optimizer, self._max_grad_norm))
        return loss.detach(), q.detach().mean(), target_q.mean()

    def move_target(self) -> None:
        """One Polyak step of the target critics."""
        self._target.follow()


def obs_normalizers(policy: Policy) -> dict[str, RunningMoments]:
    """The observation normaliser of a policy by its name, if it has one."""
    return {} if policy.normalizer is None else {"obs": policy.normalizer}


def make_critic(algo: AlgoConfig, spec: SpaceSpec) -> TwinCritic:
    """The twin critics on the CPU, initialised from torch's global CPU generator."""
    return TwinCritic(spec.obs_dim, spec.action_dim, algo.hidden_dims, algo.activation, algo.critic_layer_norm)
