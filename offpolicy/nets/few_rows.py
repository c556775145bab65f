"""Actions for a few observations, in numpy, straight from the flat block of weights.

For a row or four, torch's time is the overhead of its calls: SAC's action of one HalfCheetah observation takes 50 us in
torch's modules and 17 us here, of 4 rows 62 and 23, of 16 rows 82 and 73; of 64 rows 162 and 160 (one thread of an AMD
EPYC, medians). The noise comes from torch's generator, as in torch: the same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from offpolicy.nets.actors import LOG_STD_MAX, LOG_STD_MIN, DeterministicActor, SquashedGaussianActor
from offpolicy.nets.fused import linears_of
from offpolicy.nets.normalizer import EPS, OBS_CLIP
from offpolicy.nets.policy import Policy
from offpolicy.types import Float32

MAX_ROWS = 8  # of more rows torch is as fast
ACTIVATIONS: Mapping[type[nn.Module], Callable[[Float32], object]] = {  # in place
    nn.ReLU: lambda h: np.maximum(h, 0.0, out=h),
    nn.Tanh: lambda h: np.tanh(h, out=h),
}


class FewRows:
    """Explores as `policy.sample` does, for `num_rows` observations, with the policy's parameters where they lie."""

    def __init__(self, policy: Policy, num_rows: int, action_dim: int) -> None:
        assert isinstance(policy.actor, SquashedGaussianActor | DeterministicActor)  # as `can_act` says
        self._actor, self._normalizer = policy.actor, policy.normalizer
        layers = linears_of(policy.actor.body)
        self._layers = [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in layers]
        self._activation = ACTIVATIONS[type(policy.actor.body[1])]
        self._memory = [np.empty((num_rows, layer.out_features), np.float32) for layer in layers]
        self._noise = torch.empty(num_rows, action_dim)
        self._unit_noise: Float32 = self._noise.numpy()

    def explore(self, obs: Float32, generator: torch.Generator) -> Float32:
        """Returns exploratory actions. [N, O] -> [N, A] in [-1, 1], in fresh memory."""
        output = self._evaluate(self._normalized(obs))
        self._noise.normal_(generator=generator)
        if isinstance(self._actor, DeterministicActor):
            noisy: Float32 = np.tanh(output) + np.float32(self._actor.exploration_noise) * self._unit_noise
            return noisy.clip(-1.0, 1.0)
        mean, log_std = output[:, : self._noise.shape[1]], output[:, self._noise.shape[1] :]
        std = np.exp(np.minimum(np.maximum(log_std, LOG_STD_MIN), LOG_STD_MAX))
        action: Float32 = np.tanh(mean + std * self._unit_noise)
        return action

    def _normalized(self, obs: Float32) -> Float32:
        """As `ObsNormalizer.forward`."""
        if self._normalizer is None:
            return obs
        mean, var = (moment.numpy().astype(np.float32) for moment in (self._normalizer.mean, self._normalizer.var))
        scaled: Float32 = ((obs - mean) / np.sqrt(var + np.float32(EPS))).astype(np.float32, copy=False)
        return scaled.clip(-OBS_CLIP, OBS_CLIP)

    def _evaluate(self, inputs: Float32) -> Float32:
        below = inputs
        for (weight_t, bias), memory in zip(self._layers, self._memory, strict=True):
            if memory is not self._memory[0]:
                self._activation(below)
            np.matmul(below, weight_t, out=memory)
            np.add(memory, bias, out=memory)
            below = memory
        return below


def can_act(policy: Policy, num_rows: int) -> bool:
    """True where `FewRows` knows the policy's actor and is faster than torch."""
    actor = policy.actor
    is_known = isinstance(actor, SquashedGaussianActor | DeterministicActor) and type(actor.body[1]) in ACTIVATIONS
    return is_known and num_rows <= MAX_ROWS
