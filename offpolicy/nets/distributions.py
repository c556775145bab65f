"""Distributions of actions, for the algorithms that need more of a policy than a sample."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


class DiagonalGaussian(NamedTuple):
    """Independent normal distributions of the dimensions, not squashed: what lies outside [-1, 1] is clipped later."""

    mean: Tensor  # [..., A]
    log_std: Tensor  # [..., A]

    def sample(self, generator: torch.Generator) -> Tensor:
        """Returns one action per state, from the caller's generator. -> [..., A]."""
        noise = torch.randn(self.mean.shape, generator=generator, device=self.mean.device)
        return torch.addcmul(self.mean, self.log_std.exp(), noise)

    def log_prob(self, action: Tensor) -> Tensor:
        """[..., A] -> [...]."""
        unit = (action - self.mean) * (-self.log_std).exp()
        return -(0.5 * unit.square() + self.log_std + LOG_SQRT_2PI).sum(dim=-1)

    def entropy(self) -> Tensor:
        """[...], in nats."""
        return (self.log_std + LOG_SQRT_2PI + 0.5).sum(dim=-1)

    def rows(self, index: Tensor) -> DiagonalGaussian:
        """Returns the distributions of the states `index` [n] of [M]."""
        return DiagonalGaussian(self.mean[index], self.log_std[index])

    def flat(self) -> DiagonalGaussian:
        """Returns the distributions of states [T, B] as those of [T * B]; a copy, which no optimiser moves."""
        return DiagonalGaussian(self.mean.flatten(0, 1), self.log_std.flatten(0, 1).clone())

    def kl_to(self, other: DiagonalGaussian) -> Tensor:
        """KL(this || other). -> [...]."""
        ratio = (2.0 * (self.log_std - other.log_std)).exp()
        distance = (self.mean - other.mean).square() * (-2.0 * other.log_std).exp()
        return (0.5 * (ratio + distance - 1.0) + other.log_std - self.log_std).sum(dim=-1)


class Categorical(NamedTuple):
    """One of K discrete actions; an action is its index, as a float in a last dimension of size 1."""

    log_probs: Tensor  # [..., K], normalised

    def sample(self, generator: torch.Generator) -> Tensor:
        """Returns one action per state, from the caller's generator. -> [..., 1]."""
        flat = self.log_probs.exp().reshape(-1, self.log_probs.shape[-1])
        drawn = torch.multinomial(flat, 1, generator=generator)
        return drawn.reshape(*self.log_probs.shape[:-1], 1).to(self.log_probs.dtype)

    def log_prob(self, action: Tensor) -> Tensor:
        """[..., 1] -> [...]."""
        return self.log_probs.gather(-1, action.long()).squeeze(-1)

    def entropy(self) -> Tensor:
        """[...], in nats."""
        return -(self.log_probs.exp() * self.log_probs).sum(dim=-1)

    def rows(self, index: Tensor) -> Categorical:
        """Returns the distributions of the states `index` [n] of [M]."""
        return Categorical(self.log_probs[index])

    def flat(self) -> Categorical:
        """Returns the distributions of states [T, B] as those of [T * B]."""
        return Categorical(self.log_probs.flatten(0, 1))

    def kl_to(self, other: Categorical) -> Tensor:
        """KL(this || other). -> [...]."""
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(dim=-1)


PolicyDistribution = DiagonalGaussian | Categorical


def drawn(distribution: PolicyDistribution, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns one action per state and its log-probability. -> [..., A], [...]."""
    action = distribution.sample(generator)
    return action, distribution.log_prob(action)


def kl_divergence(old: PolicyDistribution, new: PolicyDistribution) -> Tensor:
    """KL(old || new) of two distributions of one kind. -> [...]."""
    if isinstance(old, DiagonalGaussian) and isinstance(new, DiagonalGaussian):
        return old.kl_to(new)
    assert isinstance(old, Categorical)
    assert isinstance(new, Categorical)
    return old.kl_to(new)
