"""A policy in the environment's own terms: parts of the observation in, actions as the environment takes them out.

The normaliser, the squashing and the scaling to the environment's bounds are inside, so whoever runs the file needs no
other number than what the sensors say.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from offpolicy.envs.spaces import Codec
from offpolicy.nets.actor_critic import GroupActor, StochasticActor
from offpolicy.nets.actors import SoftmaxActor
from offpolicy.nets.hora import StudentActor, TeacherActor
from offpolicy.nets.policy import Policy
from offpolicy.types import HISTORY, OBS, PRIVILEGED

BATCH = "batch"  # name of the first dimension, whose size is free
ACTION, PROBABILITY = "action", "probability"  # names of the outputs
# The actors that may be of discrete actions; those of APPO and HORA are of continuous ones too.
DiscreteActor = SoftmaxActor | StochasticActor


class Part(NamedTuple):
    """One part of the observation."""

    name: str  # `obs` of a Box, the key of a Dict, nested ones joined by `/`
    shape: tuple[int, ...]
    size: int  # numbers of it
    start: int  # where they begin in the flattened observation


class EnvPolicy(nn.Module):
    """The deterministic policy of a run as one function of the parts of the observation that it reads.

    Inputs: float32 [batch, shape of the part] each. Outputs: `action` [batch, shape of the action] in the environment's
    units and dtype, discrete ones in int64; of these also `probability` [batch, K] float32, over the actions of each
    choice.
    """

    action_low: Tensor  # [A]
    action_high: Tensor  # [A]
    action_middle: Tensor  # [A] float64
    action_half_range: Tensor  # [A] float64

    def __init__(self, policy: Policy, codec: Codec) -> None:
        super().__init__()
        self._policy, self._obs_dim = policy, codec.spec.obs_dim
        self._choices, self._action_shape = codec.spec.choices, codec.action_shape
        self.parts = parts_read(policy, codec)
        self.unread = tuple(part.name for part in _parts(codec) if part not in self.parts)
        dtype: torch.dtype = torch.int64 if self._choices else getattr(torch, codec.action_dtype)
        low = torch.tensor(codec.spec.action_low, dtype=torch.float64)
        high = torch.tensor(codec.spec.action_high, dtype=torch.float64)
        self.register_buffer("action_low", low.to(dtype))
        self.register_buffer("action_high", high.to(dtype))
        self.register_buffer("action_middle", (high + low) / 2.0)
        self.register_buffer("action_half_range", (high - low) / 2.0)
        self.requires_grad_(False).eval()

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs, in order."""
        return [part.name for part in self.parts]

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs, in order."""
        return [ACTION, PROBABILITY] if self._choices else [ACTION]

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Returns inputs of so many rows, all zeros."""
        return tuple(torch.zeros(rows, *part.shape) for part in self.parts)

    def forward(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Returns the outputs for the inputs. [batch, shape], ... -> [batch, shape], perhaps [batch, K]."""
        obs = self._policy.normalize(self._whole(parts))
        return self._chosen(obs) if self._choices else (self._scaled(self._policy.actor.act(obs)),)

    def _whole(self, parts: tuple[Tensor, ...]) -> Tensor:
        """Returns the flattened observation [batch, O]; parts that the actor does not read are 0 there."""
        rows, columns, reached = parts[0].shape[0], list[Tensor](), 0
        for part, value in zip(self.parts, parts, strict=True):
            if part.start > reached:
                columns.append(value.new_zeros(rows, part.start - reached))
            columns.append(value.reshape(rows, part.size))
            reached = part.start + part.size
        if reached < self._obs_dim:
            columns.append(parts[0].new_zeros(rows, self._obs_dim - reached))
        return torch.cat(columns, dim=1) if len(columns) > 1 else columns[0]

    def _scaled(self, action: Tensor) -> Tensor:
        """Returns actions [batch, A] of [-1, 1] in the environment's bounds, as `action_map` does."""
        scaled = (action.double() * self.action_half_range + self.action_middle).to(self.action_low.dtype)
        bounded = torch.minimum(torch.maximum(scaled, self.action_low), self.action_high)
        return bounded.reshape(-1, *self._action_shape)

    def _chosen(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the likeliest actions [batch, shape] and the probabilities of all [batch, K]."""
        actor = self._policy.actor
        assert isinstance(actor, DiscreteActor)
        log_probs = actor.distribution(obs)[0]
        choices = torch.split(log_probs, list(self._choices), dim=-1)
        number = torch.stack([choice.argmax(dim=-1) for choice in choices], dim=-1)
        return (number + self.action_low).reshape(-1, *self._action_shape), log_probs.exp()


def parts_read(policy: Policy, codec: Codec) -> tuple[Part, ...]:
    """Returns the parts of the observation that the actor reads, in the environment's order."""
    names = names_read(policy)
    return tuple(part for part in _parts(codec) if names is None or part.name in names)


def names_read(policy: Policy) -> tuple[str, ...] | None:
    """Returns the names of the parts of the observation that the actor reads; None: all."""
    actor = policy.actor
    if isinstance(actor, GroupActor):
        return (actor.group,)
    if isinstance(actor, TeacherActor | StudentActor):
        return (OBS, PRIVILEGED if isinstance(actor, TeacherActor) else HISTORY)
    return None


def _parts(codec: Codec) -> tuple[Part, ...]:
    return tuple(Part(leaf.name or OBS, leaf.shape, leaf.stop - leaf.start, leaf.start) for leaf in codec.leaves)
