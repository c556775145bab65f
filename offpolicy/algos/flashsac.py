"""FlashSAC (arXiv:2604.04539): SAC with batch norm, residual blocks, categorical critics and scaled rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from offpolicy.algos.base_learner import TEMPERATURE, Measured, MetricSums, Seeds, TensorGroups
from offpolicy.algos.categorical import CategoricalTrainer
from offpolicy.algos.losses import sac_actor_loss, sac_actor_loss_gradients
from offpolicy.algos.optim import GuardedAdam, Loss, OptimizerStep, is_replayed
from offpolicy.algos.sac import METRICS as SAC_METRICS
from offpolicy.algos.sac import Temperature
from offpolicy.config.sections import AlgoConfig
from offpolicy.nets.actors import ResidualActor, squashed_sample_gradient
from offpolicy.nets.critics import CategoricalTwinCritic, make_critic
from offpolicy.nets.normalizer import ReturnScale, RunningMoments
from offpolicy.nets.policy import make_policy
from offpolicy.nets.products import choose_products
from offpolicy.nets.residual import ResidualNet, statistics_of
from offpolicy.protocols import Exchange
from offpolicy.types import Batch, SpaceSpec

METRICS = SAC_METRICS | {"critic": (*SAC_METRICS["critic"], "reward_scale")}


class FlashSac:
    """FlashSAC's update rule. Values and temperature are in the unit of the scaled rewards."""

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec, device: torch.device, seed: int, exchange: Exchange) -> None:
        seeds = Seeds(seed)
        with seeds.initial_weights():
            self.policy = make_policy(algo, spec).to(device)
            critic = make_critic(algo, spec).to(device)
        assert isinstance(self.policy.actor, ResidualActor)  # true by algo.name
        assert isinstance(critic, CategoricalTwinCritic)
        self.metrics = MetricSums(METRICS, device)
        self.optimizer_step = OptimizerStep(device, exchange)
        self.generator = seeds.generator(device)
        self._algo, self._actor = algo, self.policy.actor
        guard, replayed = self.optimizer_step.guard, is_replayed(algo, device)
        parameters = dict(self._actor.named_parameters())
        self._actor_optimizer = GuardedAdam(parameters, algo.value(algo.actor_lr, 0), guard, is_replayed=replayed)
        choose_products(algo.products, self._actor)
        self._critic = CategoricalTrainer(algo, critic, self.optimizer_step)
        entropy = target_entropy(spec.action_dim, algo.target_sigma) if algo.target_entropy is None else None
        given = algo if entropy is None else replace(algo, target_entropy=entropy)
        self._temperature = Temperature(given, spec, self.optimizer_step)
        self._scale = ReturnScale(algo.value_max).to(device)
        self._statistics = statistics_of(self._actor, critic, self._critic.target.module)

    def follow_schedules(self, env_steps: int) -> None:
        """Sets scheduled options to their values at an env step of the run."""
        self._actor_optimizer.follow(self._algo.value(self._algo.actor_lr, env_steps))
        self._critic.optimizer.follow(self._algo.value(self._algo.critic_lr, env_steps))
        self._temperature.follow_schedules(env_steps)

    @torch.no_grad()
    def update_once(self, batch: Batch, *, has_actor_step: bool) -> Measured:
        """With an actor step updates actor and temperature; then the critics and their targets.

        Returns the measured metrics, by group.
        """
        scale = self._scale.forward()
        batch = batch._replace(reward=batch.reward / scale)
        of_actor = self._update_actor(batch) if has_actor_step else {}
        next_action, next_log_prob = self._actor.sample(batch.next_obs, self.generator)
        bonus = next_log_prob * -self._temperature.alpha
        measured: Measured = {"critic": (*self._critic.step(batch, next_action, bonus), scale)}
        self._critic.target.follow()
        if self.optimizer_step.exchange.num_ranks > 1:  # each rank normalised by its own part of the batch
            self.optimizer_step.exchange.average(self._statistics)
        return measured | of_actor

    def tensor_groups(self) -> TensorGroups:
        """Returns the live tensors of networks, normalisers and optimisers."""
        critics = {"critic": self._critic.online, "target_critic": self._critic.target.module}
        optimizers = {"actor_optimizer": self._actor_optimizer, "critic_optimizer": self._critic.optimizer}
        optimizers["alpha_optimizer"] = self._temperature.optimizer
        groups = TensorGroups.of({"policy": self.policy, **critics, "returns": self._scale}, optimizers)
        groups.networks[TEMPERATURE] = self._temperature.log_alpha
        return groups

    def normalizers(self) -> Mapping[str, RunningMoments]:
        """Returns those of the observations, where they are normalised, and of the returns."""
        return {**self.policy.named_normalizers(), "returns": self._scale}

    def _update_actor(self, batch: Batch) -> Measured:
        """Updates the actor against the critics as they are, and the temperature with the same entropy.

        Both observations of the rows go through the actor's batch norms, as they do through the critics'; the loss is
        of the first. Returns the measured metrics, by group.
        """
        alpha, num_rows = self._temperature.alpha, len(batch.obs)
        body = self._actor.body
        assert isinstance(body, ResidualNet)
        with torch.enable_grad():
            output = body.forward(torch.cat((batch.obs, batch.next_obs)), of_batch=True)[:num_rows]
        sample = self._actor.sample_from(output.detach(), self.generator)
        q = self._critic.q(batch.obs, sample.action)
        min_q, smallest = q.min(dim=0)
        loss = sac_actor_loss(min_q, sample.log_prob, alpha)
        entropy = -sample.log_prob.mean()

        def write_gradient() -> None:
            d_q, d_log_prob = sac_actor_loss_gradients(q, smallest, alpha)
            d_action = self._critic.action_gradient(d_q)
            d_output = squashed_sample_gradient(sample, d_action, d_log_prob)
            self._actor_optimizer.pull_back(output, d_output)

        losses = [Loss(loss, self._actor_optimizer, self._algo.max_grad_norm, write_gradient)]
        measured: Measured = {"actor": (loss, alpha, entropy)}
        if self._temperature.is_tuned:
            losses.append(self._temperature.loss(alpha, entropy))
            measured["temperature"] = (losses[1].value,)
        self.optimizer_step.minimize(*losses)
        return measured


def target_entropy(action_dim: int, sigma: float) -> float:
    """A / 2 log(2 pi e sigma^2), the entropy of a Gaussian of that std, in nats; -0.478 A for 0.15."""
    return 0.5 * action_dim * math.log(2.0 * math.pi * math.e * sigma**2)
