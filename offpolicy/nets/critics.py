"""Critics of SAC and TD3: two networks Q(s, a)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.mlp import mlp, with_encoder
from offpolicy.types import SpaceSpec


class TwinCritic(nn.Module):
    """Two independent Q networks (clipped double Q, TD3, arXiv:1802.09477)."""

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
        self.first = mlp(obs_dim + action_dim, hidden_dims, num_outputs, activation, layer_norm)
        self.second = mlp(obs_dim + action_dim, hidden_dims, num_outputs, activation, layer_norm)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns both values. [B, O], [B, A] -> [C=2, B]; of critics with several outputs M [C, B, M]."""
        pair = torch.cat((obs, action), dim=-1)
        return torch.stack((self.first(pair), self.second(pair))).squeeze(-1).float()

    def q1(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns the first critic's values. -> [B]."""
        q: Tensor = self.first(torch.cat((obs, action), dim=-1))
        return q.squeeze(-1).float()

    def parameters_by_layer(self) -> dict[str, nn.Parameter]:
        """Returns the parameters by name, those of both networks layer by layer, so that layers lie side by side."""
        pairs = zip(self.first.named_parameters(), self.second.named_parameters(), strict=True)
        return {f"{net}.{name}": p for pair in pairs for net, (name, p) in zip(("first", "second"), pair, strict=True)}


class DiscreteTwinCritic(TwinCritic):
    """Two independent Q networks with an output for each of K discrete actions (arXiv:1910.07207)."""

    def values(self, obs: Tensor) -> Tensor:
        """Returns both values of every action. [B, O] -> [C=2, B, K]."""
        return torch.stack((self.first(obs), self.second(obs))).float()

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns both values of the actions taken. [B, O], [B, 1] -> [C=2, B]."""
        index = action.long().expand(2, -1, 1)
        return self.values(obs).gather(2, index).squeeze(2)


def make_critic(algo: AlgoConfig, spec: SpaceSpec, num_outputs: int = 1) -> TwinCritic:
    """Returns the twin critics on the CPU; of a Box each has `num_outputs` values for a pair of obs and action."""

    def make(inner: SpaceSpec) -> TwinCritic:
        options = (algo.hidden_dims, algo.activation, algo.critic_layer_norm)
        if spec.num_actions:
            return DiscreteTwinCritic(inner.obs_dim, 0, *options, spec.num_actions)
        return TwinCritic(inner.obs_dim, spec.action_dim, *options, num_outputs)

    return with_encoder(algo, spec, make)
