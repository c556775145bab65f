"""Shuffled equal parts of a batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def minibatches(num_rows: int, num_parts: int, generator: torch.Generator) -> Iterator[Tensor]:
    """A new order of all rows, in `num_parts` equal parts, on the generator's device. Each [num_rows / num_parts]."""
    yield from torch.randperm(num_rows, generator=generator, device=generator.device).chunk(num_parts)
