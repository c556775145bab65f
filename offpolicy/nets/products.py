"""The matrix products of float32 layers, of C networks side by side: by torch's BLAS, or on a CPU by oneDNN.

B is the number of rows. All operands are [C, ...] and `out` is kept memory, which is returned.
"""

from __future__ import annotations

import torch
from torch import Tensor

from offpolicy.onednn import ONEDNN, multiply

FEWEST_WEIGHTS = 128 * 128  # of a layer; with 256 rows two of fewer are as fast by the BLAS in one call


class Products:
    """The three products of a layer, forward and backward, by the BLAS.

    All networks are one call: two threads share it without waiting for each other.
    """

    def forward(self, bias: Tensor, below: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        """Biases and products. [C, 1, out], [C, B, in], [C, out, in] -> [C, B, out]."""
        return torch.baddbmm(bias, below, weight.mT, out=out)

    def to_inputs(self, above: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        """The gradient of the inputs from that of the products. [C, B, out], [C, out, in] -> [C, B, in]."""
        return torch.bmm(above, weight, out=out)

    def to_weights(self, above: Tensor, below: Tensor, out: Tensor) -> Tensor:
        """The gradient of the weights from that of the products. [C, B, out], [C, B, in] -> [C, out, in]."""
        return torch.bmm(above.mT, below, out=out)


class OneDnnProducts(Products):
    """As `Products`, by oneDNN, one network after the other.

    oneDNN writes into fresh memory; the copy takes 1/40 of the time of a product. torch.compile has no code for it and
    gets the BLAS.
    """

    def forward(self, bias: Tensor, below: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        """See `Products`."""
        if torch.compiler.is_compiling():
            return super().forward(bias, below, weight, out)
        for rows, matrix, offset, result in zip(below, weight, bias, out, strict=True):
            result.copy_(multiply(rows, matrix.t(), offset[0]))
        return out

    def to_inputs(self, above: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        """See `Products`."""
        if torch.compiler.is_compiling():
            return super().to_inputs(above, weight, out)
        for rows, matrix, result in zip(above, weight, out, strict=True):
            result.copy_(multiply(rows, matrix))
        return out

    def to_weights(self, above: Tensor, below: Tensor, out: Tensor) -> Tensor:
        """See `Products`."""
        if torch.compiler.is_compiling():
            return super().to_weights(above, below, out)
        for left, right, result in zip(above, below, out, strict=True):
            result.copy_(multiply(left.t(), right))
        return out


def products_of_layer(library: str, weight: Tensor) -> Products:
    """Returns what makes the products of a layer of weights [C, out, in], by the `library` that was chosen."""
    is_wide = weight.shape[1] * weight.shape[2] >= FEWEST_WEIGHTS
    is_supported = weight.device.type == "cpu" and weight.dtype == torch.float32
    return OneDnnProducts() if library == ONEDNN and is_wide and is_supported else Products()
