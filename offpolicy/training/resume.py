"""Resuming: what a learner process takes from a checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor

from offpolicy.checkpoint import Checkpoint


def learner_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Returns the saved learner's tensors by flat name, as copies."""
    return {name: torch.from_numpy(array.copy()) for name, array in checkpoint.tensors("learner").items()}
