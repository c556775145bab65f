"""TD3: clipped double Q, target-policy smoothing and delayed actor updates (arXiv:1802.09477)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from offpolicy.algos.base_learner import Measured, MetricSums, Seeds, TensorGroups
from offpolicy.algos.learners import CriticTrainer, TargetNetwork
from offpolicy.algos.losses import smoothed_target_action, td3_actor_loss, td3_actor_loss_gradient, td_target
from offpolicy.algos.optim import GuardedAdam, Loss, OptimizerStep, is_replayed
from offpolicy.config.sections import AlgoConfig
from offpolicy.nets.actors import DeterministicActor
from offpolicy.nets.critics import make_critic
from offpolicy.nets.fusing import differentiable, fuse, graphless
from offpolicy.nets.normalizer import RunningMoments
from offpolicy.nets.policy import make_policy
from offpolicy.protocols import Exchange
from offpolicy.types import Batch, SpaceSpec

METRICS = {"critic": ("critic_loss", "q_mean", "target_q_mean"), "actor": ("actor_loss",)}


class Td3:
    """TD3's update rule. The smoothing noise is that of the [-1, 1] action space."""

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec, device: torch.device, seed: int, exchange: Exchange) -> None:
        seeds = Seeds(seed)
        with seeds.initial_weights():
            self.policy = make_policy(algo, spec).to(device)
            critic = make_critic(algo, spec).to(device)
        assert isinstance(self.policy.actor, DeterministicActor)  # true by algo.name; narrows the union
        self.metrics = MetricSums(METRICS, device)
        self.optimizer_step = OptimizerStep(device, exchange)
        self.generator = seeds.generator(device)
        self._algo = algo
        self._actor = self.policy.actor
        actor_lr = algo.value(algo.actor_lr, 0)
        guard, replayed = self.optimizer_step.guard, is_replayed(algo, device)
        parameters = dict(self._actor.named_parameters())
        self._actor_optimizer = GuardedAdam(parameters, actor_lr, guard, is_replayed=replayed)
        self._target_actor = TargetNetwork(self._actor, algo.tau)
        gradients = self._actor_optimizer.gradients
        fuse(self._actor, gradients, self._target_actor.module, precision=algo.precision, products=algo.products)
        self._actor_body = differentiable((self._actor.body,), gradients, self._actor.body.fused)
        self._critic = CriticTrainer(algo, critic, self.optimizer_step)
        self._graphless = graphless(self._actor_body, *self._critic.networks, is_replayed=replayed)

    def follow_schedules(self, env_steps: int) -> None:
        """Sets scheduled options to their values at an env step of the run."""
        self._actor_optimizer.follow(self._algo.value(self._algo.actor_lr, env_steps))
        self._critic.optimizer.follow(self._algo.value(self._algo.critic_lr, env_steps))

    def update_once(self, batch: Batch, *, has_actor_step: bool) -> Measured:
        """Updates the critics; with an actor step also the actor and all targets.

        Returns the measured metrics, by group.
        """
        with self._graphless():
            measured: Measured = {"critic": self._critic.step(batch, self._target_q(batch))}
            if has_actor_step:
                measured["actor"] = (self._update_actor(batch.obs),)
                self._critic.target.follow()
                self._target_actor.follow()
        return measured

    def tensor_groups(self) -> TensorGroups:
        """Returns the live tensors of networks, normalisers and optimisers."""
        actors = {"policy": self.policy, "target_actor": self._target_actor.module}
        critics = {"critic": self._critic.online, "target_critic": self._critic.target.module}
        optimizers = {"actor_optimizer": self._actor_optimizer, "critic_optimizer": self._critic.optimizer}
        return TensorGroups.of({**actors, **critics}, optimizers)

    def normalizers(self) -> Mapping[str, RunningMoments]:
        """Returns that of the observations, where they are normalised."""
        return self.policy.named_normalizers()

    def _target_q(self, batch: Batch) -> Tensor:
        """Returns the Bellman target [B] at the smoothed action of the target actor."""
        target_action = self._target_actor.module.forward(batch.next_obs)
        noise = torch.randn(target_action.shape, generator=self.generator, device=target_action.device)
        next_action = smoothed_target_action(
            target_action, noise, self._algo.target_noise, self._algo.target_noise_clip
        )
        next_value = self._critic.target_q(batch.next_obs, next_action).amin(dim=0)
        return td_target(batch.reward, batch.discount, batch.terminated, next_value)

    def _update_actor(self, obs: Tensor) -> Tensor:
        """Updates the actor against the first critic just updated; returns the loss []."""
        action = self._actor_body.evaluate(obs)[0].tanh()
        q1 = self._critic.q1(obs, action)
        d_q1 = td3_actor_loss_gradient(q1)
        loss = td3_actor_loss(q1, d_q1)

        def write_gradient() -> None:
            d_action = self._critic.action_gradient_of_q1(d_q1)
            self._actor_body.pull_back(torch.ops.aten.tanh_backward(d_action, action)[None])

        self.optimizer_step.minimize(Loss(loss, self._actor_optimizer, self._algo.max_grad_norm, write_gradient))
        return loss
