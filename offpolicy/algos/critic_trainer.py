"""The twin critics of SAC and TD3 with their target networks and their optimiser."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

from torch import Tensor, nn

from offpolicy.algos.losses import critic_loss, polyak_update
from offpolicy.algos.optim import GuardedAdam, Loss, OptimizerStep
from offpolicy.config.schema import AlgoConfig
from offpolicy.nets.critics import TwinCritic
from offpolicy.types import Batch

Network = TypeVar("Network", bound=nn.Module)


class TargetNetwork(Generic[Network]):
    """A copy of a network that follows it by Polyak averaging and never takes part in a backward pass."""

    def __init__(self, source: Network, tau: float) -> None:
        self.module: Network = copy.deepcopy(source).requires_grad_(False)
        self._tau = tau
        self._targets = tuple(self.module.parameters())
        self._sources = tuple(source.parameters())

    def follow(self) -> None:
        """Makes one Polyak step towards the source."""
        polyak_update(self._targets, self._sources, self._tau)


class CriticTrainer:
    """The twin critics, their targets and the one optimiser that holds both."""

    def __init__(self, algo: AlgoConfig, critic: TwinCritic, optimizer_step: OptimizerStep) -> None:
        self.online = critic
        self.target = TargetNetwork(critic, algo.tau)
        lr = algo.value(algo.critic_lr, 0)
        self.optimizer = GuardedAdam(dict(critic.named_parameters()), lr, optimizer_step.guard)
        self._optimizer_step = optimizer_step
        self._max_grad_norm = algo.max_grad_norm

    def target_q(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns the target critics' values. [B, O], [B, A] -> [C, B]."""
        return self.target.module.forward(obs, action)

    def step(self, batch: Batch, target_q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Makes one update towards target_q [B]. Returns critic_loss, q_mean and target_q_mean, on the device."""
        q = self.online.forward(batch.obs, batch.action)
        loss = critic_loss(q, target_q)
        self._optimizer_step.minimize(Loss(loss, self.optimizer, self._max_grad_norm))
        return loss.detach(), q.detach().mean(), target_q.mean()
