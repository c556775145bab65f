"""A policy in the environment's own terms: parts of the observation in, actions as the environment takes them out.

The normaliser, the squashing and the scaling to the environment's bounds are inside, so whoever runs the file needs no
other number than what the sensors say.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from offpolicy.envs.spaces import Codec, Leaf
from offpolicy.nets.actor_critic import StochasticActor
from offpolicy.nets.actors import SoftmaxActor
from offpolicy.nets.policy import Policy
from offpolicy.types import OBS

BATCH = "batch"  # name of the first dimension, whose size is free
ACTION, PROBABILITY = "action", "probability"  # names of the outputs
# The actors that may be of discrete actions; those of APPO and HORA are of continuous ones too.
DiscreteActor = SoftmaxActor | StochasticActor


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
        self._policy, self._leaves = policy, codec.leaves
        self._choices, self._action_shape = codec.spec.choices, codec.action_shape
        read = policy.actor.parts_read
        self.parts = tuple(leaf for leaf in codec.leaves if read is None or name_of(leaf) in read)
        self.input_names = [name_of(part) for part in self.parts]
        self.output_names = [ACTION, PROBABILITY] if self._choices else [ACTION]
        dtype: torch.dtype = torch.int64 if self._choices else getattr(torch, codec.action_dtype)
        low = torch.tensor(codec.spec.action_low, dtype=torch.float64)
        high = torch.tensor(codec.spec.action_high, dtype=torch.float64)
        self.register_buffer("action_low", low.to(dtype))
        self.register_buffer("action_high", high.to(dtype))
        self.register_buffer("action_middle", (high + low) / 2.0)
        self.register_buffer("action_half_range", (high - low) / 2.0)
        self.requires_grad_(False).eval()

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Returns inputs of so many rows, all zeros."""
        return tuple(torch.zeros(rows, *part.shape) for part in self.parts)

    def forward(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Returns the outputs for the inputs. [batch, shape], ... -> [batch, shape], perhaps [batch, K]."""
        rows, given = parts[0].shape[0], dict(zip(self.input_names, parts, strict=True))
        columns = [
            given[name].reshape(rows, leaf.stop - leaf.start)
            if (name := name_of(leaf)) in given
            else parts[0].new_zeros(rows, leaf.stop - leaf.start)  # a part that the actor does not read
            for leaf in self._leaves
        ]
        obs, actor = self._policy.normalize(torch.cat(columns, dim=1)), self._policy.actor  # [batch, O]
        if not self._choices:  # scaled to the environment's bounds, as `action_map` does
            scaled = actor.act(obs).double() * self.action_half_range + self.action_middle
            bounded = torch.minimum(torch.maximum(scaled.to(self.action_low.dtype), self.action_low), self.action_high)
            return (bounded.reshape(-1, *self._action_shape),)
        assert isinstance(actor, DiscreteActor)
        log_probs = actor.distribution(obs)[0]
        choices = torch.split(log_probs, list(self._choices), dim=-1)
        number = torch.stack([choice.argmax(dim=-1) for choice in choices], dim=-1)
        return (number + self.action_low).reshape(-1, *self._action_shape), log_probs.exp()


def name_of(leaf: Leaf) -> str:
    """Returns the name of an input: `obs` of a Box, the key of a Dict, nested ones joined by `/`."""
    return leaf.name or OBS
