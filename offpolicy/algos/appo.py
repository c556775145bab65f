"""Asynchronous PPO (arXiv:1707.06347) with V-trace (arXiv:1802.01561).

The policy that acted may be some versions old. V-trace corrects the value targets for that, and the clipped surrogate
takes its ratio against the policy that acted, so that the ratio is the importance weight as well. With rollouts of the
present policy both corrections vanish, which leaves PPO with GAE(lambda).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from offpolicy.algos.learner import Absorb, MetricSums, Seeds
from offpolicy.algos.losses import bounds_loss, clipped_surrogate, clipped_value_loss, masked_mean, value_loss
from offpolicy.algos.optim import GuardedAdam, LearningRate, Loss, OptimizerStep
from offpolicy.algos.vtrace import RatioBounds, Steps, Targets, gae, vtrace
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.actor_critic import ActorCritic, make_actor_critic, stochastic_actor
from offpolicy.nets.distributions import DiagonalGaussian, PolicyDistribution, kl_divergence
from offpolicy.nets.normalizer import weighted_moments
from offpolicy.nets.policy import Policy, make_policy
from offpolicy.protocols import Exchange
from offpolicy.types import Rollouts, SpaceSpec

METRICS = {
    "step": ("actor_loss", "critic_loss", "entropy", "approx_kl", "clip_fraction"),
    "rollout": ("rho_clip_fraction", "explained_variance", "value_mean", "learning_rate"),
}
EPS = 1e-8
ROUNDING = 1e-4  # bound of the difference of two log-probabilities of one policy, computed by collector and learner


class Samples(NamedTuple):
    """The rows that minibatches are picked from: M = T * B, autoreset rows included with weight 0."""

    obs: Tensor  # [M, O] as the networks see it
    action: Tensor  # [M, A]
    log_prob: Tensor  # [M] of the policy that acted
    advantage: Tensor  # [M] normalised
    value_target: Tensor  # [M] in the critic's units
    old_value: Tensor  # [M] in the critic's units
    weight: Tensor  # [M] 1.0 for a transition, 0.0 for an autoreset row
    old_policy: PolicyDistribution  # of [M] states, at the start of the iteration

    def rows(self, index: Tensor) -> Samples:
        """Returns the rows `index` [n]."""
        picked = {name: getattr(self, name)[index] for name in self._fields[:-1]}
        return Samples(**picked, old_policy=self.old_policy.rows(index))


class Appo:
    """APPO: V-trace targets once per batch of rollouts, then epochs of minibatches of the clipped surrogate."""

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec, device: torch.device, seed: int, exchange: Exchange) -> None:
        seeds = Seeds(seed)
        with seeds.initial_weights():
            self.policy = self.make_policy(algo, spec).to(device)
            self._net: ActorCritic = make_actor_critic(algo, spec, self.policy.actor).to(device)
        self.metrics = MetricSums(METRICS, device)
        self.optimizer_step = OptimizerStep(device, exchange)
        self.generator = seeds.generator(device)
        self._algo, self._exchange = algo, exchange
        self._lr = LearningRate(algo, device)
        parameters = dict(self._net.named_parameters())
        self._optimizer = GuardedAdam(parameters, self._lr.value, self.optimizer_step.guard)
        critic = self._net.critic
        self.modules, self.optimizers = {"policy": self.policy, "critic": critic}, {"optimizer": self._optimizer}
        self.absorbers = self.policy.absorbers() | ({} if critic.normalizer is None else {"value": critic.absorb})

    def make_policy(self, algo: AlgoConfig, spec: SpaceSpec) -> Policy:
        """Returns the policy."""
        return make_policy(algo, spec, stochastic_actor)

    def learn(self, rollouts: Rollouts, absorb: Absorb) -> int:
        """Computes targets, then makes `epochs` passes over the rows in `num_minibatches` shuffled parts each."""
        self._lr.follow_progress(rollouts.progress, rollouts.env_steps)
        samples = self._prepare(rollouts, absorb)
        for _ in range(self._algo.epochs):
            parts = minibatches(len(samples.weight), self._algo.num_minibatches, self.generator)
            kl = torch.stack([self._step(samples.rows(index)) for index in parts]).mean()
            if self._lr.is_adaptive:
                self._exchange.average([kl])
                self._lr.follow_kl(kl)
        absorb("obs", weighted_moments(rollouts.obs[:-1].flatten(0, 1), samples.weight))
        return self._algo.epochs * self._algo.num_minibatches

    @torch.no_grad()
    def _prepare(self, rollouts: Rollouts, absorb: Absorb) -> Samples:
        """Returns what the minibatches pick from, in the critic's units once they hold the targets' moments."""
        obs = self.policy.normalize(rollouts.obs)
        policy = self._net.actor.distribution(obs[:-1])
        critic = self._net.critic
        value = critic.in_returns(critic.forward(obs))
        next_value = value[1:]
        if rollouts.final_obs is not None:  # a terminated row has no successor
            is_cut = (rollouts.truncated > rollouts.terminated).nonzero(as_tuple=True)
            final_obs = self.policy.normalize(rollouts.final_obs[is_cut])
            next_value = next_value.index_put(is_cut, critic.in_returns(critic.forward(final_obs)))
        log_ratio = policy.log_prob(rollouts.action) - rollouts.log_prob
        targets = self._targets(rollouts, value[:-1], next_value, log_ratio)
        self._measure(rollouts, log_ratio, value[:-1], targets)
        absorb("value", weighted_moments(targets.value.reshape(-1, 1), rollouts.is_valid.flatten()))
        return Samples(
            obs=obs[:-1].flatten(0, 1),
            action=rollouts.action.flatten(0, 1),
            log_prob=rollouts.log_prob.flatten(),
            advantage=self._normalized(targets.advantage.flatten(), rollouts.is_valid.flatten()),
            value_target=critic.in_units(targets.value).flatten(),
            old_value=critic.in_units(value[:-1]).flatten(),
            weight=rollouts.is_valid.flatten(),
            old_policy=policy.flat(),
        )

    def _targets(self, rollouts: Rollouts, value: Tensor, next_value: Tensor, log_ratio: Tensor) -> Targets:
        algo = self._algo
        flags = (rollouts.terminated, rollouts.truncated, rollouts.is_valid)
        steps = Steps(value, next_value, rollouts.reward, *flags, log_ratio)
        if algo.advantage == "gae":
            return gae(steps, algo.gamma, algo.gae_lambda)
        return vtrace(steps, algo.gamma, algo.gae_lambda, RatioBounds(algo.rho_clip, algo.trace_clip))

    def _normalized(self, advantage: Tensor, weight: Tensor) -> Tensor:
        """Returns advantages of mean 0 and standard deviation 1 over the transitions of all ranks. [M] -> [M]."""
        if not self._algo.normalize_advantage:
            return advantage
        values, weights = advantage.double(), weight.double()
        sums = torch.stack((weights.sum(), (weights * values).sum(), (weights * values.square()).sum()))
        count, total, square = self._exchange.gather(sums).sum(dim=0)
        mean = total / count.clamp(min=1.0)
        std = (square / count.clamp(min=1.0) - mean.square()).clamp(min=0.0).sqrt()
        normalized: Tensor = (advantage - mean.float()) / (std.float() + EPS)
        return normalized

    def _step(self, batch: Samples) -> Tensor:
        """Makes one step down the joint loss; returns the KL [] of the policy from that at the iteration's start."""
        algo = self._algo
        policy, value = self._net.forward(batch.obs)
        log_ratio = policy.log_prob(batch.action) - batch.log_prob
        actor = clipped_surrogate(log_ratio, batch.advantage, batch.weight, algo.clip)
        if algo.value_clip is None:
            critic = value_loss(value, batch.value_target, batch.weight)
        else:
            critic = clipped_value_loss(value, batch.old_value, batch.value_target, batch.weight, algo.value_clip)
        entropy = masked_mean(policy.entropy(), batch.weight)
        loss = actor + algo.value_coef * critic - algo.ent_coef * entropy
        if algo.bounds_coef and isinstance(policy, DiagonalGaussian):
            loss = loss + algo.bounds_coef * bounds_loss(policy.mean, batch.weight)
        with torch.no_grad():  # before the step, which moves the log std that the policy refers to
            kl = masked_mean(kl_divergence(batch.old_policy, policy), batch.weight)
            clipped = masked_mean(((log_ratio.exp() - 1.0).abs() > algo.clip).float(), batch.weight)
            self.metrics.add({"step": (actor.detach(), critic.detach(), entropy.detach(), kl, clipped)})
        self.optimizer_step.minimize(Loss(loss, self._optimizer, algo.max_grad_norm))
        return kl

    def _measure(self, rollouts: Rollouts, log_ratio: Tensor, value: Tensor, targets: Targets) -> None:
        """Adds the metrics of the rollouts' age and of the critic's error, before anything is learnt from them."""
        weight = rollouts.is_valid.flatten()
        is_clipped = (log_ratio.flatten() > math.log(self._algo.rho_clip) + ROUNDING).float()
        error, target = (targets.value - value).flatten(), targets.value.flatten()
        explained = 1.0 - _variance(error, weight) / _variance(target, weight).clamp(min=1e-8)
        mean = masked_mean(value.flatten(), weight)
        clipped = masked_mean(is_clipped, weight)
        self.metrics.add({"rollout": (clipped, explained, mean, self._lr.value)})


def minibatches(num_rows: int, num_parts: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yields all rows in a new order, in `num_parts` equal parts [num_rows / num_parts], on the generator's device."""
    yield from torch.randperm(num_rows, generator=generator, device=generator.device).chunk(num_parts)


def _variance(values: Tensor, weight: Tensor) -> Tensor:
    """Returns the variance of the values [M] whose weight [M] is 1."""
    return masked_mean((values - masked_mean(values, weight)).square(), weight)
