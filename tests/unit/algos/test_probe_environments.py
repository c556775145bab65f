"""Learning on environments whose answer is known: the ladder of andyljones.com/posts/rl-debugging, as batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from offpolicy.algos.learner import Learner
from offpolicy.types import Batch, Batches, SpaceSpec

LearnerOf = Callable[..., Learner]
SPEC = SpaceSpec(obs_dim=1, action_dim=1, action_low=(-1.0,), action_high=(1.0,))
# One fixed, tiny temperature: the entropy bonus must not show in the values.
FAST = {"auto_alpha": False, "init_alpha": 1e-3, "actor_lr": 3e-3, "critic_lr": 3e-3, "tau": 0.05}

both = pytest.mark.parametrize("name", ["sac", "td3"])


def probe_learner(learner_of: LearnerOf, name: str) -> Learner:
    return learner_of(name, spec=SPEC, hidden_dims=(32, 32), policy_delay=2 if name == "td3" else 1, **FAST)


def rows(
    obs: Tensor, reward: Tensor, action: Tensor, *, next_obs: Tensor | None = None, discount: float = 0.9
) -> Batch:
    """Rows of one observation and one action dimension; terminal unless next_obs is given."""
    return Batch(
        obs=obs.unsqueeze(-1), action=action.unsqueeze(-1), reward=reward,
        next_obs=(obs if next_obs is None else next_obs).unsqueeze(-1),
        terminated=torch.full_like(obs, float(next_obs is None)), discount=torch.full_like(obs, discount),
    )  # fmt: skip


def uniform(seed: int) -> Tensor:
    """Actions [64] of a random policy."""
    return 2.0 * torch.rand(64, generator=torch.Generator().manual_seed(seed)) - 1.0


def learn(learner: Learner, batch_at: Callable[[int], Batch], num_updates: int) -> None:
    for seed in range(num_updates):
        learner.update(Batches((batch_at(seed),), None))


def value(learner: Learner, batch: Batch) -> float:
    """The mean of both critics on a batch."""
    before = learner.read_metrics()
    learner.update(Batches((batch,), None))
    i = before.names.index("q_mean")
    return float(learner.read_metrics().sums[i] - before.sums[i])


ZEROS, ONES = torch.zeros(64), torch.ones(64)
SIGNS = torch.tensor([-1.0, 1.0] * 32)


@both
def test_a_reward_one_step_later_is_discounted_once(name: str, learner_of: LearnerOf) -> None:
    def batch_at(seed: int) -> Batch:
        first, second = rows(-ONES, ZEROS, uniform(seed), next_obs=ONES), rows(ONES, ONES, uniform(seed))
        return Batch(*(torch.cat(pair) for pair in zip(first, second, strict=True)))

    learner = probe_learner(learner_of, name)
    learn(learner, batch_at, 500)
    assert value(learner, rows(-ONES, ZEROS, uniform(-1), next_obs=ONES)) == pytest.approx(0.9, abs=0.03)


@both
def test_a_reward_that_never_ends_has_the_value_of_the_geometric_series(name: str, learner_of: LearnerOf) -> None:
    learner = probe_learner(learner_of, name)
    learn(learner, lambda seed: rows(ZEROS, ONES, uniform(seed), next_obs=ZEROS, discount=0.8), 800)
    batch = rows(ZEROS, ONES, uniform(-1), next_obs=ZEROS, discount=0.8)
    assert value(learner, batch) == pytest.approx(5.0, abs=0.25)


@both
def test_the_policy_finds_the_best_action_of_each_observation(name: str, learner_of: LearnerOf) -> None:
    def batch_at(seed: int) -> Batch:
        return rows(SIGNS, -(uniform(seed) - 0.5 * SIGNS).square(), uniform(seed))

    learner = probe_learner(learner_of, name)
    learn(learner, batch_at, 700)
    action = learner.policy.act(torch.tensor([[-1.0], [1.0]])).squeeze(-1)
    assert action.tolist() == pytest.approx([-0.5, 0.5], abs=0.12)
