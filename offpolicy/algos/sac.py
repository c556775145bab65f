"""Soft actor-critic with twin critics and a tuned temperature (arXiv:1812.05905)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from offpolicy.algos.base_learner import TEMPERATURE, Measured, MetricSums, Seeds, TensorGroups
from offpolicy.algos.losses import alpha_loss, td_target
from offpolicy.algos.optim import GuardedAdam, Loss, OptimizerStep, is_replayed
from offpolicy.algos.soft_actions import default_target_entropy, make_soft_actions
from offpolicy.config.sections import AlgoConfig
from offpolicy.nets.actors import SoftmaxActor, SquashedGaussianActor
from offpolicy.nets.critics import make_critic
from offpolicy.nets.fusing import differentiable, fuse, graphless
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

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec, optimizer_step: OptimizerStep) -> None:
        guard, device = optimizer_step.guard, optimizer_step.guard.flag.device
        self.log_alpha = nn.Parameter(torch.tensor(math.log(algo.init_alpha), device=device))
        parameters, lr = {"log_alpha": self.log_alpha}, algo.value(algo.alpha_lr, 0)
        self.optimizer = GuardedAdam(parameters, lr, guard, is_replayed=is_replayed(algo, device))
        self._log_alpha = self.log_alpha.detach()  # where the optimiser has moved it
        self.is_tuned = algo.auto_alpha
        self._target_entropy = torch.zeros((), device=device)  # a tensor, because updates may be replayed
        self._entropy_in_force = 0.0  # its number
        default = default_target_entropy(spec)
        self._given_entropy = default if algo.target_entropy is None else algo.target_entropy
        self._algo = algo
        self.follow_schedules(0)

    @property
    def alpha(self) -> Tensor:
        """The temperature, without gradient. []."""
        return self._log_alpha.exp()

    def follow_schedules(self, env_steps: int) -> None:
        """Sets scheduled options to their values at an env step of the run."""
        self.optimizer.follow(self._algo.value(self._algo.alpha_lr, env_steps))
        target = self._algo.value(self._given_entropy, env_steps)
        if target != self._entropy_in_force:
            self._target_entropy.fill_(target)
            self._entropy_in_force = target

    def loss(self, alpha: Tensor, entropy: Tensor) -> Loss:
        """Returns the loss of the temperature `alpha` [] for the policy's mean entropy [] in the actor's step."""
        loss = alpha_loss(alpha, entropy, self._target_entropy)
        return Loss(loss, self.optimizer, write_gradient=lambda: self.optimizer.gradient.copy_(loss))


class Sac:
    """SAC's update rule. Actions, log-probabilities and entropies are those of the [-1, 1] space, or discrete."""

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec, device: torch.device, seed: int, exchange: Exchange) -> None:
        seeds = Seeds(seed)
        with seeds.initial_weights():
            self.policy = make_policy(algo, spec).to(device)
            critic = make_critic(algo, spec).to(device)
        assert isinstance(self.policy.actor, SquashedGaussianActor | SoftmaxActor)  # true by algo.name
        self.metrics = MetricSums(METRICS, device)
        self.optimizer_step = OptimizerStep(device, exchange)
        self.generator = seeds.generator(device)
        self._algo = algo
        self._actor = self.policy.actor
        actor_lr = algo.value(algo.actor_lr, 0)
        guard, replayed = self.optimizer_step.guard, is_replayed(algo, device)
        parameters = dict(self._actor.named_parameters())
        self._actor_optimizer = GuardedAdam(parameters, actor_lr, guard, is_replayed=replayed)
        gradients = self._actor_optimizer.gradients
        fuse(self._actor, gradients, precision=algo.precision, products=algo.products)
        body = differentiable((self._actor.body,), gradients, self._actor.body.fused)
        self._actions = make_soft_actions(algo, self._actor, body, critic, self.optimizer_step, self.generator)
        self._critic = self._actions.critic
        self._temperature = Temperature(algo, spec, self.optimizer_step)
        self._graphless = graphless(body, *self._critic.networks, is_replayed=replayed)

    def follow_schedules(self, env_steps: int) -> None:
        """Sets scheduled options to their values at an env step of the run."""
        self._actor_optimizer.follow(self._algo.value(self._algo.actor_lr, env_steps))
        self._critic.optimizer.follow(self._algo.value(self._algo.critic_lr, env_steps))
        self._temperature.follow_schedules(env_steps)

    def update_once(self, batch: Batch, *, has_actor_step: bool) -> Measured:
        """Updates the critics; with an actor step also actor and temperature; then the target critics.

        Returns the measured metrics, by group.
        """
        with self._graphless():
            alpha = self._temperature.alpha
            next_value = self._actions.next_value(batch, alpha, has_actor_step=has_actor_step)
            target_q = td_target(batch.reward, batch.discount, batch.terminated, next_value)
            measured: Measured = {"critic": self._critic.step(batch, target_q)}
            if has_actor_step:
                measured |= self._update_actor(alpha)
            self._critic.target.follow()
        return measured

    def tensor_groups(self) -> TensorGroups:
        """Returns the live tensors of networks, normalisers and optimisers."""
        critics = {"critic": self._critic.online, "target_critic": self._critic.target.module}
        optimizers = {"actor_optimizer": self._actor_optimizer, "critic_optimizer": self._critic.optimizer}
        optimizers["alpha_optimizer"] = self._temperature.optimizer
        groups = TensorGroups.of({"policy": self.policy, **critics}, optimizers)
        groups.networks[TEMPERATURE] = self._temperature.log_alpha
        return groups

    def normalizers(self) -> Mapping[str, RunningMoments]:
        """Returns that of the observations, where they are normalised."""
        return self.policy.named_normalizers()

    def _update_actor(self, alpha: Tensor) -> Measured:
        """Updates the actor against the critics just updated, and the temperature with the same entropy.

        Returns the measured metrics, by group.
        """
        actor = self._actions.actor_loss(alpha)
        losses = [Loss(actor.value, self._actor_optimizer, self._algo.max_grad_norm, actor.write_gradient)]
        measured: Measured = {"actor": (actor.value, alpha, actor.entropy)}
        if self._temperature.is_tuned:
            losses.append(self._temperature.loss(alpha, actor.entropy))
            measured["temperature"] = (losses[1].value,)
        self.optimizer_step.minimize(*losses)
        return measured
