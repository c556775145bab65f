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
    def update(self, obs: Tensor) -> None:
        """Merge the rows of obs [M, O] (Chan, Golub and LeVeque 1979). A block with a NaN or Inf is left out whole."""
        rows = obs.shape[0]
        if rows == 0:
            return
        block_var, block_mean = torch.var_mean(obs.double(), dim=0, correction=0)
        total = self.count + rows
        delta = block_mean - self.mean
        mean = self.mean + delta * (rows / total)
        square_sum = self.var * self.count + block_var * rows + delta.square() * (self.count * rows / total)
        is_finite = (mean + square_sum).isfinite().all()
        self.mean.copy_(torch.where(is_finite, mean, self.mean))
        self.var.copy_(torch.where(is_finite, square_sum / total, self.var))
        self.count.copy_(torch.where(is_finite, total, self.count))
