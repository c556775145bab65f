"""Critics: Q(s, a), V(s), and V(s) beside an actor as one network, for algorithms that train both on one loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from offpolicy.config.sections import FLASHSAC, AlgoConfig
from offpolicy.nets.actors import CategoricalActor, GaussianActor, GroupActor, MultiCategoricalActor
from offpolicy.nets.distributions import PolicyDistribution
from offpolicy.nets.encoders import with_encoder
from offpolicy.nets.fused import FusedMlp
from offpolicy.nets.hora import TeacherActor
from offpolicy.nets.mlp import Mlp, mlp, orthogonal_
from offpolicy.nets.normalizer import ValueNormalizer, joined_moments
from offpolicy.nets.residual import ResidualNet
from offpolicy.types import SpaceSpec

StochasticActor = GaussianActor | CategoricalActor | MultiCategoricalActor | GroupActor | TeacherActor


class TwinCritic(nn.Module):
    """Two independent Q networks (clipped double Q, TD3, arXiv:1802.09477)."""

    fused: FusedMlp | None = None  # both networks, where a learner has fused them

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_dims: Sequence[int],
        activation: str,
        layer_norm: bool = False,
        num_outputs: int = 1,
    ) -> None:
        super().__init__()
        self.obs_dim = obs_dim
        self.first: Mlp = mlp(obs_dim + action_dim, hidden_dims, num_outputs, activation, layer_norm)
        self.second: Mlp = mlp(obs_dim + action_dim, hidden_dims, num_outputs, activation, layer_norm)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns both values. [B, O], [B, A] -> [C=2, B]."""
        return self._evaluate(obs, action) if self.fused is None else self.fused(obs, action).squeeze(-1)

    def q1(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns the first critic's values, differentiable by the action alone: an actor's loss for autograd. -> [B].

        SAC and TD3 need no graph: `CriticTrainer.q1`.
        """
        if self.first.fused is not None:
            return self.first.fused.frozen(obs, action).squeeze(-1).squeeze(0)
        q: Tensor = self.first(torch.cat((obs, action), dim=-1))
        return q.squeeze(-1)

    def parameters_by_layer(self) -> dict[str, nn.Parameter]:
        """Returns the parameters by name, those of both networks layer by layer: fused layers lie side by side."""
        pairs = zip(self.first.named_parameters(), self.second.named_parameters(), strict=True)
        return {f"{net}.{name}": p for pair in pairs for net, (name, p) in zip(("first", "second"), pair, strict=True)}

    def _evaluate(self, obs: Tensor, action: Tensor) -> Tensor:
        pair = torch.cat((obs, action), dim=-1)
        return torch.stack((self.first(pair).squeeze(-1), self.second(pair).squeeze(-1)))


class DiscreteTwinCritic(TwinCritic):
    """Two independent Q networks with an output for each of K discrete actions (arXiv:1910.07207)."""

    def __init__(
        self, obs_dim: int, num_actions: int, hidden_dims: Sequence[int], activation: str, layer_norm: bool = False
    ) -> None:
        super().__init__(obs_dim, 0, hidden_dims, activation, layer_norm, num_actions)

    def values(self, obs: Tensor) -> Tensor:
        """Returns both values of every action. [B, O] -> [C=2, B, K]."""
        return torch.stack((self.first(obs), self.second(obs))) if self.fused is None else self.fused(obs)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns both values of the actions taken. [B, O], [B, 1] -> [C=2, B]."""
        return taken(self.values(obs), action)

    def q1(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns the first critic's values of the actions taken. -> [B]."""
        return self.forward(obs, action)[0]


class CategoricalTwinCritic(TwinCritic):
    """Two distributions of the return over K bins, of residual blocks (FlashSAC, arXiv:2604.04539; C51, 1707.06887)."""

    bins: Tensor  # [K]

    def __init__(self, obs_dim: int, action_dim: int, width: int, num_blocks: int, bins: Tensor) -> None:
        """`bins` [K] are the returns that the distributions are of, equally spaced."""
        nn.Module.__init__(self)  # other networks than those of a TwinCritic
        self.obs_dim = obs_dim
        self.first = ResidualNet(obs_dim + action_dim, width, num_blocks, len(bins))
        self.second = ResidualNet(obs_dim + action_dim, width, num_blocks, len(bins))
        self.register_buffer("bins", bins, persistent=False)

    def log_probs(self, pair: Tensor, *, of_batch: bool) -> Tensor:
        """Returns both distributions, normalised, with the statistics of the batch or the running ones. -> [C, B, K].

        `pair` [B, O + A] are observations beside actions.
        """
        nets = (net for net in (self.first, self.second) if isinstance(net, ResidualNet))
        return torch.stack([net.forward(pair, of_batch=of_batch) for net in nets]).log_softmax(dim=-1)

    def means(self, log_probs: Tensor) -> Tensor:
        """Returns the expected returns. [C, B, K] -> [C, B]."""
        return (log_probs.exp() * self.bins).sum(dim=-1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns both expected values, with the running statistics. [B, O], [B, A] -> [C=2, B]."""
        return self.means(self.log_probs(torch.cat((obs, action), dim=-1), of_batch=False))

    def q1(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns the first critic's expected values. -> [B]."""
        return self.forward(obs, action)[0]


def taken(values: Tensor, action: Tensor) -> Tensor:
    """Returns the values of the actions taken, of those of every action. [C, B, K], [B, 1] -> [C, B]."""
    return values.gather(2, action.long().expand(len(values), -1, 1)).squeeze(2)


def make_critic(algo: AlgoConfig, spec: SpaceSpec, num_outputs: int = 1) -> TwinCritic:
    """Returns the twin critics on the CPU, initialised from torch's global CPU generator.

    `num_outputs`: values of each critic for a pair of observation and action, of a Box.
    """
    if algo.info is FLASHSAC:
        bins = torch.linspace(-algo.value_max, algo.value_max, algo.num_bins)
        return CategoricalTwinCritic(spec.obs_dim, spec.action_dim, algo.critic_width, algo.num_blocks, bins)
    critic = with_encoder(algo, spec, lambda inner: _twin_critic(algo, inner, num_outputs))
    critic.obs_dim = spec.obs_dim
    return critic


def _twin_critic(algo: AlgoConfig, spec: SpaceSpec, num_outputs: int) -> TwinCritic:
    if spec.num_actions:
        sizes = (spec.obs_dim, spec.num_actions, algo.hidden_dims, algo.activation)
        return DiscreteTwinCritic(*sizes, algo.critic_layer_norm)
    sizes = (spec.obs_dim, spec.action_dim, algo.hidden_dims, algo.activation)
    return TwinCritic(*sizes, algo.critic_layer_norm, num_outputs)


class ValueCritic(nn.Module):
    """V(s), predicted in units of the running mean and spread of its targets, or in returns.

    The units never change a prediction: when the statistics move, the last layer is rescaled against them (PopArt,
    arXiv:1602.07714, section 2.2).
    """

    def __init__(self, obs_dim: int, hidden_dims: Sequence[int], activation: str, *, normalize_value: bool) -> None:
        super().__init__()
        self.body = orthogonal_(mlp(obs_dim, hidden_dims, 1, activation), head_gain=1.0)
        self.normalizer = ValueNormalizer() if normalize_value else None

    def forward(self, obs: Tensor) -> Tensor:
        """Returns the prediction in its own units. [..., O] -> [...]."""
        value: Tensor = self.body(obs)
        return value.squeeze(-1)

    def joined(self, first: Tensor, second: Tensor) -> Tensor:
        """Returns the moments of two blocks of value targets as those of one."""
        return joined_moments(first, second)

    @torch.no_grad()
    def absorb(self, moments: Tensor) -> None:
        """Adds `moments` of value targets to the statistics; every V(s) in returns stays, PopArt eq. 3 and 4.

        Raises `RuntimeError` in a critic without statistics.
        """
        head = self.body[-1]
        if self.normalizer is None or not isinstance(head, nn.Linear):
            raise RuntimeError("this critic predicts returns: it has no statistics of its targets")
        mean, std = self.normalizer.mean.clone(), self.normalizer.std
        self.normalizer.absorb(moments)
        new_mean, new_std = self.normalizer.mean, self.normalizer.std
        head.weight.copy_(head.weight * (std / new_std))
        head.bias.copy_((std * head.bias + mean - new_mean) / new_std)

    def in_returns(self, prediction: Tensor) -> Tensor:
        """Converts a prediction [...] to a return."""
        return prediction if self.normalizer is None else self.normalizer.denormalize(prediction)

    def in_units(self, value: Tensor) -> Tensor:
        """Converts a return [...] to the units of the prediction."""
        return value if self.normalizer is None else self.normalizer.normalize(value)


class ActorCritic(nn.Module):
    """Two networks side by side: observations [..., O], as the networks see them, to a policy and to values [...]."""

    def __init__(self, actor: StochasticActor, critic: ValueCritic) -> None:
        super().__init__()
        self.actor = actor
        self.critic = critic

    def forward(self, obs: Tensor) -> tuple[PolicyDistribution, Tensor]:
        """Returns the policy and the critic's prediction, in its own units."""
        return self.actor.distribution(obs), self.critic.forward(obs)

    def value(self, obs: Tensor) -> Tensor:
        """Returns the critic's prediction alone."""
        return self.critic.forward(obs)


def make_actor_critic(algo: AlgoConfig, spec: SpaceSpec, actor: nn.Module) -> ActorCritic:
    """Returns `actor` with the critic that `algo` describes, initialised from torch's global CPU generator."""
    assert isinstance(actor, StochasticActor)  # true by algo.name; narrows the type
    options = (algo.hidden_dims, algo.activation)
    critic = with_encoder(
        algo, spec, lambda inner: ValueCritic(inner.obs_dim, *options, normalize_value=algo.normalize_value)
    )
    return ActorCritic(actor, critic)
