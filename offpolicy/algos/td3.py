"""TD3: clipped double Q, target-policy smoothing and delayed actor updates (arXiv:1802.09477)."""

from __future__ import annotations

import torch
from torch import Tensor

from offpolicy.algos.learner import Measured, MetricSums, Seeds
from offpolicy.algos.losses import critic_loss, smoothed_target_action, td_target
from offpolicy.algos.optim import GuardedAdam, Loss, OptimizerStep, TargetNetwork
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.actors import DeterministicActor, deterministic_actor
from offpolicy.nets.critics import make_critic
from offpolicy.nets.policy import make_policy
from offpolicy.protocols import Exchange
from offpolicy.types import Batch, SpaceSpec

METRICS = {"critic": ("critic_loss", "q_mean", "target_q_mean"), "actor": ("actor_loss",)}


class Td3:
    """TD3's update rule. The smoothing noise is that of the [-1, 1] action space."""

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec, device: torch.device, seed: int, exchange: Exchange) -> None:
        self.algo, seeds = algo, Seeds(seed)
        with seeds.initial_weights():
            self.policy = make_policy(algo, spec, deterministic_actor).to(device)
            self.critic = make_critic(algo, spec).to(device)
        assert isinstance(self.policy.actor, DeterministicActor)  # true by algo.name; narrows the union
        self.actor = self.policy.actor
        self.metrics = MetricSums(METRICS, device)
        self.optimizer_step = OptimizerStep(device, exchange)
        self.generator = seeds.generator(device)
        guard = self.optimizer_step.guard
        self.target_actor = TargetNetwork(self.actor, algo.tau)
        actor_parameters = dict(self.actor.named_parameters())
        self.actor_optimizer = GuardedAdam(actor_parameters, algo.value(algo.actor_lr, 0), guard)
        self.target_critic = TargetNetwork(self.critic, algo.tau, lambda twin: twin.parameters_by_layer().values())
        critic_parameters = self.critic.parameters_by_layer()
        self.critic_optimizer = GuardedAdam(critic_parameters, algo.value(algo.critic_lr, 0), guard)
        critics = {"critic": self.critic, "target_critic": self.target_critic.module}
        self.modules = {"policy": self.policy, "target_actor": self.target_actor.module, **critics}
        self.optimizers = {"actor_optimizer": self.actor_optimizer, "critic_optimizer": self.critic_optimizer}
        self.absorbers = self.policy.absorbers()

    def follow_schedules(self, env_steps: int) -> None:
        """Sets scheduled options to their values at an env step of the run."""
        self.actor_optimizer.follow(self.algo.value(self.algo.actor_lr, env_steps))
        self.critic_optimizer.follow(self.algo.value(self.algo.critic_lr, env_steps))

    def update_once(self, batch: Batch, *, has_actor_step: bool) -> Measured:
        """Updates the critics; with an actor step also the actor and all targets.

        Returns the measured metrics, by group.
        """
        with torch.no_grad():
            target_q = self.target_q(batch)
        q = self.critic.forward(batch.obs, batch.action)
        loss = critic_loss(q, target_q)
        self.optimizer_step.minimize(Loss(loss, self.critic_optimizer, self.algo.max_grad_norm))
        measured: Measured = {"critic": (loss.detach(), q.detach().mean(), target_q.mean())}
        if has_actor_step:
            actor_loss = -self.critic.q1(batch.obs, self.actor.forward(batch.obs)).mean()  # algorithm 1
            self.optimizer_step.minimize(Loss(actor_loss, self.actor_optimizer, self.algo.max_grad_norm))
            measured["actor"] = (actor_loss.detach(),)
            self.target_critic.follow()
            self.target_actor.follow()
        return measured

    def target_q(self, batch: Batch) -> Tensor:
        """Returns the Bellman targets [B] at the smoothed actions of the target actor."""
        action = self.target_actor.module.forward(batch.next_obs)
        noise = torch.randn(action.shape, generator=self.generator, device=action.device)
        next_action = smoothed_target_action(action, noise, self.algo.target_noise, self.algo.target_noise_clip)
        next_value = self.target_critic.module.forward(batch.next_obs, next_action).amin(dim=0)
        return td_target(batch.reward, batch.discount, batch.terminated, next_value)
