"""FlashSAC (arXiv:2604.04539): SAC with batch norm, residual blocks, categorical critics and scaled rewards."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from offpolicy.algos.learner import Measured, MetricSums
from offpolicy.algos.losses import cross_entropy, projected, sac_actor_loss
from offpolicy.algos.optim import Loss
from offpolicy.algos.sac import METRICS as SAC_METRICS
from offpolicy.algos.sac import Sac
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.normalizer import ReturnScale
from offpolicy.nets.policy import Policy, make_policy
from offpolicy.nets.residual import CategoricalTwinCritic, ResidualActor, categorical_critic, residual_actor
from offpolicy.protocols import Exchange
from offpolicy.types import Batch, SpaceSpec

METRICS = SAC_METRICS | {"critic": (*SAC_METRICS["critic"], "reward_scale")}


class FlashSac(Sac):
    """FlashSAC's update rule. Values and temperature are in the unit of the scaled rewards.

    Its critics learn distributions: `target_distribution` and the cross entropy of `update_once` take the place of
    `target_q` and `critic_loss` of `Sac`. Both observations of the rows go through the batch norms as one batch, in
    actor, critics and targets, by the statistics of the batch: rows of both policies' actions are normalised alike
    (CrossQ, arXiv:1902.05605, section 3). The targets' running statistics are never used.
    """

    actor: ResidualActor
    critic: CategoricalTwinCritic

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec, device: torch.device, seed: int, exchange: Exchange) -> None:
        super().__init__(algo, spec, device, seed, exchange)
        self.metrics = MetricSums(METRICS, device)
        self.scale = ReturnScale(algo.value_max).to(device)
        self.modules["returns"] = self.scale
        self.absorbers["returns"] = self.scale.absorb
        networks = (self.actor, self.critic, self.target_critic.module)
        self.statistics = [s for network in networks for name, s in network.named_buffers() if name != "bins"]

    def make_policy(self, algo: AlgoConfig, spec: SpaceSpec) -> Policy:
        """Returns the policy."""
        return make_policy(algo, spec, residual_actor)

    def make_critic(self, algo: AlgoConfig, spec: SpaceSpec) -> CategoricalTwinCritic:
        """Returns the critics."""
        return categorical_critic(algo, spec)

    def default_target_entropy(self, spec: SpaceSpec) -> float:
        """A / 2 log(2 pi e sigma^2), the entropy of a Gaussian of `algo.target_sigma`, in nats; -0.478 A for 0.15."""
        return 0.5 * spec.action_dim * math.log(2.0 * math.pi * math.e * self.algo.target_sigma**2)

    def update_once(self, batch: Batch, *, has_actor_step: bool) -> Measured:
        """With an actor step updates actor and temperature; then the critics and their targets.

        Returns the measured metrics, by group.
        """
        scale = self.scale.forward()
        batch = batch._replace(reward=batch.reward / scale)
        of_actor = self.update_actor(batch, self.temperature.alpha) if has_actor_step else {}
        num_rows = len(batch.reward)
        with torch.no_grad():
            next_action, next_log_prob = self.actor.sample(batch.next_obs, self.generator)
            pairs = torch.cat((torch.cat((batch.obs, batch.action), 1), torch.cat((batch.next_obs, next_action), 1)))
            target = self.target_distribution(batch, pairs, -self.temperature.alpha * next_log_prob)
        log_probs = self.critic.log_probs(pairs, of_batch=True)[:, :num_rows]
        loss = cross_entropy(target, log_probs)
        self.optimizer_step.minimize(Loss(loss, self.critic_optimizer, self.algo.max_grad_norm))
        q_mean = self.critic.means(log_probs.detach()).mean()
        measured: Measured = {"critic": (loss.detach(), q_mean, (target * self.critic.bins).sum(dim=1).mean(), scale)}
        self.target_critic.follow()
        if self.optimizer_step.exchange.num_ranks > 1:  # each rank normalised by its own part of the batch
            self.optimizer_step.exchange.average(self.statistics)
        return measured | of_actor

    def actor_loss(self, batch: Batch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """See `Sac`. Both observations of the rows go through the actor's batch norms; the loss is of the first.

        The critics use their running statistics.
        """
        pair = torch.cat((batch.obs, batch.next_obs))
        output = self.actor.body.forward(pair, of_batch=True)[: len(batch.obs)]
        action, log_prob = self.actor.sample_from(output, self.generator)
        return sac_actor_loss(self.actor_q(batch.obs, action), log_prob, alpha), -log_prob.mean()

    def target_distribution(self, batch: Batch, pairs: Tensor, bonus: Tensor) -> Tensor:
        """Returns the distributions [B, K] of r + gamma (z + bonus), z that of the target critic with the lower mean.

        `pairs` [2 B, O + A] are both observations of the rows beside their actions, `bonus` [B] is that of entropy.
        """
        target_critic = self.target_critic.module
        assert isinstance(target_critic, CategoricalTwinCritic)  # a copy of the critic
        log_probs = target_critic.log_probs(pairs, of_batch=True)[:, len(batch.reward) :]
        lower = target_critic.means(log_probs).argmin(dim=0)
        chosen = log_probs.gather(0, lower[None, :, None].expand(1, -1, log_probs.shape[2])).squeeze(0)
        factor = batch.discount * (1.0 - batch.terminated)
        return projected(chosen, target_critic.bins, batch.reward, factor, bonus)
