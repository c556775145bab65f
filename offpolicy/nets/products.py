"""The matrix products of float32 layers: by torch's BLAS, or on a CPU by oneDNN.

`Products` are those of C networks side by side: all operands are [C, ...] and `out` is kept memory, which is returned.
A `Linear` is a layer of one network that autograd differentiates. B is the number of rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from offpolicy.nets.activations import Activation
from offpolicy.onednn import ONEDNN, chosen_library, multiply

FEWEST_WEIGHTS = 128 * 128  # of a layer; with 256 rows two of fewer are as fast by the BLAS in one call


class Products:
    """The three products of a layer, forward and backward, by the BLAS.

    All networks are one call: two threads share it without waiting for each other.
    """

    def forward(self, bias: Tensor, below: Tensor, weight_t: Tensor, activation: Activation, out: Tensor) -> Tensor:
        """The activations of biases and products. [C, 1, out], [C, B, in], [C, in, out] -> [C, B, out]."""
        return activation.apply(torch.baddbmm(bias, below, weight_t, out=out))

    def to_inputs(self, above: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        """The gradient of the inputs from that of the products. [C, B, out], [C, out, in] -> [C, B, in]."""
        return torch.bmm(above, weight, out=out)

    def to_weights(self, above_t: Tensor, below: Tensor, out: Tensor) -> Tensor:
        """The gradient of the weights from that of the products. [C, out, B], [C, B, in] -> [C, out, in]."""
        return torch.bmm(above_t, below, out=out)


class CpuProducts(Products):
    """As `Products`, of a CPU, where a product that begins with its biases copies them row by row first."""

    def forward(self, bias: Tensor, below: Tensor, weight_t: Tensor, activation: Activation, out: Tensor) -> Tensor:
        """See `Products`. The biases are added last, in half the time of that copy."""
        return activation.add_and_apply(torch.bmm(below, weight_t, out=out), bias)


class OneDnnProducts(CpuProducts):
    """As `Products`, by oneDNN, one network after the other.

    oneDNN writes into fresh memory; the copy takes 1/40 of the time of a product. torch.compile has no code for it and
    gets the BLAS.
    """

    def forward(self, bias: Tensor, below: Tensor, weight_t: Tensor, activation: Activation, out: Tensor) -> Tensor:
        """See `Products`."""
        if torch.compiler.is_compiling():
            return super().forward(bias, below, weight_t, activation, out)
        for rows, matrix, offset, result in zip(below, weight_t, bias, out, strict=True):
            result.copy_(multiply(rows, matrix, offset[0]))
        return activation.apply(out)

    def to_inputs(self, above: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        """See `Products`."""
        if torch.compiler.is_compiling():
            return super().to_inputs(above, weight, out)
        for rows, matrix, result in zip(above, weight, out, strict=True):
            result.copy_(multiply(rows, matrix))
        return out

    def to_weights(self, above_t: Tensor, below: Tensor, out: Tensor) -> Tensor:
        """See `Products`."""
        if torch.compiler.is_compiling():
            return super().to_weights(above_t, below, out)
        for left, right, result in zip(above_t, below, out, strict=True):
            result.copy_(multiply(left, right))
        return out


def products_of_layer(library: str, weight: Tensor) -> Products:
    """Returns what makes the products of a layer of weights [C, out, in], by the `library` that was chosen."""
    if library == ONEDNN and _is_for_onednn(weight[0]):
        return OneDnnProducts()
    return CpuProducts() if weight.device.type == "cpu" else Products()


class Linear(nn.Linear):
    """[B, in] -> [B, out]. After `choose_products`, oneDNN makes its product and those of its gradients."""

    is_onednn = False

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # the name in torch
        """Returns the products with the biases, if any."""
        if not self.is_onednn or torch.compiler.is_compiling():  # which has no code for the operator
            return super().forward(input)
        output: Tensor = _OneDnnLinear.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return output


class _OneDnnLinear(torch.autograd.Function):
    """A linear layer in a graph of autograd."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # Any: torch's context
        ctx.save_for_backward(rows, weight)
        return multiply(rows, weight.t(), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore  # torch names none
        rows, weight = ctx.saved_tensors
        has_input, has_weight, has_bias = ctx.needs_input_grad
        return (
            multiply(d_output, weight) if has_input else None,
            multiply(d_output.t(), rows) if has_weight else None,
            d_output.sum(dim=0) if has_bias else None,
        )


def choose_products(choice: str, *networks: nn.Module) -> None:
    """Has `algo.products` choose what makes the products of every wide `Linear` in the networks."""
    library = chosen_library(choice)
    for network in networks:
        for module in network.modules():
            if isinstance(module, Linear):
                module.is_onednn = library == ONEDNN and _is_for_onednn(module.weight)


def _is_for_onednn(weight: Tensor) -> bool:
    """True for wide weights [out, in] of float32 on a CPU."""
    return weight.numel() >= FEWEST_WEIGHTS and weight.device.type == "cpu" and weight.dtype == torch.float32
