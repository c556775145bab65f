"""Soft actor-critic with twin critics and a tuned temperature (arXiv:1812.05905); discrete: arXiv:1910.07207."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from offpolicy.algos.learner import TEMPERATURE, Measured, MetricSums, Seeds
from offpolicy.algos.losses import alpha_loss, critic_loss, expected_soft_value, sac_actor_loss, soft_value, td_target
from offpolicy.algos.optim import GuardedAdam, Loss, OptimizerStep, TargetNetwork
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.actors import SoftmaxActor, SquashedGaussianActor, soft_actor
from offpolicy.nets.critics import DiscreteTwinCritic, TwinCritic, make_critic
from offpolicy.nets.policy import Policy, make_policy
from offpolicy.protocols import Exchange
from offpolicy.types import Batch, SpaceSpec

METRICS = {
    "critic": ("critic_loss", "q_mean", "target_q_mean"),
    "actor": ("actor_loss", "ent_coef", "entropy"),
    "temperature": ("alpha_loss",),
}
DISCRETE_TARGET = 0.98  # target entropy as a fraction of that of uniform actions, arXiv:1910.07207 appendix


class Temperature(nn.Module):
    """alpha = exp(log_alpha): tuned until the policy's entropy is the target's, or fixed."""

    def __init__(self, algo: AlgoConfig, default_target: float, optimizer_step: OptimizerStep) -> None:
        """`default_target` is the target entropy in nats where `algo.target_entropy` is null."""
        super().__init__()
        device = optimizer_step.guard.flag.device
        self.log_alpha = nn.Parameter(torch.tensor(math.log(algo.init_alpha), device=device))
        lr = algo.value(algo.alpha_lr, 0)
        self.optimizer = GuardedAdam({TEMPERATURE: self.log_alpha}, lr, optimizer_step.guard)
        self.is_tuned = algo.auto_alpha
        self.target_entropy = torch.zeros((), device=device)
        self._algo = algo
        self._target = default_target if algo.target_entropy is None else algo.target_entropy
        self.follow_schedules(0)

    @property
    def alpha(self) -> Tensor:
        """The temperature, without gradient. []."""
        return self.log_alpha.detach().exp()

    def follow_schedules(self, env_steps: int) -> None:
        """Sets scheduled options to their values at an env step of the run."""
        self.optimizer.follow(self._algo.value(self._algo.alpha_lr, env_steps))
        self.target_entropy.fill_(self._algo.value(self._target, env_steps))

    def loss(self, entropy: Tensor) -> Loss:
        """Returns the loss of the temperature for the policy's mean entropy []."""
        return Loss(alpha_loss(self.log_alpha.exp(), entropy, self.target_entropy), self.optimizer)


