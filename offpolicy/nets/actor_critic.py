"""Networks of APPO: policies with log-probabilities, V(s), and both side by side, which are trained on one loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.actors import Actor, Explored, SoftmaxActor
from offpolicy.nets.distributions import DiagonalGaussian, PolicyDistribution
from offpolicy.nets.mlp import mlp, orthogonal_, with_encoder
from offpolicy.nets.normalizer import EPS, RunningMoments
from offpolicy.types import SpaceSpec

POLICY_GAIN = 0.01  # initial gain of the last layer: the first policy hardly depends on the observation


class StochasticActor(Actor):
    """APPO's policies: a sample comes with its log-probability."""

    def distribution(self, obs: Tensor) -> PolicyDistribution:
        """[..., O] -> a distribution of actions [..., A]."""
        raise NotImplementedError

    def explore(self, obs: Tensor, generator: torch.Generator) -> Explored:
        """Returns a sample and its log-probability. [..., O] -> [..., A], [...]."""
        distribution = self.distribution(obs)
        action = distribution.sample(generator)
        return action, distribution.log_prob(action.nan_to_num())  # an action of NaN is no index


class GaussianActor(StochasticActor):
    """APPO's policy for continuous actions: N(mean(s), std), with one std per dimension in all states.

    Samples are not squashed: the environment adapter clips them. Orthogonal initialisation as in PPO's reference.
    """

    def __init__(
        self, obs_dim: int, action_dim: int, hidden_dims: Sequence[int], activation: str, init_log_std: float
    ) -> None:
        super().__init__()
        self.body = orthogonal_(mlp(obs_dim, hidden_dims, action_dim, activation), head_gain=POLICY_GAIN)
        self.log_std = nn.Parameter(torch.full((action_dim,), init_log_std))

    def distribution(self, obs: Tensor) -> DiagonalGaussian:
        """[..., O] -> a distribution of actions [..., A]."""
        mean: Tensor = self.body(obs).float()
        return DiagonalGaussian(mean, self.log_std.expand_as(mean))

    def act(self, obs: Tensor) -> Tensor:
        """Returns the mean, clipped to [-1, 1]. [..., O] -> [..., A]."""
        return self.distribution(obs).mean.clamp(-1.0, 1.0)


class CategoricalActor(SoftmaxActor, StochasticActor):
    """APPO's policy for discrete actions. Orthogonal initialisation, as `GaussianActor`."""

    explore = StochasticActor.explore

    def __init__(self, obs_dim: int, nvec: Sequence[int], hidden_dims: Sequence[int], activation: str) -> None:
        super().__init__(obs_dim, nvec, hidden_dims, activation)
        orthogonal_(self.body, head_gain=POLICY_GAIN)


class TrunkActor(StochasticActor):
    """A policy whose `trunk` acts on what `trunk_input` makes of an observation."""

    trunk: StochasticActor

    def trunk_input(self, obs: Tensor) -> Tensor:
        """Returns the input of the trunk. [..., O] -> [..., I]."""
        raise NotImplementedError

    def distribution(self, obs: Tensor) -> PolicyDistribution:
        """[..., O] -> the trunk's distribution of actions [..., A]."""
        return self.trunk.distribution(self.trunk_input(obs))

    def act(self, obs: Tensor) -> Tensor:
        """Returns the trunk's deterministic action. [..., O] -> [..., A]."""
        return self.trunk.act(self.trunk_input(obs))


def trunk_actor(algo: AlgoConfig, spec: SpaceSpec, obs_dim: int) -> StochasticActor:
    """Returns APPO's actor of inputs [obs_dim] for the action space of `spec`."""
    if spec.nvec or spec.num_actions:
        return CategoricalActor(obs_dim, spec.nvec or (spec.num_actions,), algo.hidden_dims, algo.activation)
    return GaussianActor(obs_dim, spec.action_dim, algo.hidden_dims, algo.activation, algo.init_log_std)


def stochastic_actor(algo: AlgoConfig, spec: SpaceSpec) -> StochasticActor:
    """Returns APPO's actor for the observations and the action space of `spec`."""
    return trunk_actor(algo, spec, spec.obs_dim)


class ValueCritic(nn.Module):
    """V(s), predicted in units of the mean and spread of all its targets so far, or in returns.

    The units never change a prediction: when the statistics move, the last layer is rescaled against them (PopArt,
    arXiv:1602.07714). The statistics are a mean over all targets, a step size of 1/t; its experiments hold it constant.
    """

    def __init__(self, obs_dim: int, hidden_dims: Sequence[int], activation: str, *, normalize_value: bool) -> None:
        super().__init__()
        self.body = orthogonal_(mlp(obs_dim, hidden_dims, 1, activation), head_gain=1.0)
        self.normalizer = RunningMoments(dim=1) if normalize_value else None

    def forward(self, obs: Tensor) -> Tensor:
        """Returns the prediction in its own units. [..., O] -> [...]."""
        value: Tensor = self.body(obs)
        return value.squeeze(-1).float()

    @torch.no_grad()
    def absorb(self, moments: Tensor) -> None:
        """Adds `moments` of value targets to the statistics; every V(s) in returns stays, PopArt eq. 3 and 4."""
        head = self.body[-1]
        assert self.normalizer is not None  # only a critic with statistics is given moments
        assert isinstance(head, nn.Linear)
        mean, std = self._units(self.normalizer)
        self.normalizer.absorb(moments)
        new_mean, new_std = self._units(self.normalizer)
        head.weight.copy_(head.weight * (std / new_std))
        head.bias.copy_((std * head.bias + mean - new_mean) / new_std)

    def in_returns(self, prediction: Tensor) -> Tensor:
        """Converts a prediction [...] to a return."""
        if self.normalizer is None:
            return prediction
        mean, std = self._units(self.normalizer)
        return prediction * std.float() + mean.float()

    def in_units(self, value: Tensor) -> Tensor:
        """Converts a return [...] to the units of the prediction."""
        if self.normalizer is None:
            return value
        mean, std = self._units(self.normalizer)
        return (value - mean.float()) / std.float()

    def _units(self, targets: RunningMoments) -> tuple[Tensor, Tensor]:
        return targets.mean.clone(), (targets.var + EPS).sqrt()  # [1], float64


class ActorCritic(nn.Module):
    """Two networks side by side: observations [..., O], as the networks see them, to a policy and to values [...]."""

    def __init__(self, actor: StochasticActor, critic: ValueCritic) -> None:
        super().__init__()
        self.actor = actor
        self.critic = critic

    def forward(self, obs: Tensor) -> tuple[PolicyDistribution, Tensor]:
        """Returns the policy and the critic's prediction, in its own units."""
        return self.actor.distribution(obs), self.critic.forward(obs)


def make_actor_critic(algo: AlgoConfig, spec: SpaceSpec, actor: nn.Module) -> ActorCritic:
    """Returns `actor` with the critic that `algo` describes, initialised from torch's global CPU generator."""
    assert isinstance(actor, StochasticActor)  # true by algo.name; narrows the type
    options = (algo.hidden_dims, algo.activation)
    critic = with_encoder(
        algo, spec, lambda inner: ValueCritic(inner.obs_dim, *options, normalize_value=algo.normalize_value)
    )
    return ActorCritic(actor, critic)
