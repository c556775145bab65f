"""Actors: observations [..., O] to actions [..., A], for acting and for learning.

Continuous actions live in the [-1, 1] space; a discrete one is its number, in a last dimension of size 1 (of several
at once: as many).
`act` is deterministic. `explore` adds the algorithm's noise from the caller's generator and returns the action and its
log-probability [...] where the algorithm learns from it, else None. Neither keeps state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from offpolicy.config.sections import AlgoConfig
from offpolicy.nets.constants import constant
from offpolicy.nets.distributions import Categorical, DiagonalGaussian, MultiCategorical, PolicyDistribution, drawn
from offpolicy.nets.mlp import Mlp, mlp, orthogonal_
from offpolicy.nets.residual import ResidualNet
from offpolicy.types import SpaceSpec

Explored = tuple[Tensor, Tensor | None]
LOG_STD_MIN = -20.0
LOG_STD_MAX = 2.0
RESIDUAL_LOG_STD_MIN = -10.0
_LOG_DENSITY_CONSTANT = 0.5 * math.log(2.0 * math.pi) + 2.0 * math.log(2.0)


def squashed_gaussian_log_prob(pre_tanh: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of tanh(u), u ~ N(mean, std), in the [-1, 1] space, SAC (arXiv:1812.05905) appendix C. [B, A] -> [B].

    `noise` is (u - mean) / std. log(1 - tanh(u)^2) is written 2 (log 2 - u - softplus(-2u)): exact in float32 for
    every u, where log(1 - a^2 + 1e-6) has a floor that corrupts the temperature as soon as |u| > 7.
    """
    half_softplus = functional.softplus(pre_tanh, beta=-2.0)  # -softplus(-2 u) / 2
    per_dim = torch.addcmul(log_std, noise, noise, value=0.5).sub(pre_tanh, alpha=2.0).add(half_softplus, alpha=4.0)
    return constant(-_LOG_DENSITY_CONSTANT * pre_tanh.shape[-1], pre_tanh) - per_dim.sum(dim=-1)


class SquashedSample(NamedTuple):
    """Reparameterised actions tanh(mean + std noise), and what their gradient needs."""

    action: Tensor  # [B, A]
    log_prob: Tensor  # [B]
    raw_log_std: Tensor  # [B, A] not clamped
    std: Tensor  # [B, A]
    noise: Tensor  # [B, A] unit

    def halves(self) -> tuple[SquashedSample, SquashedSample]:
        """Returns the samples of the first B / 2 rows and of the others."""
        first, second = zip(*(part.chunk(2) for part in self), strict=True)
        return SquashedSample(*first), SquashedSample(*second)


def squashed_sample(output: Tensor, noise: Tensor) -> SquashedSample:
    """Returns actions [B, A] and log-probabilities [B] of a network's output [B, 2 A], with unit noise [B, A]."""
    mean, raw_log_std = output.chunk(2, dim=-1)
    log_std = raw_log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    std = log_std.exp()
    pre_tanh = torch.addcmul(mean, std, noise)
    log_prob = squashed_gaussian_log_prob(pre_tanh, noise, log_std)
    return SquashedSample(pre_tanh.tanh(), log_prob, raw_log_std, std, noise)


def squashed_sample_gradient(sample: SquashedSample, d_action: Tensor, d_log_prob: Tensor) -> Tensor:
    """Returns the gradient by the output [B, 2 A] from those by action [B, A] and log-probability [B].

    By da/du = 1 - a^2, d log p/du = 2 a, du/d log std = std noise and d log p/d log std = -1; of a log
    std at its bounds or beyond, where autograd's clamp passes it on at the bounds, 0.
    """
    num_rows, action_dim = sample.action.shape
    d_output = sample.action.new_empty(num_rows, 2 * action_dim)
    d_mean, d_log_std = d_output.chunk(2, dim=-1)
    torch.ops.aten.tanh_backward.grad_input(d_action, sample.action, grad_input=d_mean)
    d_mean.addcmul_(d_log_prob[:, None], sample.action, value=2.0)
    torch.mul(d_mean, sample.std, out=d_log_std).mul_(sample.noise).sub_(d_log_prob[:, None])
    bounds = LOG_STD_MIN, LOG_STD_MAX
    torch.ops.aten.hardtanh_backward.grad_input(d_log_std, sample.raw_log_std, *bounds, grad_input=d_log_std)
    return d_output


