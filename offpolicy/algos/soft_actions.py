"""SAC's actor and critics in an action space: what the next state is worth, and the actor's loss with its gradient.

In a Box an action is sampled and reparameterised. With discrete actions the critics give the value of each of them, so
that both are exact expectations (discrete SAC, arXiv:1910.07207).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from offpolicy.algos.learners import CriticTrainer
from offpolicy.algos.losses import (
    discrete_actor_loss,
    discrete_actor_loss_gradient,
    expected_soft_value,
    sac_actor_loss,
    sac_actor_loss_gradients,
    soft_value,
)
from offpolicy.algos.optim import OptimizerStep
from offpolicy.config.sections import AlgoConfig
from offpolicy.nets.actors import (
    SoftmaxActor,
    SquashedGaussianActor,
    SquashedSample,
    squashed_sample,
    squashed_sample_gradient,
)
from offpolicy.nets.constants import mean
from offpolicy.nets.critics import DiscreteTwinCritic, TwinCritic, taken
from offpolicy.nets.plain import Differentiable
from offpolicy.types import Batch, SpaceSpec

DISCRETE_TARGET = 0.98  # target entropy as a fraction of that of uniform actions, arXiv:1910.07207 appendix


class ActorLoss(NamedTuple):
    """The actor's loss on a batch."""

    value: Tensor  # []
    entropy: Tensor  # [] mean of the policy's, in nats
    write_gradient: Callable[[], None]  # writes the gradients of the actor's parameters


class SoftActions(Protocol):
    """The part of SAC that depends on the action space."""

    critic: CriticTrainer

    def next_value(self, batch: Batch, alpha: Tensor, *, has_actor_step: bool) -> Tensor:
        """Returns V(s') [B] of the target critics and the current policy; SAC has no target actor.

        With an actor step to come, one pass evaluates the policy in both observations of the rows: until that step
        its weights stay as they are.
        """
        ...

    def actor_loss(self, alpha: Tensor) -> ActorLoss:
        """Returns the actor's loss in the batch of `next_value`, which had an actor step to come; once per batch.

        It is that against the critics as they are.
        """
        ...


