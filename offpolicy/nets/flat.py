"""Parameters of a network in one block of memory: one kernel steps, averages or publishes all of them.

Every tensor of a block begins at a multiple of 16 bytes, which CUDA's products want; the gaps hold zeros and stay so.
Names and shapes of the parameters do not change: each becomes a view of the block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

ALIGNMENT = 4  # numbers of float32 per 16 bytes


def offsets(shapes: Sequence[torch.Size]) -> list[int]:
    """Returns where each tensor begins in the block, then the size of the block. [n] -> [n + 1]."""
    starts, end = list[int](), 0
    for shape in shapes:
        starts.append(-(-end // ALIGNMENT) * ALIGNMENT)
        end = starts[-1] + math.prod(shape)
    return [*starts, end]


def views(block: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
    """Returns the tensors of the block [P], which share its memory."""
    starts = offsets(shapes)[:-1]
    return tuple(block[start : start + shape.numel()].view(shape) for start, shape in zip(starts, shapes, strict=True))


def joined(parameters: Sequence[nn.Parameter]) -> Tensor | None:
    """Returns the block [P] in which the parameters lie, at the `offsets` of their shapes; None if they do not."""
    first = parameters[0].detach()
    *starts, size = offsets([parameter.shape for parameter in parameters])
    storage = first.untyped_storage().data_ptr()
    for parameter, start in zip(parameters, starts, strict=True):
        own = parameter.detach()
        if own.untyped_storage().data_ptr() != storage or own.storage_offset() != first.storage_offset() + start:
            return None
    return first.as_strided((size,), (1,), first.storage_offset())


@torch.no_grad()
def join(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Moves the parameters into one block [P], in this order; returns it. Leaves them where they are if they are there.

    What refers to their memory must be made afterwards.
    """
    block = joined(parameters)
    if block is None:
        shapes = [parameter.shape for parameter in parameters]
        block = parameters[0].new_zeros(offsets(shapes)[-1])
        for parameter, view in zip(parameters, views(block, shapes), strict=True):
            view.copy_(parameter)
            parameter.data = view
    return block