class Sac:
    """SAC's update rule. Box actions, those of a batch too, are in [-1, 1]; discrete ones are their numbers.

    On a CPU `fast.py` may make the updates. An edit of this file or a subclass turns that off; a patch of the class at
    run time does not: it needs `algo.kernels=textbook`.
    """

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec, device: torch.device, seed: int, exchange: Exchange) -> None:
        self.algo, seeds = algo, Seeds(seed)
        with seeds.initial_weights():
            self.policy = self.make_policy(algo, spec).to(device)
            self.critic = self.make_critic(algo, spec).to(device)
        self.actor = self.policy.actor
        self.metrics = MetricSums(METRICS, device)
        self.optimizer_step = OptimizerStep(device, exchange)
        self.generator = seeds.generator(device)
        guard = self.optimizer_step.guard
        actor_parameters = dict(self.actor.named_parameters())
        self.actor_optimizer = GuardedAdam(actor_parameters, algo.value(algo.actor_lr, 0), guard)
        self.target_critic = TargetNetwork(self.critic, algo.tau, lambda twin: twin.parameters_by_layer().values())
        critic_parameters = self.critic.parameters_by_layer()
        self.critic_optimizer = GuardedAdam(critic_parameters, algo.value(algo.critic_lr, 0), guard)
        self.temperature = Temperature(algo, self.default_target_entropy(spec), self.optimizer_step)
        critics = {"critic": self.critic, "target_critic": self.target_critic.module}
        # The temperature is named log_alpha, without a prefix.
        self.modules: dict[str, nn.Module] = {"policy": self.policy, **critics, "": self.temperature}
        self.optimizers = {"actor_optimizer": self.actor_optimizer, "critic_optimizer": self.critic_optimizer}
        self.optimizers["alpha_optimizer"] = self.temperature.optimizer
        self.absorbers = self.policy.absorbers()

    def make_policy(self, algo: AlgoConfig, spec: SpaceSpec) -> Policy:
        """Returns the policy."""
        return make_policy(algo, spec, soft_actor)

    def make_critic(self, algo: AlgoConfig, spec: SpaceSpec) -> TwinCritic:
        """Returns the critics."""
        return make_critic(algo, spec)

    def default_target_entropy(self, spec: SpaceSpec) -> float:
        """Returns -A for a Box (arXiv:1812.05905, appendix D), 0.98 log K for K discrete actions, in nats."""
        return DISCRETE_TARGET * math.log(spec.num_actions) if spec.num_actions else -float(spec.action_dim)

    def follow_schedules(self, env_steps: int) -> None:
        """Sets scheduled options to their values at an env step of the run."""
        self.actor_optimizer.follow(self.algo.value(self.algo.actor_lr, env_steps))
        self.critic_optimizer.follow(self.algo.value(self.algo.critic_lr, env_steps))
        self.temperature.follow_schedules(env_steps)

    def update_once(self, batch: Batch, *, has_actor_step: bool) -> Measured:
        """Updates the critics, with an actor step actor and temperature, then the targets; returns metrics by group."""
        alpha = self.temperature.alpha
        with torch.no_grad():
            target_q = self.target_q(batch, alpha)
        loss, q = self.critic_loss(batch, target_q)
        self.optimizer_step.minimize(Loss(loss, self.critic_optimizer, self.algo.max_grad_norm))
        measured: Measured = {"critic": (loss.detach(), q.detach().mean(), target_q.mean())}
        if has_actor_step:
            measured |= self.update_actor(batch, alpha)
        self.target_critic.follow()
        return measured

    def update_actor(self, batch: Batch, alpha: Tensor) -> Measured:
        """Updates the actor against the new critics, and the temperature by the entropy of the same actions."""
        loss, entropy = self.actor_loss(batch, alpha)
        losses = [Loss(loss, self.actor_optimizer, self.algo.max_grad_norm)]
        measured: Measured = {"actor": (loss.detach(), alpha, entropy.detach())}
        if self.temperature.is_tuned:
            losses.append(self.temperature.loss(entropy))
            measured["temperature"] = (losses[1].value.detach(),)
        self.optimizer_step.minimize(*losses)
        return measured

    def target_q(self, batch: Batch, alpha: Tensor) -> Tensor:
        """Returns the Bellman targets [B], by the target critics and the current policy: SAC has no target actor."""
        target_critic = self.target_critic.module
        if isinstance(target_critic, DiscreteTwinCritic):
            assert isinstance(self.actor, SoftmaxActor)  # as `make_policy` chooses
            log_probs = self.actor.distribution(batch.next_obs).log_probs
            next_value = expected_soft_value(target_critic.values(batch.next_obs), log_probs, alpha)
        else:
            next_action, next_log_prob = self.sample(batch.next_obs)
            next_value = soft_value(target_critic.forward(batch.next_obs, next_action), next_log_prob, alpha)
        return td_target(batch.reward, batch.discount, batch.terminated, next_value)

    def critic_loss(self, batch: Batch, target_q: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the loss [] of the critics, and their values of the actions taken [C, B]."""
        q = self.critic.forward(batch.obs, batch.action)
        return critic_loss(q, target_q), q

    def actor_loss(self, batch: Batch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the loss [] of the actor and the mean entropy [] of the policy."""
        if isinstance(self.critic, DiscreteTwinCritic):
            assert isinstance(self.actor, SoftmaxActor)  # as `make_policy` chooses
            policy = self.actor.distribution(batch.obs)
            q = self.critic.values(batch.obs).detach()
            return -expected_soft_value(q, policy.log_probs, alpha).mean(), policy.entropy().mean()
        action, log_prob = self.sample(batch.obs)
        return sac_actor_loss(self.actor_q(batch.obs, action), log_prob, alpha), -log_prob.mean()

    def actor_q(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns the values that the actor maximises, the least of both critics. [B, O], [B, A] -> [B]."""
        return self.critic.forward(obs, action).amin(dim=0)

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the policy's action [B, A], reparameterised, and its log-probability [B]."""
        assert isinstance(self.actor, SquashedGaussianActor)  # as `make_policy` chooses
        return self.actor.sample(obs, self.generator)
