"""The activations of fused perceptrons, in place: after a product with its biases, and backwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_aten = torch.ops.aten
_ADD_RELU: Any = getattr(torch, "_add_relu_", None)  # Any: torch declares no type; private, so a torch may be without


WHOLE_VECTORS = 32  # numbers: two of AVX-512


class Activation(NamedTuple):
    """An activation whose derivative is a function of its result; all work in place."""

    apply: Callable[[Tensor], Tensor]
    add_and_apply: Callable[[Tensor, Tensor], Tensor]  # products [C, B, out] and biases [C, 1, out] to activations
    differentiate: Callable[[Tensor, Tensor], Tensor]  # gradient of the result, and the result, to that of the input


def add_relu(products: Tensor, bias: Tensor) -> Tensor:
    """Returns max(products + bias, 0) in place, by one pass over the memory. [C, B, out], [C, 1, out].

    Infinity becomes the greatest finite number. What that reaches overflows in a loss or a norm, but behind a tanh or a
    minimum of critics it may reach none; parameters, which a guard keeps finite, make none of finite observations. What
    the kernel does for less than whole vectors of a processor makes 0 of NaN: rows that end in less get two passes.
    """
    if _ADD_RELU is None or products.shape[-1] % WHOLE_VECTORS or torch.compiler.is_compiling():
        return products.add_(bias).relu_()
    result: Tensor = _ADD_RELU(products, bias)
    return result


RELU = Activation(torch.relu_, add_relu, lambda d, h: _aten.threshold_backward.grad_input(d, h, 0, grad_input=d))
TANH = Activation(
    torch.tanh_,
    lambda products, bias: products.add_(bias).tanh_(),
    lambda d, h: _aten.tanh_backward.grad_input(d, h, grad_input=d),
)
ELU = Activation(
    nn.functional.elu_,
    lambda products, bias: nn.functional.elu_(products.add_(bias)),
    lambda d, h: _aten.elu_backward.grad_input(d, 1.0, 1.0, 1.0, True, h, grad_input=d),
)
FUSED_ACTIVATIONS: Mapping[type[nn.Module], Activation] = {nn.ReLU: RELU, nn.Tanh: TANH, nn.ELU: ELU}
