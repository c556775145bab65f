"""Numbers as tensors that are made once, and means by them, for what SAC and TD3 do in every update.

A Python number in an operation becomes a tensor of float64, which is converted: that takes as long as a small
operation. `torch.mean` is a sum, a conversion and a division; a product with a constant is one operation.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def constant(value: float, like: Tensor) -> Tensor:
    """Returns the number [] in the dtype of `like`, on its device. Shared: not to be written."""
    return _filled(value, (), like.dtype, like.device)


def mean(values: Tensor, factor: float = 1.0) -> Tensor:
    """Returns the mean of all elements, of any shape, times a factor. -> []."""
    size = values.numel()
    return torch.dot(values.flatten(), _filled(factor / size, (size,), values.dtype, values.device))


@functools.lru_cache(maxsize=64)
def _filled(value: float, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # one made in it could not be part of a graph of autograd
        return torch.full(shape, value, dtype=dtype, device=device)
