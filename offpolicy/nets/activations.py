"""The activations of fused perceptrons, in place: after a product with its biases, and backwards."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_aten = torch.ops.aten
_ADD_RELU: Any = getattr(torch, "_add_relu_", None)  # Any: torch declares no type; private, so a torch may be without
STRIDE = 32  # numbers that the kernel reads at once, at most: two vectors of AVX-512
GRAIN = 32768  # numbers of which a thread gets a share; at::internal::GRAIN_SIZE


class Activation(NamedTuple):
    """An activation whose derivative is a function of its result; all work in place."""

    apply: Callable[[Tensor], Tensor]
    add_and_apply: Callable[[Tensor, Tensor], Tensor]  # products [C, B, out] and biases [C, 1, out] to activations
    differentiate: Callable[[Tensor, Tensor], Tensor]  # gradient of the result, and the result, to that of the input


def add_relu(products: Tensor, bias: Tensor) -> Tensor:
    """Returns max(products + bias, 0) in place, by one pass over the memory. [C, B, out], [C, 1, out].

    NaN stays NaN. Infinity becomes the greatest finite number, which overflows again in a loss or a norm, but may stay
    finite behind a tanh or a minimum of critics: a guard trips later then. Finite observations and parameters, which a
    guard keeps finite, come nowhere near it.
    """
    if torch.compiler.is_compiling() or not _is_one_pass(products.numel(), bias.shape[-1], torch.get_num_threads()):
        return products.add_(bias).relu_()
    result: Tensor = _ADD_RELU(products, bias)
    return result


@functools.lru_cache(maxsize=256)
def _is_one_pass(size: int, width: int, num_threads: int) -> bool:
    """True if the kernel reads rows of `width` in whole strides: of numbers that are left over it makes 0 of NaN.

    Threads get equal shares of all numbers, so that one may begin within a row.
    """
    num_shares = min(num_threads, math.ceil(size / GRAIN))
    return _ADD_RELU is not None and width % STRIDE == 0 and size % (num_shares * STRIDE) == 0


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
