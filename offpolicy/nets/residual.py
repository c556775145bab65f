"""Residual networks with batch norm, those of FlashSAC (arXiv:2604.04539): section 4, figure 2.

Batch norm, linear; blocks x + relu(BN(W2 relu(BN(W1 x)))) of four times the width inside; RMS norm; linear. Weights
are orthogonal at first. The paper also scales every row of a weight to norm 1 after each step; its own ablation sees
little of that (4,837 without, 4,875 with), and it is not done here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from offpolicy.nets.mlp import Mlp
from offpolicy.nets.products import Linear

EXPANSION = 4  # units inside a block per unit of the residual stream
MOMENTUM = 0.01  # weight of a batch in the running statistics
BATCH_EPS, RMS_EPS = 1e-5, 1e-6


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


class ResidualNet(Mlp):
    """[B, inputs] -> [B, outputs]: the network of the header, and what `last` makes of its output."""

    def __init__(self, inputs: int, width: int, num_blocks: int, outputs: int, last: nn.Module | None = None) -> None:
        blocks = [ResidualBlock(width) for _ in range(num_blocks)]
        head = _linear(width, outputs, bias=True)
        norm = nn.RMSNorm(width, eps=RMS_EPS)
        tail = (norm, head) if last is None else (norm, head, last)
        super().__init__(BatchNorm(inputs), _linear(inputs, width), *blocks, *tail)

    def forward(self, input: Tensor, *, of_batch: bool = False) -> Tensor:  # noqa: A002  # the name in nn.Sequential
        """Evaluates with the statistics of the batch, or with the running ones."""
        output = input
        for layer in self:
            has_batch_norm = isinstance(layer, BatchNorm | ResidualBlock)
            output = layer(output, of_batch=of_batch) if has_batch_norm else layer(output)
        return output


def _linear(inputs: int, outputs: int, *, bias: bool = False) -> Linear:
    layer = Linear(inputs, outputs, bias=bias)
    nn.init.orthogonal_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def statistics_of(*networks: nn.Module) -> list[Tensor]:
    """Returns the running statistics of all batch norms in the networks."""
    norms = [module for network in networks for module in network.modules() if isinstance(module, BatchNorm)]
    return [tensor for norm in norms for tensor in (norm.running_mean, norm.running_var)]
