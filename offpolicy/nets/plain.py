"""Perceptrons without fused kernels, differentiated by autograd, behind the calls of a `FusedMlp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn


class Differentiable(Protocol):
    """C networks on one input that are differentiated from their outputs, without a loss: `FusedMlp` and `PlainMlp`.

    Of shapes, I is the width of the input, I_k of its parts, O of the output.
    """

    def evaluate(self, *parts: Tensor) -> Tensor:
        """Returns the outputs, and keeps what a pull-back needs. [B, I_1], ... -> [C, B, O]."""
        ...

    def evaluate_after(self, before: Tensor, inputs: Tensor) -> Tensor:
        """As `evaluate`, of rows [N, I] that are not differentiated and then of others [B, I]. -> [C, N + B, O]."""
        ...

    def pull_back(self, d_output: Tensor) -> None:
        """Writes the gradients of the parameters from that of the outputs of the last `evaluate`. [C, B, O]."""
        ...

    def pull_back_to_input(self, d_output: Tensor, start: int) -> Tensor:
        """Returns the gradient [B, I - start] of the inputs from column `start` on; leaves the parameters' alone."""
        ...


class PlainMlp:
    """`Differentiable` for any modules."""

    def __init__(self, nets: Sequence[nn.Module], gradients: Mapping[Tensor, Tensor]) -> None:
        """`gradients` is the memory for the gradient of every parameter."""
        self._nets, self._gradients = nets, gradients
        self._parameters = tuple(parameter for net in nets for parameter in net.parameters())

    def __deepcopy__(self, memo: object) -> None:
        """A copy of a network has parameters of its own, which this object does not know."""

    def evaluate(self, *parts: Tensor) -> Tensor:
        """See `Differentiable`."""
        with torch.enable_grad():
            self._inputs = torch.cat([part.detach().requires_grad_() for part in parts], dim=1)
            self._output = self._outputs(self._inputs)
        return self._output.detach()

    def evaluate_after(self, before: Tensor, inputs: Tensor) -> Tensor:
        """See `Differentiable`."""
        output = self.evaluate(inputs)
        with torch.no_grad():
            return torch.cat((self._outputs(before), output), dim=1)

    def _outputs(self, inputs: Tensor) -> Tensor:
        """[B, I] -> [C, B, O]."""
        return torch.stack([net(inputs) for net in self._nets])

    def pull_back(self, d_output: Tensor) -> None:
        """See `Differentiable`. Copies: autograd promises no strides."""
        gradients = torch.autograd.grad(self._output, self._parameters, d_output)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            self._gradients[parameter].copy_(gradient)

    def pull_back_to_input(self, d_output: Tensor, start: int) -> Tensor:
        """See `Differentiable`."""
        return torch.autograd.grad(self._output, self._inputs, d_output)[0][:, start:]
