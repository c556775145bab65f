"""Small learners and synthetic batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from offpolicy.algos.build import make_learner
from offpolicy.algos.learner import Learner
from offpolicy.config import AlgoConfig
from offpolicy.types import Batch, SpaceSpec

SPEC = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))


@pytest.fixture
def learner_of() -> Callable[..., Learner]:
    """`learner_of(name, seed=1, spec=SPEC, **algo)`: a learner with one hidden layer of 16."""

    def make(name: str, seed: int = 1, spec: SpaceSpec = SPEC, **algo: Any) -> Learner:
        config = AlgoConfig(**{"name": name, "hidden_dims": (16,), **algo})
        return make_learner(config, spec, torch.device("cpu"), seed)

    return make


@pytest.fixture
def batch_of() -> Callable[..., Batch]:
    """`batch_of(seed, rows=8, **fields)`: random rows of SPEC, none terminated; fields replace tensors."""

    def make(seed: int = 0, rows: int = 8, **fields: Tensor) -> Batch:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        batch = Batch(
            obs=normal(rows, SPEC.obs_dim),
            action=normal(rows, SPEC.action_dim).clamp(-1.0, 1.0),
            reward=normal(rows),
            next_obs=normal(rows, SPEC.obs_dim),
            terminated=torch.zeros(rows),
            discount=torch.full((rows,), 0.99),
        )
        return batch._replace(**fields)

    return make
