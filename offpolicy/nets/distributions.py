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
    """One of K discrete actions; an action is its index, as a float in a last dimension of size 1.

    Where a log-probability is NaN or infinite, the action is NaN, as that of a diverged Gaussian is.
    """

    log_probs: Tensor  # [..., K], normalised

    def sample(self, generator: torch.Generator) -> Tensor:
        """Returns one action per state, from the caller's generator. -> [..., 1]."""
        flat = self.log_probs.exp().reshape(-1, self.log_probs.shape[-1])
        drawn = torch.multinomial(flat.nan_to_num(nan=1.0), 1, generator=generator)  # it raises for NaN
        return self._action(drawn.reshape(*self.log_probs.shape[:-1], 1))

    def mode(self) -> Tensor:
        """Returns the likeliest action of each state. -> [..., 1]."""
        return self._action(self.log_probs.argmax(dim=-1, keepdim=True))

    def _action(self, index: Tensor) -> Tensor:
        """[..., 1] -> [..., 1]."""
        return index + 0.0 * self.log_probs.amin(dim=-1, keepdim=True)

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


class MultiCategorical(NamedTuple):
    """One discrete action of each of A independent choices, of `nvec` actions each; actions are their indices."""

    log_probs: Tensor  # [..., sum(nvec)], normalised choice by choice
    nvec: tuple[int, ...]

    def parts(self) -> list[Categorical]:
        """Returns the distribution of each choice."""
        return [Categorical(part) for part in torch.split(self.log_probs, list(self.nvec), dim=-1)]

    def sample(self, generator: torch.Generator) -> Tensor:
        """Returns one action per state, from the caller's generator. -> [..., A]."""
        return torch.cat([part.sample(generator) for part in self.parts()], dim=-1)

    def mode(self) -> Tensor:
        """Returns the likeliest action of each state. -> [..., A]."""
        return torch.cat([part.mode() for part in self.parts()], dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """[..., A] -> [...]."""
        choices = zip(self.parts(), torch.split(action, 1, dim=-1), strict=True)
        return torch.stack([part.log_prob(own) for part, own in choices]).sum(dim=0)

    def entropy(self) -> Tensor:
        """[...], in nats."""
        return -(self.log_probs.exp() * self.log_probs).sum(dim=-1)

    def rows(self, index: Tensor) -> MultiCategorical:
        """Returns the distributions of the states `index` [n] of [M]."""
        return MultiCategorical(self.log_probs[index], self.nvec)

    def flat(self) -> MultiCategorical:
        """Returns the distributions of states [T, B] as those of [T * B]."""
        return MultiCategorical(self.log_probs.flatten(0, 1), self.nvec)

    def kl_to(self, other: MultiCategorical) -> Tensor:
        """KL(this || other). -> [...]."""
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(dim=-1)


PolicyDistribution = DiagonalGaussian | Categorical | MultiCategorical


def drawn(distribution: PolicyDistribution, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns one action per state and its log-probability. -> [..., A], [...]."""
    action = distribution.sample(generator)
    return action, distribution.log_prob(action.nan_to_num())  # an action of NaN is no index


def kl_divergence(old: PolicyDistribution, new: PolicyDistribution) -> Tensor:
    """KL(old || new) of two distributions of one kind. -> [...]."""
    if isinstance(old, DiagonalGaussian) and isinstance(new, DiagonalGaussian):
        return old.kl_to(new)
    if isinstance(old, MultiCategorical) and isinstance(new, MultiCategorical):
        return old.kl_to(new)
    assert isinstance(old, Categorical)
    assert isinstance(new, Categorical)
    return old.kl_to(new)
