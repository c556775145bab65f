"""Running normalisation of observations and of values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

OBS_CLIP = 10.0
EPS = 1e-8


class RunningMoments(nn.Module):
    """The mean and variance of all rows absorbed, per dimension.

    In float64: after 1e6 rows one more moves the mean by less than float32 can hold. Replayed rows are not absorbed.
    """

    mean: Tensor  # [D] float64
    var: Tensor  # [D] float64
    count: Tensor  # [] float64, whole, exact to 2^53

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("var", torch.ones(dim, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def absorb(self, moments: Tensor) -> None:
        """Adds a block's `moments`. Leaves out a block without rows, or with a NaN or Inf, as a whole."""
        rows, (block_mean, block_square_sum) = moments[0], moments[1:].chunk(2)
        total = self.count + rows
        delta = block_mean - self.mean
        mean = self.mean + delta * (rows / total)
        square_sum = self.var * self.count + block_square_sum + delta.square() * (self.count * rows / total)
        is_usable = (mean + square_sum).isfinite().all() & (rows > 0)
        self.mean.copy_(torch.where(is_usable, mean, self.mean))
        self.var.copy_(torch.where(is_usable, square_sum / total, self.var))
        self.count.copy_(torch.where(is_usable, total, self.count))

    def part(self, columns: slice) -> RunningMoments:
        """Returns the statistics of some dimensions: views of these, with a separate count that starts at 0."""
        part = RunningMoments(0)
        del part.mean, part.var  # as buffers they would be saved, and compared between ranks, twice
        part.mean, part.var = self.mean[columns], self.var[columns]
        part.count = torch.zeros_like(self.count)
        return part


class ObsNormalizer(RunningMoments):
    """clamp((obs - mean) / sqrt(var + eps), -10, 10) with the mean and variance of every observation seen."""

    @torch.no_grad()
    def forward(self, obs: Tensor) -> Tensor:
        """Normalises [..., O] -> [..., O] float32. Uses the statistics rounded to float32, as a collector has them."""
        scale = (self.var.float() + EPS).rsqrt()
        return ((obs - self.mean.float()) * scale).clamp(-OBS_CLIP, OBS_CLIP)


class ReturnScale(RunningMoments):
    """The divisor of rewards: max(sqrt(Var G + eps), max|G| / value_max), FlashSAC (arXiv:2604.04539) section 4.

    G are the running discounted returns of all transitions. A block's moments are [4] float64: number of rows, mean,
    sum of squared deviations, and the greatest |G|.
    """

    largest: Tensor  # [1] float64, the greatest |G| so far

    def __init__(self, value_max: float) -> None:
        super().__init__(dim=1)
        self.register_buffer("largest", torch.zeros(1, dtype=torch.float64))
        self._value_max = value_max

    @torch.no_grad()
    def absorb(self, moments: Tensor) -> None:
        """Adds a block's moments [4]. A block with a NaN or Inf is left out as a whole."""
        usable = torch.where(moments.isfinite().all(), moments, 0.0)
        super().absorb(usable[:3])
        self.largest.copy_(torch.maximum(self.largest, usable[3:]))

    def forward(self) -> Tensor:
        """Returns the divisor [], float32."""
        return torch.maximum((self.var + EPS).sqrt(), self.largest / self._value_max).float().squeeze(0)


def block_moments(rows: Tensor) -> Tensor:
    """Returns the number of rows [M, D], their mean and their sum of squared deviations. -> [1 + 2 D] float64."""
    return weighted_moments(rows, rows.new_ones(len(rows)))


@torch.no_grad()
def weighted_moments(rows: Tensor, weight: Tensor) -> Tensor:
    """Returns `block_moments` of the rows [M, D] whose weight [M] is 1, without waiting for the device."""
    weight = weight.double()[:, None]
    values = rows.double()
    count = weight.sum()
    mean = (weight * values).sum(dim=0) / count.clamp(min=1.0)
    return torch.cat((count[None], mean, (weight * (values - mean).square()).sum(dim=0)))
