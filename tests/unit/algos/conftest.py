"""Small learners and synthetic batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from offpolicy.algos.learner import Learner
from offpolicy.algos.registry import make_learner
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.policy import Policy
from offpolicy.types import Batch, Rollouts, SpaceSpec

SPEC = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))


LearnerOf = Callable[..., Learner]
RolloutsOf = Callable[..., Rollouts]


def metrics(learner: Learner) -> dict[str, float]:
    """The means so far."""
    totals = learner.read_metrics()
    return dict(zip(totals.names, (totals.sums / totals.counts).tolist(), strict=True))


def assert_equal(left: Learner, right: Learner) -> None:
    """The same state, bit for bit."""
    ours, theirs = left.state(), right.state()
    assert ours.numbers == theirs.numbers
    assert [name for name in ours.tensors if not torch.equal(ours.tensors[name], theirs.tensors[name])] == []


def random_batch(seed: int, rows: int = 8) -> Batch:
    """Random rows of SPEC, none terminated."""
    generator = torch.Generator().manual_seed(seed)
    obs, action, reward, next_obs = (torch.randn((rows, n), generator=generator) for n in (3, 2, 1, 3))
    return Batch(obs, action.clamp(-1.0, 1.0), reward[:, 0], next_obs, torch.zeros(rows), torch.full((rows,), 0.99))


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

    return lambda seed=0, rows=8, **fields: random_batch(seed, rows)._replace(**fields)


@pytest.fixture
def rollouts_of() -> Callable[..., Rollouts]:
    """`rollouts_of(policy, seed=0, steps=8, envs=4, spec=SPEC, **fields)`: random observations, acted on by `policy`.

    Environment 0 is truncated at step 2 and environment 1 terminated at step 4, each followed by an autoreset row: all
    but 2 rows are transitions. Fields replace tensors.
    """

    def make(
        policy: Policy, seed: int = 0, steps: int = 8, envs: int = 4, spec: SpaceSpec = SPEC, **fields: Tensor | float
    ) -> Rollouts:
        generator = torch.Generator().manual_seed(seed)
        obs = 5.0 + 3.0 * torch.randn((steps + 1, envs, spec.obs_dim), generator=generator)
        choices = [policy.sample(obs[t], generator) for t in range(steps)]
        is_valid, terminated, truncated = torch.ones(steps, envs), torch.zeros(steps, envs), torch.zeros(steps, envs)
        truncated[2, 0] = terminated[4, 1] = 1.0
        is_valid[3, 0] = is_valid[5, 1] = 0.0
        rollouts = Rollouts(
            obs=obs, action=torch.stack([action for action, _ in choices]),
            log_prob=torch.stack([log_prob for _, log_prob in choices if log_prob is not None]),
            reward=torch.randn((steps, envs), generator=generator) * is_valid, terminated=terminated,
            truncated=truncated, is_valid=is_valid, progress=0.5,
        )  # fmt: skip
        return rollouts._replace(**fields)

    return make
