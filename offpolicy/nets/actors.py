"""Actors of SAC and TD3: observations [..., O] to actions [..., A], for acting and for learning.

Continuous actions live in the [-1, 1] space; discrete ones are their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.distributions import LOG_SQRT_2PI, Categorical
from offpolicy.nets.mlp import mlp
from offpolicy.types import SpaceSpec

Explored = tuple[Tensor, Tensor | None]
LOG_STD_MIN = -20.0
LOG_STD_MAX = 2.0


class Actor(nn.Module):
    """A policy without its normaliser; it keeps no state."""

    parts_read: tuple[str, ...] | None = None  # of a Dict observation; None: all

    def act(self, obs: Tensor) -> Tensor:
        """Returns the deterministic action. [..., O] -> [..., A]."""
        raise NotImplementedError

    def explore(self, obs: Tensor, generator: torch.Generator) -> Explored:
        """Returns an action [..., A] with the algorithm's noise, and its log-probability [...] if it is learnt from."""
        raise NotImplementedError


def squashed_gaussian_log_prob(pre_tanh: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of tanh(u), u ~ N(mean, std), in the [-1, 1] space, SAC (arXiv:1812.05905) appendix C. [B, A] -> [B].

    `noise` is (u - mean) / std. log(1 - tanh(u)^2) is written 2 (log 2 - u - softplus(-2u)), exact for every u, where
    log(1 - a^2 + 1e-6) has a floor that corrupts the temperature as soon as |u| > 7.
    """
    log_normal = -0.5 * noise.square() - log_std - LOG_SQRT_2PI
    log_slope = 2.0 * (math.log(2.0) - pre_tanh - functional.softplus(-2.0 * pre_tanh))  # of tanh
    return (log_normal - log_slope).sum(dim=-1)


class SquashedGaussianActor(Actor):
    """SAC's policy: a = tanh(u), u ~ N(mean(s), std(s)), diagonal, log std clamped to [-20, 2]."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_dims: Sequence[int], activation: str) -> None:
        super().__init__()
        self.body = mlp(obs_dim, hidden_dims, 2 * action_dim, activation)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """[B, O] -> mean [B, A] and log std [B, A] before the squashing."""
        return self._split(self.body(obs))

    def sample(self, obs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns a reparameterised action [B, A] and its log-probability [B]."""
        return self.sample_from(self.body(obs), generator)

    def sample_from(self, output: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """As `sample`, for what the network has put out. [B, 2 A]."""
        mean, log_std = self._split(output)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        pre_tanh = mean + log_std.exp() * noise
        return pre_tanh.tanh(), squashed_gaussian_log_prob(pre_tanh, noise, log_std)

    def act(self, obs: Tensor) -> Tensor:
        """Returns the squashed mean. [B, O] -> [B, A]."""
        mean, _ = self.forward(obs)
        return mean.tanh()

    def explore(self, obs: Tensor, generator: torch.Generator) -> Explored:
        """Returns a sample of the policy. [B, O] -> [B, A]."""
        mean, log_std = self.forward(obs)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        return (mean + log_std.exp() * noise).tanh(), None

    def act_with_noise(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Returns the action of unit noise [B, A]. [B, O] -> [B, A]."""
        mean, log_std = self.forward(obs)
        return (mean + log_std.exp() * noise).tanh()

    def _split(self, output: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = output.float().chunk(2, dim=-1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


class DeterministicActor(Actor):
    """TD3's policy: a = tanh(net(s)); explores with Gaussian noise of std `exploration_noise`."""

    def __init__(
        self, obs_dim: int, action_dim: int, hidden_dims: Sequence[int], activation: str, exploration_noise: float
    ) -> None:
        super().__init__()
        self.body = mlp(obs_dim, hidden_dims, action_dim, activation)
        self.exploration_noise = exploration_noise

    def forward(self, obs: Tensor) -> Tensor:
        """[B, O] -> [B, A]."""
        action: Tensor = self.body(obs)
        return action.float().tanh()

    def act(self, obs: Tensor) -> Tensor:
        """[B, O] -> [B, A]."""
        return self.forward(obs)

    def explore(self, obs: Tensor, generator: torch.Generator) -> Explored:
        """Returns the action plus noise drawn per row and per dimension, clipped to [-1, 1]. [B, O] -> [B, A]."""
        action = self.forward(obs)
        noise = torch.randn(action.shape, generator=generator, device=action.device)
        return (action + self.exploration_noise * noise).clamp(-1.0, 1.0), None


class SoftmaxActor(Actor):
    """A policy for discrete actions, of independent choices with `nvec` actions each: softmaxes of net(s).

    SAC's has one choice, and torch's default initialisation (arXiv:1910.07207).
    """

    def __init__(self, obs_dim: int, nvec: Sequence[int], hidden_dims: Sequence[int], activation: str) -> None:
        super().__init__()
        self.nvec = tuple(nvec)
        self.body = mlp(obs_dim, hidden_dims, sum(nvec), activation)

    def distribution(self, obs: Tensor) -> Categorical:
        """[..., O] -> a distribution of actions [..., A]."""
        parts = torch.split(self.body(obs).float(), list(self.nvec), dim=-1)
        return Categorical(torch.cat([part.log_softmax(dim=-1) for part in parts], dim=-1), self.nvec)

    def act(self, obs: Tensor) -> Tensor:
        """Returns the likeliest actions. [..., O] -> [..., A]."""
        return self.distribution(obs).mode()

    def explore(self, obs: Tensor, generator: torch.Generator) -> Explored:
        """Returns a sample of the policy. [..., O] -> [..., A]."""
        return self.distribution(obs).sample(generator), None


def soft_actor(algo: AlgoConfig, spec: SpaceSpec) -> SquashedGaussianActor | SoftmaxActor:
    """Returns SAC's actor for the action space of `spec`."""
    if spec.num_actions:
        return SoftmaxActor(spec.obs_dim, (spec.num_actions,), algo.hidden_dims, algo.activation)
    return SquashedGaussianActor(spec.obs_dim, spec.action_dim, algo.hidden_dims, algo.activation)


def deterministic_actor(algo: AlgoConfig, spec: SpaceSpec) -> DeterministicActor:
    """Returns TD3's actor."""
    sizes = (spec.obs_dim, spec.action_dim, algo.hidden_dims, algo.activation)
    return DeterministicActor(*sizes, algo.value(algo.exploration_noise, 0))
