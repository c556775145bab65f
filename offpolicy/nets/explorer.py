"""Exploratory actions without modules and autograd, straight from the flat block of weights.

For few rows most of torch's time is the overhead of its calls. SAC's action of one HalfCheetah observation takes 50 us
in torch's modules and 17 us in numpy, of 4 rows 62 and 23 (two hidden layers of 256, one thread of an AMD EPYC,
medians). For more rows torch multiplies, into memory that stays, and numpy does the rest: of 16 rows 397 us in modules
and 218 here, of 64 rows 582 and 348, repeated with other data in the caches (an Intel Xeon, medians).

OpenBLAS has a kernel for small products, on one thread; products beyond `MAX_PRODUCT` have neither: they are slower
than torch's (5 to 8 rows of 256, 2 of 512: up to three times) and take threads that `threads.collector` does not grant.
With the other cores in use an action of 8 rows took 8 ms. The noise comes from torch's generator: the same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from offpolicy.nets.actors import LOG_STD_MAX, LOG_STD_MIN, DeterministicActor, SquashedGaussianActor
from offpolicy.nets.fused import linears_of
from offpolicy.nets.mlp import Mlp
from offpolicy.nets.normalizer import EPS, OBS_CLIP
from offpolicy.nets.policy import Policy
from offpolicy.types import Float32

MAX_ROWS = 8  # for more rows torch multiplies faster
MAX_PRODUCT = 256 * 256 * 4  # rows x inputs x outputs of a layer, the largest product of OpenBLAS on one thread
NUMPY_ACTIVATIONS: Mapping[type[nn.Module], Callable[[Float32], object]] = {  # in place
    nn.ReLU: lambda h: np.maximum(h, 0.0, out=h),
    nn.Tanh: lambda h: np.tanh(h, out=h),
}


class Explorer:
    """Explores as `policy.sample` does, for `num_rows` observations, with the policy's parameters where they lie."""

    def __init__(self, policy: Policy, num_rows: int, action_dim: int) -> None:
        assert isinstance(policy.actor, SquashedGaussianActor | DeterministicActor)  # as `can_explore` says
        self._actor, self._normalizer = policy.actor, policy.normalizer
        layers = linears_of(policy.actor.body)
        self._weights = [(layer.weight.detach().T, layer.bias.detach()) for layer in layers]
        self._memory = [torch.empty(num_rows, layer.out_features) for layer in layers]
        self._arrays = [(weight_t.numpy(), bias.numpy()) for weight_t, bias in self._weights]
        self._array_memory: list[Float32] = [memory.numpy() for memory in self._memory]
        self._activation = policy.actor.body[1]
        self._is_small = multiplies_in_numpy(policy.actor.body, num_rows)
        self._noise = torch.empty(num_rows, action_dim)
        self._unit_noise: Float32 = self._noise.numpy()

    def explore(self, obs: Float32, generator: torch.Generator) -> Float32:
        """Returns exploratory actions. [N, O] -> [N, A] in [-1, 1], in fresh memory.

        Those of an observation with NaN or Inf are NaN, as in torch, without a warning: who steps the environments
        looks for such rows.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            return self._explore(obs, generator)

    def _explore(self, obs: Float32, generator: torch.Generator) -> Float32:
        inputs = self._normalized(obs)
        output = self._evaluate_in_numpy(inputs) if self._is_small else self._evaluate_in_torch(inputs)
        self._noise.normal_(generator=generator)
        if isinstance(self._actor, DeterministicActor):
            noisy: Float32 = np.tanh(output) + np.float32(self._actor.exploration_noise) * self._unit_noise
            return noisy.clip(-1.0, 1.0)
        mean, log_std = output[:, : self._noise.shape[1]], output[:, self._noise.shape[1] :]
        std = np.exp(np.minimum(np.maximum(log_std, LOG_STD_MIN), LOG_STD_MAX))
        action: Float32 = np.tanh(mean + std * self._unit_noise)
        return action

    def _normalized(self, obs: Float32) -> Float32:
        """As `ObsNormalizer.forward`, to float rounding: numpy has no rsqrt."""
        if self._normalizer is None:
            return obs
        mean, var = (moment.numpy().astype(np.float32) for moment in (self._normalizer.mean, self._normalizer.var))
        scale = np.float32(1.0) / np.sqrt(var + np.float32(EPS))
        scaled: Float32 = ((obs - mean) * scale).astype(np.float32, copy=False)
        return scaled.clip(-OBS_CLIP, OBS_CLIP)

    def _evaluate_in_numpy(self, inputs: Float32) -> Float32:
        activate, below = NUMPY_ACTIVATIONS[type(self._activation)], inputs
        for (weight_t, bias), memory in zip(self._arrays, self._array_memory, strict=True):
            if below is not inputs:
                activate(below)
            np.matmul(below, weight_t, out=memory)
            np.add(memory, bias, out=memory)
            below = memory
        return below

    @torch.inference_mode()
    def _evaluate_in_torch(self, inputs: Float32) -> Float32:
        below = first = torch.from_numpy(inputs)
        for (weight_t, bias), memory in zip(self._weights, self._memory, strict=True):
            if below is not first:
                below = self._activation(below)
            torch.addmm(bias, below, weight_t, out=memory)
            below = memory
        return self._array_memory[-1]


def can_explore(policy: Policy) -> bool:
    """True where `Explorer` knows the policy's actor: linear layers with activations between them."""
    if not isinstance(policy.actor, SquashedGaussianActor | DeterministicActor):
        return False
    body = policy.actor.body
    return isinstance(body, Mlp) and len(body) == 2 * len(linears_of(body)) - 1  # no layer norm


def multiplies_in_numpy(body: nn.Sequential, num_rows: int) -> bool:
    """True where numpy's products of so many rows are faster than torch's and take no thread but their own."""
    largest = max(layer.weight.numel() for layer in linears_of(body))
    is_small = num_rows <= MAX_ROWS and num_rows * largest <= MAX_PRODUCT
    return is_small and type(body[1]) in NUMPY_ACTIVATIONS
