"""Soft actor-critic with twin critics and a tuned temperature (arXiv:1812.05905)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from offpolicy.algos.learner import module_tensors
from offpolicy.algos.losses import alpha_loss, sac_actor_loss, soft_value, td_target
from offpolicy.algos.metrics import MetricSums
from offpolicy.algos.optim import GuardedAdam, Objective, OptimizerStep, optimizer_tensors
from offpolicy.algos.parts import CriticTrainer, Seeds, make_critic, obs_normalizers
from offpolicy.config.schema import AlgoConfig
from offpolicy.nets.actors import SquashedGaussianActor
from offpolicy.nets.normalizer import RunningMoments
from offpolicy.nets.policy import make_policy
from offpolicy.protocols import Exchange
from offpolicy.types import Batch, SpaceSpec

METRICS = {
    "critic": ("critic_loss", "q_mean", "target_q_mean"),
    "actor": ("actor_loss", "ent_coef", "entropy"),
    "temperature": ("alpha_loss",),
}


class Temperature:
    """alpha = exp(log_alpha): tuned until the policy's entropy is the target's, or fixed."""

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec, descent: OptimizerStep) -> None:
        self.log_alpha = nn.Parameter(torch.tensor(math.log(algo.init_alpha), device=descent.guard.flag.device))
        self.optimizer = GuardedAdam({"log_alpha": self.log_alpha}, algo.value(algo.alpha_lr, 0), descent.guard)
        self.is_tuned = algo.auto_alpha
        self._given_entropy = float(-spec.action_dim) if algo.target_entropy is None else algo.target_entropy
        self._algo = algo
        self.follow(0)

    @property
    def alpha(self) -> Tensor:
        """The temperature, without gradient. []."""
        return self.log_alpha.detach().exp()

    def follow(self, env_steps: int) -> None:
        """Take what is scheduled as it is at an env step of the run."""
        self.optimizer.lr = self._algo.value(self._algo.alpha_lr, env_steps)
        self._target_entropy = self._algo.value(self._given_entropy, env_steps)

    def objective(self, log_prob: Tensor) -> Objective:
        """The temperature's step from the log-probabilities [B] of the actor's step."""
        return Objective(alpha_loss(self.log_alpha, log_prob, self._target_entropy), self.optimizer)


class Sac:
    """SAC's update rule. Actions, log-probabilities and entropies are those of the [-1, 1] space."""

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec, device: torch.device, seed: int, exchange: Exchange) -> None:
        seeds = Seeds(seed)
        with seeds.initial_weights():
            self.policy = make_policy(algo, spec).to(device)
            critic = make_critic(algo, spec).to(device)
        assert isinstance(self.policy.actor, SquashedGaussianActor)  # true by algo.name; narrows the union
        self.metrics = MetricSums(METRICS, device)
        self.descent = OptimizerStep(device, exchange)
        self.generator = seeds.generator(device)
        self._algo = algo
        self._actor = self.policy.actor
        actor_lr = algo.value(algo.actor_lr, 0)
        self._actor_optimizer = GuardedAdam(dict(self._actor.named_parameters()), actor_lr, self.descent.guard)
        self._critic = CriticTrainer(algo, critic, self.descent)
        self._temperature = Temperature(algo, spec, self.descent)

    def follow(self, env_steps: int) -> None:
        """Take what is scheduled as it is at an env step of the run."""
        self._actor_optimizer.lr = self._algo.value(self._algo.actor_lr, env_steps)
        self._critic.optimizer.lr = self._algo.value(self._algo.critic_lr, env_steps)
        self._temperature.follow(env_steps)

    def update_once(self, batch: Batch, num_updates: int) -> None:
        """Critics; every `policy_delay` updates actor and temperature; then the target critics."""
        self.metrics.add("critic", self._critic.step(batch, self._target_q(batch)))
        if num_updates % self._algo.policy_delay == 0:
            self._update_actor(batch.obs)
        self._critic.move_target()

    def named_tensors(self) -> dict[str, Tensor]:
        """The live tensors of networks and optimisers by flat name."""
        return {
            **module_tensors(policy=self.policy, critic=self._critic.online, target_critic=self._critic.target),
            "log_alpha": self._temperature.log_alpha,
            **optimizer_tensors(
                actor_optimizer=self._actor_optimizer,
                critic_optimizer=self._critic.optimizer,
                alpha_optimizer=self._temperature.optimizer,
            ),
        }

    def normalizers(self) -> Mapping[str, RunningMoments]:
        """That of the observations, where they are normalised."""
        return obs_normalizers(self.policy)

    @torch.no_grad()
    def _target_q(self, batch: Batch) -> Tensor:
        """The Bellman target [B] with a fresh action of the current policy; SAC has no target actor."""
        next_action, next_log_prob = self._actor.sample(batch.next_obs, self.generator)
        next_q = self._critic.target_q(batch.next_obs, next_action)
        next_value = soft_value(next_q, next_log_prob, self._temperature.alpha)
        return td_target(batch.reward, batch.discount, batch.terminated, next_value)

    def _update_actor(self, obs: Tensor) -> None:
        """The actor's step against the critics just updated, then the temperature's with the same sample."""
        alpha = self._temperature.alpha
        action, log_prob = self._actor.sample(obs, self.generator)
        loss = sac_actor_loss(self._critic.online.forward(obs, action), log_prob, alpha)
        objectives = [Objective(loss, self._actor_optimizer, self._algo.max_grad_norm)]
        if self._temperature.is_tuned:
            objectives.append(self._temperature.objective(log_prob))
            self.metrics.add("temperature", (objectives[1].loss.detach(),))
        self.descent.step(*objectives)
        self.metrics.add("actor", (loss.detach(), alpha, -log_prob.detach().mean()))
