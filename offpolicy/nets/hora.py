"""HORA's networks: rapid motor adaptation for in-hand rotation (arXiv:2210.04887), after RMA (arXiv:2107.04034).

A teacher encodes what only a simulation knows as a latent and acts on the observation and the latent. A student infers
the latent from the history of its joints, and acts with the teacher's trunk. Both get the whole observation, of `obs`
[O], `privileged` [P] and `proprio_hist` [F, D], and take the groups that they need from it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.actor_critic import StochasticActor, TrunkActor, trunk_actor
from offpolicy.nets.actors import Explored
from offpolicy.nets.mlp import mlp
from offpolicy.types import HISTORY, OBS, PRIVILEGED, SpaceSpec

ENCODER_ACTIVATION = "elu"
CHANNELS = 32
CONVOLUTIONS = ((9, 2), (5, 1), (5, 1))  # kernel and stride over time, HORA (arXiv:2210.04887), section 3.2


class PrivilegedEncoder(nn.Module):
    """e = tanh(MLP(privileged)). [..., P] -> [..., L]."""

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec) -> None:
        super().__init__()
        self.columns = spec.columns(PRIVILEGED)
        privileged_dim = self.columns.stop - self.columns.start
        self.body = mlp(privileged_dim, algo.encoder_dims, algo.latent_dim, ENCODER_ACTIVATION)

    def forward(self, obs: Tensor) -> Tensor:
        """Returns the latent of whole observations. [..., all] -> [..., L] in [-1, 1]."""
        latent: Tensor = self.body(obs[..., self.columns]).float()
        return latent.tanh()


class AdaptationModule(nn.Module):
    """Infers the latent from the history: two layers per frame, three convolutions over time, a head, tanh.

    Of 30 frames the stride leaves out one: here the oldest, the least informative; in HORA's code the newest.
    """

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec) -> None:
        super().__init__()
        self.columns, self._frames = spec.columns(HISTORY), spec.shape_of(HISTORY)
        num_frames, frame_dim = self._frames
        kernel, stride = CONVOLUTIONS[0]
        self._num_unread = (num_frames - kernel) % stride
        self.per_frame = nn.Sequential(
            nn.Linear(frame_dim, CHANNELS), nn.ReLU(inplace=True), nn.Linear(CHANNELS, CHANNELS), nn.ReLU(inplace=True)
        )
        convolutions = [(nn.Conv1d(CHANNELS, CHANNELS, k, s), nn.ReLU(inplace=True)) for k, s in CONVOLUTIONS]
        self.over_time = nn.Sequential(*(layer for pair in convolutions for layer in pair))
        for kernel, stride in CONVOLUTIONS:  # 30 frames become 11, 7, 3
            num_frames = (num_frames - kernel) // stride + 1
        self.head = nn.Linear(CHANNELS * num_frames, algo.latent_dim)

    def forward(self, obs: Tensor) -> Tensor:
        """Returns the latent inferred from whole observations. [B, all] -> [B, L] in [-1, 1]."""
        return self.infer(obs[..., self.columns])

    def infer(self, history: Tensor) -> Tensor:
        """Returns the latent inferred from histories. [B, F D] -> [B, L]."""
        read = history.reshape(-1, *self._frames)[:, self._num_unread :]
        frames: Tensor = self.per_frame(read)  # [B, F, channels]
        features: Tensor = self.over_time(frames.transpose(1, 2))  # [B, channels, frames left]
        latent: Tensor = self.head(features.flatten(1))
        return latent.tanh()


class TeacherActor(TrunkActor):
    """Stage 1: a policy of (obs, latent of privileged); encoder and trunk are trained together."""

    parts_read = (OBS, PRIVILEGED)

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec) -> None:
        super().__init__()
        self.encoder = PrivilegedEncoder(algo, spec)
        self.trunk, self._obs = _trunk(algo, spec), spec.columns(OBS)

    def trunk_input(self, obs: Tensor) -> Tensor:
        """[..., all] -> [..., O + L]."""
        return torch.cat((obs[..., self._obs], self.encoder(obs)), dim=-1)


class StudentActor(TrunkActor):
    """Stage 2: the teacher's trunk on (obs, inferred latent). It does not read `privileged`."""

    parts_read = (OBS, HISTORY)

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec) -> None:
        super().__init__()
        self.adaptation = AdaptationModule(algo, spec)
        self.trunk, self._obs = _trunk(algo, spec), spec.columns(OBS)

    def explore(self, obs: Tensor, generator: torch.Generator) -> Explored:
        """Returns the deterministic action too: the student learns on the states that it visits, as in DAgger."""
        action = self.act(obs)
        return action, action.new_zeros(action.shape[:-1])

    def trunk_input(self, obs: Tensor) -> Tensor:
        """[B, all] -> [B, O + L]."""
        return torch.cat((obs[..., self._obs], self.adaptation(obs)), dim=-1)


def _trunk(algo: AlgoConfig, spec: SpaceSpec) -> StochasticActor:
    columns = spec.columns(OBS)
    return trunk_actor(algo, spec, obs_dim=columns.stop - columns.start + algo.latent_dim)
