"""Distributions of actions, for the algorithms that need more of a policy than a sample."""

from __future__ import annotations

import math
from collections.abc import Callable
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


class Categorical(NamedTuple):
    """One action of each of A independent choices, which have `nvec` actions; actions are their indices, as floats.

    Where a log-probability is NaN or infinite, the action is NaN, as that of a diverged Gaussian is.
    """

    log_probs: Tensor  # [..., sum(nvec)], normalised choice by choice
    nvec: tuple[int, ...]

    def sample(self, generator: torch.Generator) -> Tensor:
        """Returns one action per state, from the caller's generator. -> [..., A]."""

        def draw(log_probs: Tensor) -> Tensor:
            flat = log_probs.exp().reshape(-1, log_probs.shape[-1]).nan_to_num(nan=1.0)  # multinomial raises for NaN
            return torch.multinomial(flat, 1, generator=generator).reshape(*log_probs.shape[:-1], 1)

        return self._actions(draw)

    def mode(self) -> Tensor:
        """Returns the likeliest action of each state. -> [..., A]."""
        return self._actions(lambda log_probs: log_probs.argmax(dim=-1, keepdim=True))

    def log_prob(self, action: Tensor) -> Tensor:
        """[..., A] -> [...]."""
        choices = zip(self._parts(), torch.split(action.long(), 1, dim=-1), strict=True)
        return torch.cat([part.gather(-1, index) for part, index in choices], dim=-1).sum(dim=-1)

    def entropy(self) -> Tensor:
        """[...], in nats."""
        return -(self.log_probs.exp() * self.log_probs).sum(dim=-1)

    def rows(self, index: Tensor) -> Categorical:
        """Returns the distributions of the states `index` [n] of [M]."""
        return Categorical(self.log_probs[index], self.nvec)

    def flat(self) -> Categorical:
        """Returns the distributions of states [T, B] as those of [T * B]."""
        return Categorical(self.log_probs.flatten(0, 1), self.nvec)

    def _parts(self) -> tuple[Tensor, ...]:
        return torch.split(self.log_probs, list(self.nvec), dim=-1)

    def _actions(self, choose: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns what `choose` [..., k] -> [..., 1] takes of each choice."""
        return torch.cat([choose(part) + 0.0 * part.amin(dim=-1, keepdim=True) for part in self._parts()], dim=-1)


PolicyDistribution = DiagonalGaussian | Categorical


def kl_divergence(old: PolicyDistribution, new: PolicyDistribution) -> Tensor:
    """KL(old || new) of two distributions of one kind. -> [...]."""
    if isinstance(old, DiagonalGaussian):
        assert isinstance(new, DiagonalGaussian)
        ratio = (2.0 * (old.log_std - new.log_std)).exp()
        distance = (old.mean - new.mean).square() * (-2.0 * new.log_std).exp()
        return (0.5 * (ratio + distance - 1.0) + new.log_std - old.log_std).sum(dim=-1)
    assert isinstance(new, Categorical)
    return (old.log_probs.exp() * (old.log_probs - new.log_probs)).sum(dim=-1)
