"""Running normalisation of observations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

OBS_CLIP = 10.0
EPS = 1e-8


class ObsNormalizer(nn.Module):
    """clamp((obs - mean) / sqrt(var + eps), -10, 10) with the mean and variance of every observation seen.

    The statistics are float64: after 1e6 rows one more row moves the mean by less than float32 can hold. They move
    only in `update`, which the learner calls once per fresh observation, never on replayed rows.
    """

    mean: Tensor  # [O] float64
    var: Tensor  # [O] float64
    count: Tensor  # [] float64, whole, exact to 2^53

    def __init__(self, obs_dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(obs_dim, dtype=torch.float64))
        self.register_buffer("var", torch.ones(obs_dim, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def forward(self, obs: Tensor) -> Tensor:
        """[..., O] -> [..., O] float32. Uses the statistics rounded to float32, as a collector has them."""
        scale = (self.var.float() + EPS).rsqrt()
        return ((obs - self.mean.float()) * scale).clamp(-OBS_CLIP, OBS_CLIP)

    @torch.no_grad()
    def absorb(self, moments: Tensor) -> None:
        """Add a block's `moments`. One without rows, or with a NaN or Inf, is left out whole."""
        rows, block_mean, block_square_sum = split_moments(moments)
        total = self.count + rows
        delta = block_mean - self.mean
        mean = self.mean + delta * (rows / total)
        square_sum = self.var * self.count + block_square_sum + delta.square() * (self.count * rows / total)
        is_usable = (mean + square_sum).isfinite().all() & (rows > 0)
        self.mean.copy_(torch.where(is_usable, mean, self.mean))
        self.var.copy_(torch.where(is_usable, square_sum / total, self.var))
        self.count.copy_(torch.where(is_usable, total, self.count))


@torch.no_grad()
def block_moments(obs: Tensor) -> Tensor:
    """The number of rows of obs [M, O], their mean and their sum of squared deviations. -> [1 + 2 O] float64."""
    rows = obs.new_full((1,), obs.shape[0], dtype=torch.float64)
    if obs.shape[0] == 0:
        return torch.cat((rows, rows.new_zeros(2 * obs.shape[1])))
    var, mean = torch.var_mean(obs.double(), dim=0, correction=0)
    return torch.cat((rows, mean, var * obs.shape[0]))


@torch.no_grad()
def joined_moments(first: Tensor, second: Tensor) -> Tensor:
    """The moments of two blocks as one block (Chan, Golub and LeVeque 1979). [1 + 2 O] twice -> [1 + 2 O]."""
    rows_1, mean_1, square_sum_1 = split_moments(first)
    rows_2, mean_2, square_sum_2 = split_moments(second)
    total = rows_1 + rows_2
    share = rows_2 / total.clamp(min=1.0)
    delta = mean_2 - mean_1
    square_sum = square_sum_1 + square_sum_2 + delta.square() * (rows_1 * share)
    return torch.cat((total[None], mean_1 + delta * share, square_sum))


def split_moments(moments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Views of moments [1 + 2 O]: rows [], mean [O], sum of squared deviations [O]."""
    obs_dim = (len(moments) - 1) // 2
    return moments[0], moments[1 : 1 + obs_dim], moments[1 + obs_dim :]
