"""Residual networks with batch norm, FlashSAC's actor and critics (arXiv:2604.04539): section 4, figure 2.

Batch norm, linear; blocks x + relu(BN(W2 relu(BN(W1 x)))) of four times the width inside; RMS norm; linear. Rows of
weights are not scaled to norm 1 after each step, which the paper's ablation hardly sees (4,837 without, 4,875 with).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.actors import LOG_STD_MAX, SquashedGaussianActor
from offpolicy.nets.critics import TwinCritic
from offpolicy.types import SpaceSpec

EXPANSION = 4  # units inside a block per unit of the residual stream
MOMENTUM = 0.01  # weight of a batch in the running statistics
BATCH_EPS, RMS_EPS = 1e-5, 1e-6
RESIDUAL_LOG_STD_MIN = -10.0


class BatchNorm(nn.Module):
    """Batch norm (arXiv:1502.03167) whose caller says which statistics it uses; there is no mode to be forgotten."""

    running_mean: Tensor  # [D]
    running_var: Tensor  # [D]

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, input: Tensor, *, of_batch: bool = False) -> Tensor:  # noqa: A002  # the name in torch
        """Normalises [B, D] with the batch's statistics, which then move the running ones, or with the running ones."""
        return functional.batch_norm(
            *(input, self.running_mean, self.running_var, self.weight, self.bias),
            training=of_batch, momentum=MOMENTUM, eps=BATCH_EPS,
        )  # fmt: skip


class ResidualBlock(nn.Module):
    """x + relu(BN(W2 relu(BN(W1 x))))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.expand, self.contract = _linear(width, EXPANSION * width), _linear(EXPANSION * width, width)
        self.inner_norm, self.outer_norm = BatchNorm(EXPANSION * width), BatchNorm(width)

    def forward(self, input: Tensor, *, of_batch: bool = False) -> Tensor:  # noqa: A002  # the name in torch
        """[B, W] -> [B, W]."""
        inner = self.inner_norm(self.expand(input), of_batch=of_batch).relu_()
        outer: Tensor = self.outer_norm(self.contract(inner), of_batch=of_batch).relu_()
        return input + outer


class ResidualNet(nn.Sequential):
    """[B, inputs] -> [B, outputs]: the network of the header, and what `last` makes of its output."""

    def __init__(self, inputs: int, width: int, num_blocks: int, outputs: int, *last: nn.Module) -> None:
        blocks = [ResidualBlock(width) for _ in range(num_blocks)]
        head = _linear(width, outputs, bias=True)
        norm = nn.RMSNorm(width, eps=RMS_EPS)
        super().__init__(BatchNorm(inputs), _linear(inputs, width), *blocks, norm, head, *last)

    def forward(self, input: Tensor, *, of_batch: bool = False) -> Tensor:  # noqa: A002  # the name in nn.Sequential
        """Evaluates with the statistics of the batch, or with the running ones."""
        output = input
        for layer in self:
            has_batch_norm = isinstance(layer, BatchNorm | ResidualBlock)
            output = layer(output, of_batch=of_batch) if has_batch_norm else layer(output)
        return output.float()


class ResidualActor(SquashedGaussianActor):
    """FlashSAC's policy (arXiv:2604.04539): as SAC's, from residual blocks, log std by tanh into [-10, 2]."""

    body: ResidualNet

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


class CategoricalTwinCritic(TwinCritic):
    """Two distributions of the return over K bins, of residual blocks (FlashSAC, arXiv:2604.04539; C51, 1707.06887)."""

    first: ResidualNet
    second: ResidualNet
    bins: Tensor  # [K]

    def __init__(self, obs_dim: int, action_dim: int, width: int, num_blocks: int, bins: Tensor) -> None:
        """`bins` [K] are the returns that the distributions are of, equally spaced."""
        nn.Module.__init__(self)  # other networks than those of a TwinCritic
        self.first = ResidualNet(obs_dim + action_dim, width, num_blocks, len(bins))
        self.second = ResidualNet(obs_dim + action_dim, width, num_blocks, len(bins))
        self.register_buffer("bins", bins, persistent=False)

    def log_probs(self, pair: Tensor, *, of_batch: bool) -> Tensor:
        """Returns both distributions, with the statistics of the batch or the running ones. [B, O + A] -> [C, B, K]."""
        logits = [net.forward(pair, of_batch=of_batch) for net in (self.first, self.second)]
        return torch.stack(logits).log_softmax(dim=-1)

    def means(self, log_probs: Tensor) -> Tensor:
        """Returns the expected returns. [C, B, K] -> [C, B]."""
        return (log_probs.exp() * self.bins).sum(dim=-1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns both expected values, with the running statistics. [B, O], [B, A] -> [C=2, B]."""
        return self.means(self.log_probs(torch.cat((obs, action), dim=-1), of_batch=False))


def residual_actor(algo: AlgoConfig, spec: SpaceSpec) -> ResidualActor:
    """Returns FlashSAC's actor."""
    return ResidualActor(spec.obs_dim, spec.action_dim, algo.actor_width, algo.num_blocks)


def categorical_critic(algo: AlgoConfig, spec: SpaceSpec) -> CategoricalTwinCritic:
    """Returns FlashSAC's critics."""
    bins = torch.linspace(-algo.value_max, algo.value_max, algo.num_bins)
    return CategoricalTwinCritic(spec.obs_dim, spec.action_dim, algo.critic_width, algo.num_blocks, bins)


def _linear(inputs: int, outputs: int, *, bias: bool = False) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.orthogonal_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
