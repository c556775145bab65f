"""Critics: Q(s, a) and V(s)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from offpolicy.nets.mlp import mlp, orthogonal_
from offpolicy.nets.normalizer import ValueNormalizer


class TwinCritic(nn.Module):
    """Two independent Q networks (clipped double Q, TD3, arXiv:1802.09477).

    Two separate MLPs, not one batched product: at C = 2 the batched one is slower on a CPU.
    """

    def __init__(
        self, obs_dim: int, action_dim: int, hidden_dims: Sequence[int], activation: str, layer_norm: bool = False
    ) -> None:
        super().__init__()
        self.first = mlp(obs_dim + action_dim, hidden_dims, 1, activation, layer_norm)
        self.second = mlp(obs_dim + action_dim, hidden_dims, 1, activation, layer_norm)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """[B, O], [B, A] -> [C=2, B]."""
        pair = torch.cat((obs, action), dim=-1)
        return torch.stack((self.first(pair).squeeze(-1), self.second(pair).squeeze(-1)))

    def q1(self, obs: Tensor, action: Tensor) -> Tensor:
        """The first critic alone, for TD3's actor. [B, O], [B, A] -> [B]."""
        q: Tensor = self.first(torch.cat((obs, action), dim=-1))
        return q.squeeze(-1)


class ValueCritic(nn.Module):
    """V(s), predicted in units of the running mean and spread of its targets, or as it is."""

    def __init__(self, obs_dim: int, hidden_dims: Sequence[int], activation: str, *, normalize_value: bool) -> None:
        super().__init__()
        self.body = orthogonal_(mlp(obs_dim, hidden_dims, 1, activation), head_gain=1.0)
        self.normalizer = ValueNormalizer() if normalize_value else None

    def forward(self, obs: Tensor) -> Tensor:
        """The prediction in its own units. [..., O] -> [...]."""
        value: Tensor = self.body(obs)
        return value.squeeze(-1)

    def in_returns(self, prediction: Tensor) -> Tensor:
        """A prediction [...] as a return."""
        return prediction if self.normalizer is None else self.normalizer.denormalize(prediction)

    def in_units(self, value: Tensor) -> Tensor:
        """A return [...] in the units of the prediction."""
        return value if self.normalizer is None else self.normalizer.normalize(value)