def _squashed(mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    return torch.addcmul(mean, log_std.exp(), noise).tanh()


class SquashedGaussianActor(nn.Module):
    """SAC's policy: a = tanh(u), u ~ N(mean(s), std(s)), diagonal, log std clamped to [-20, 2]."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_dims: Sequence[int], activation: str) -> None:
        super().__init__()
        self.body: Mlp = mlp(obs_dim, hidden_dims, 2 * action_dim, activation)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """[B, O] -> mean [B, A] and log std [B, A] before the squashing."""
        mean, log_std = self.body(obs).chunk(2, dim=-1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def sample(self, obs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns a reparameterised action [B, A] and its log-probability [B], from the kept pre-tanh sample."""
        sample = self.sample_from(self.body(obs), generator)
        return sample.action, sample.log_prob

    def sample_from(self, output: Tensor, generator: torch.Generator) -> SquashedSample:
        """Returns a sample for what the network has put out. [B, 2 A]."""
        shape = (*output.shape[:-1], output.shape[-1] // 2)
        return squashed_sample(output, torch.randn(shape, generator=generator, device=output.device))

    def act(self, obs: Tensor) -> Tensor:
        """Returns the squashed mean. [B, O] -> [B, A]."""
        mean, _ = self.forward(obs)
        return mean.tanh()

    def explore(self, obs: Tensor, generator: torch.Generator) -> Explored:
        """Returns a sample of the policy. [B, O] -> [B, A]."""
        mean, log_std = self.forward(obs)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        return _squashed(mean, log_std, noise), None

    def act_with_noise(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Returns the action of unit noise [B, A]. [B, O] -> [B, A]."""
        return _squashed(*self.forward(obs), noise)


class ResidualActor(SquashedGaussianActor):
    """FlashSAC's policy (arXiv:2604.04539): as SAC's, from residual blocks, log std by tanh into [-10, 2]."""

    def __init__(self, obs_dim: int, action_dim: int, width: int, num_blocks: int) -> None:
        nn.Module.__init__(self)  # another body than that of a SquashedGaussianActor
        self.body = ResidualNet(obs_dim, width, num_blocks, 2 * action_dim, BoundedLogStd())


class BoundedLogStd(nn.Module):
    """Means [..., A] as they are, and log stds [..., A] by tanh into [-10, 2], side by side."""

    def forward(self, output: Tensor) -> Tensor:
        """[..., 2 A] -> [..., 2 A]."""
        mean, raw = output.chunk(2, dim=-1)
        half = 0.5 * (LOG_STD_MAX - RESIDUAL_LOG_STD_MIN)
        return torch.cat((mean, raw.tanh() * half + (LOG_STD_MAX - half)), dim=-1)


class DeterministicActor(nn.Module):
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
        return action.tanh()

    def act(self, obs: Tensor) -> Tensor:
        """[B, O] -> [B, A]."""
        return self.forward(obs)

    def explore(self, obs: Tensor, generator: torch.Generator) -> Explored:
        """Returns the action plus noise drawn per row and per dimension, clipped to [-1, 1]. [B, O] -> [B, A]."""
        action = self.forward(obs)
        noise = torch.randn(action.shape, generator=generator, device=action.device)
        return (action + self.exploration_noise * noise).clamp(-1.0, 1.0), None


POLICY_GAIN = 0.01  # initial gain of the last layer: the first policy hardly depends on the observation


class GaussianActor(nn.Module):
    """APPO's policy for continuous actions: N(mean(s), std), with one std per dimension in all states.

    The samples are not squashed: their log-probability is that of the Gaussian, and the environment adapter clips what
    lies outside [-1, 1]. Orthogonal initialisation as in PPO's reference implementation.
    """

    def __init__(
        self, obs_dim: int, action_dim: int, hidden_dims: Sequence[int], activation: str, init_log_std: float
    ) -> None:
        super().__init__()
        self.body = orthogonal_(mlp(obs_dim, hidden_dims, action_dim, activation), head_gain=POLICY_GAIN)
        self.log_std = nn.Parameter(torch.full((action_dim,), init_log_std))

    def distribution(self, obs: Tensor) -> DiagonalGaussian:
        """[..., O] -> a distribution of actions [..., A]."""
        mean: Tensor = self.body(obs)
        return DiagonalGaussian(mean, self.log_std.expand_as(mean))

    def act(self, obs: Tensor) -> Tensor:
        """Returns the mean, clipped to [-1, 1]. [..., O] -> [..., A]."""
        return self.distribution(obs).mean.clamp(-1.0, 1.0)

    def explore(self, obs: Tensor, generator: torch.Generator) -> Explored:
        """Returns a sample of the policy. [..., O] -> [..., A], [...]."""
        return drawn(self.distribution(obs), generator)


class SoftmaxActor(nn.Module):
    """SAC's policy for discrete actions: softmax(net(s)), with torch's default initialisation (arXiv:1910.07207)."""

    def __init__(self, obs_dim: int, num_actions: int, hidden_dims: Sequence[int], activation: str) -> None:
        super().__init__()
        self.body = mlp(obs_dim, hidden_dims, num_actions, activation)

    def distribution(self, obs: Tensor) -> Categorical:
        """[..., O] -> a distribution of actions [..., 1]."""
        logits: Tensor = self.body(obs)
        return Categorical(logits.log_softmax(dim=-1))

    def act(self, obs: Tensor) -> Tensor:
        """Returns the likeliest action. [..., O] -> [..., 1]."""
        return self.distribution(obs).mode()

    def explore(self, obs: Tensor, generator: torch.Generator) -> Explored:
        """Returns a sample of the policy. [..., O] -> [..., 1]."""
        return self.distribution(obs).sample(generator), None


class CategoricalActor(SoftmaxActor):
    """APPO's policy for discrete actions: softmax(net(s)). Orthogonal initialisation, as `GaussianActor`."""

    def __init__(self, obs_dim: int, num_actions: int, hidden_dims: Sequence[int], activation: str) -> None:
        super().__init__(obs_dim, num_actions, hidden_dims, activation)
        orthogonal_(self.body, head_gain=POLICY_GAIN)

    def explore(self, obs: Tensor, generator: torch.Generator) -> Explored:
        """Returns a sample of the policy. [..., O] -> [..., 1], [...]."""
        return drawn(self.distribution(obs), generator)


class MultiCategoricalActor(nn.Module):
    """APPO's policy for several discrete actions at once: a softmax for each. Initialised as `CategoricalActor`."""

    def __init__(self, obs_dim: int, nvec: tuple[int, ...], hidden_dims: Sequence[int], activation: str) -> None:
        super().__init__()
        self.nvec = nvec
        self.body = orthogonal_(mlp(obs_dim, hidden_dims, sum(nvec), activation), head_gain=POLICY_GAIN)

    def distribution(self, obs: Tensor) -> MultiCategorical:
        """[..., O] -> a distribution of actions [..., A]."""
        logits: Tensor = self.body(obs)
        parts = torch.split(logits, list(self.nvec), dim=-1)
        return MultiCategorical(torch.cat([part.log_softmax(dim=-1) for part in parts], dim=-1), self.nvec)

    def act(self, obs: Tensor) -> Tensor:
        """Returns the likeliest actions. [..., O] -> [..., A]."""
        return self.distribution(obs).mode()

    def explore(self, obs: Tensor, generator: torch.Generator) -> Explored:
        """Returns a sample of the policy. [..., O] -> [..., A], [...]."""
        return drawn(self.distribution(obs), generator)


TrunkActor = GaussianActor | CategoricalActor | MultiCategoricalActor


def soft_actor(algo: AlgoConfig, spec: SpaceSpec) -> SquashedGaussianActor | SoftmaxActor:
    """Returns SAC's actor for the action space of `spec`."""
    if spec.num_actions:
        return SoftmaxActor(spec.obs_dim, spec.num_actions, algo.hidden_dims, algo.activation)
    return SquashedGaussianActor(spec.obs_dim, spec.action_dim, algo.hidden_dims, algo.activation)


class GroupActor(nn.Module):
    """APPO's policy on one group of a Dict observation: an asymmetric actor-critic (arXiv:1710.06542)."""

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec, group: str) -> None:
        super().__init__()
        self.group, self.columns = group, spec.columns(group)
        self.trunk = stochastic_actor(algo, spec, self.columns.stop - self.columns.start)

    def distribution(self, obs: Tensor) -> PolicyDistribution:
        """[..., O] -> a distribution of actions [..., A]."""
        return self.trunk.distribution(obs[..., self.columns])

    def act(self, obs: Tensor) -> Tensor:
        """Returns the trunk's deterministic action. [..., O] -> [..., A]."""
        return self.trunk.act(obs[..., self.columns])

    def explore(self, obs: Tensor, generator: torch.Generator) -> Explored:
        """Returns a sample and its log-probability. [..., O] -> [..., A], [...]."""
        return self.trunk.explore(obs[..., self.columns], generator)


def stochastic_actor(algo: AlgoConfig, spec: SpaceSpec, obs_dim: int) -> TrunkActor:
    """Returns APPO's actor of inputs [obs_dim] for the action space of `spec`."""
    if spec.nvec:
        return MultiCategoricalActor(obs_dim, spec.nvec, algo.hidden_dims, algo.activation)
    if spec.num_actions:
        return CategoricalActor(obs_dim, spec.num_actions, algo.hidden_dims, algo.activation)
    return GaussianActor(obs_dim, spec.action_dim, algo.hidden_dims, algo.activation, algo.init_log_std)