class SampledActions:
    """`SoftActions` of a Box."""

    def __init__(
        self, actor: SquashedGaussianActor, body: Differentiable, critic: CriticTrainer, generator: torch.Generator
    ) -> None:
        """`body` is the actor's network, as it is differentiated."""
        self.critic = critic
        self._actor, self._body, self._generator = actor, body, generator
        self._drawn: tuple[Tensor, SquashedSample] | None = None  # observations, and actions for `actor_loss`

    def next_value(self, batch: Batch, alpha: Tensor, *, has_actor_step: bool) -> Tensor:
        """See `SoftActions`."""
        if has_actor_step:
            output = self._body.evaluate_after(batch.next_obs, batch.obs)[0]
            noise = output.new_empty(len(output), output.shape[1] // 2)
            for half in noise.chunk(2):  # one after the other, so that the first is what it is without an actor step
                half.normal_(generator=self._generator)
            next_sample, sample = squashed_sample(output, noise).halves()
            self._drawn = batch.obs, sample
        else:
            next_sample = self._actor.sample_from(self._actor.body(batch.next_obs), self._generator)
        next_q = self.critic.target_q(batch.next_obs, next_sample.action)
        return soft_value(next_q, next_sample.log_prob, alpha)

    def actor_loss(self, alpha: Tensor) -> ActorLoss:
        """See `SoftActions`."""
        assert self._drawn is not None  # by `next_value`
        (obs, sample), self._drawn = self._drawn, None
        q = self.critic.q(obs, sample.action)
        min_q, smallest = q.min(dim=0)

        def write_gradient() -> None:
            d_q, d_log_prob = sac_actor_loss_gradients(q, smallest, alpha)
            d_action = self.critic.action_gradient(d_q)
            self._body.pull_back(squashed_sample_gradient(sample, d_action, d_log_prob)[None])

        return ActorLoss(sac_actor_loss(min_q, sample.log_prob, alpha), mean(sample.log_prob, -1.0), write_gradient)


class DiscreteCriticTrainer(CriticTrainer):
    """A `CriticTrainer` of critics with an output for each action, trained at the actions taken."""

    def __init__(self, algo: AlgoConfig, critic: DiscreteTwinCritic, optimizer_step: OptimizerStep) -> None:
        super().__init__(algo, critic, optimizer_step)
        self._discrete = critic
        self._values: Tensor  # of the last `q`

    def values(self, obs: Tensor) -> Tensor:
        """Returns the values of every action, without a graph. [B, O] -> [C, B, K]."""
        return self._discrete.values(obs)

    def target_values(self, obs: Tensor) -> Tensor:
        """Returns the target critics' values of every action. [B, O] -> [C, B, K]."""
        assert isinstance(self.target.module, DiscreteTwinCritic)  # a copy of the critic
        return self.target.module.values(obs)

    def q(self, obs: Tensor, action: Tensor) -> Tensor:
        """See `CriticTrainer`. [B, O], [B, 1] -> [C, B]."""
        self._values = self._twin.evaluate(obs)
        return taken(self._values, action)

    def pull_back(self, d_q: Tensor, action: Tensor) -> None:
        """See `CriticTrainer`: the values of other actions have no gradient."""
        index = action.long().expand(len(d_q), -1, 1)
        self._twin.pull_back(torch.zeros_like(self._values).scatter_(2, index, d_q[..., None]))


class AllActions:
    """`SoftActions` of a Discrete space."""

    def __init__(self, actor: SoftmaxActor, body: Differentiable, critic: DiscreteCriticTrainer) -> None:
        """`body` is the actor's network, as it is differentiated."""
        self.critic: CriticTrainer = critic
        self._actor, self._body, self._critic = actor, body, critic
        self._evaluated: tuple[Tensor, Tensor] | None = None  # observations, and log-probabilities for `actor_loss`

    def next_value(self, batch: Batch, alpha: Tensor, *, has_actor_step: bool) -> Tensor:
        """See `SoftActions`."""
        if has_actor_step:
            outputs = self._body.evaluate_after(batch.next_obs, batch.obs)[0]
            next_log_probs, log_probs = outputs.log_softmax(dim=-1).chunk(2)
            self._evaluated = batch.obs, log_probs
        else:
            next_log_probs = self._actor.distribution(batch.next_obs).log_probs
        return expected_soft_value(self._critic.target_values(batch.next_obs), next_log_probs, alpha)

    def actor_loss(self, alpha: Tensor) -> ActorLoss:
        """See `SoftActions`."""
        assert self._evaluated is not None  # by `next_value`
        (obs, log_probs), self._evaluated = self._evaluated, None
        q = self._critic.values(obs)

        def write_gradient() -> None:
            self._body.pull_back(discrete_actor_loss_gradient(q, log_probs, alpha)[None])

        entropy = -(log_probs.exp() * log_probs).sum(dim=-1).mean()
        return ActorLoss(discrete_actor_loss(q, log_probs, alpha), entropy, write_gradient)


def make_soft_actions(
    algo: AlgoConfig,
    actor: SquashedGaussianActor | SoftmaxActor,
    body: Differentiable,
    critic: TwinCritic,
    optimizer_step: OptimizerStep,
    generator: torch.Generator,
) -> SoftActions:
    """Returns actor and critics of the action space that they were made for."""
    if isinstance(actor, SoftmaxActor):
        assert isinstance(critic, DiscreteTwinCritic)  # as `make_critic` chooses
        return AllActions(actor, body, DiscreteCriticTrainer(algo, critic, optimizer_step))
    return SampledActions(actor, body, CriticTrainer(algo, critic, optimizer_step), generator)


def default_target_entropy(spec: SpaceSpec) -> float:
    """Returns -A for a Box (arXiv:1812.05905, appendix D), 0.98 log K for K discrete actions, in nats."""
    return DISCRETE_TARGET * math.log(spec.num_actions) if spec.num_actions else -float(spec.action_dim)
