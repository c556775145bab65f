"""The encoder itself."""

import torch
from torch import nn


class FourierEncoder(nn.Module):
    """Sines and cosines of learned projections, and the observation itself: [..., O] -> [..., F + O]."""

    def __init__(self, options, obs_dim):
        super().__init__()
        self.projection = nn.Linear(obs_dim, options.num_features // 2)
        nn.init.normal_(self.projection.weight, std=options.scale)
        self.out_dim = 2 * (options.num_features // 2) + obs_dim

    def forward(self, obs):
        angle = torch.pi * self.projection(obs)
        return torch.cat((angle.sin(), angle.cos(), obs), dim=-1)
