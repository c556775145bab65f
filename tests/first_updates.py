"""The work that is counted in the first updates of a learner, on batches of zeros."""

from __future__ import annotations

import torch

from offpolicy.algos.learner import Learner
from offpolicy.algos.registry import make_learner
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.training.flops import Work, count_first_updates
from offpolicy.types import Batch, Batches, Rollouts, SpaceSpec

CPU = torch.device("cpu")


def batches_of(spec: SpaceSpec, rows: int, device: torch.device = CPU) -> Batches:
    """A batch of zeros for one update."""
    obs, column = torch.zeros(rows, spec.obs_dim, device=device), torch.zeros(rows, device=device)
    batch = Batch(obs, torch.zeros(rows, spec.action_dim, device=device), column, obs, column, column)
    return Batches((batch,), fresh_obs=None)


def work_of(learner: Learner, *batches: Batches | Rollouts) -> Work:
    """What is counted in the updates of these batches, which must be just enough."""
    found: list[Work] = []
    count_first_updates(learner, found.append)
    for batch in batches:
        assert not found
        learner.update(batch)
    (work,) = found
    return work


def work_of_algo(algo: AlgoConfig, spec: SpaceSpec, device: torch.device = CPU) -> Work:
    """Of an algorithm that learns from a replay."""
    learner = make_learner(algo, spec, device, seed=0)
    return work_of(learner, *[batches_of(spec, algo.batch_size, device)] * algo.policy_delay)
