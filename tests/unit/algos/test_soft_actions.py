"""SAC in its action spaces; `test_transcription.py` holds whole updates beside the papers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from offpolicy.algos.base_learner import BaseLearner
from offpolicy.algos.soft_actions import default_target_entropy
from offpolicy.types import Batch, Batches, SpaceSpec

LearnerOf = Callable[..., BaseLearner]
BatchOf = Callable[..., Batch]

BOX = SpaceSpec(3, 2, (-1.0,) * 2, (1.0,) * 2)
DISCRETE = SpaceSpec(3, 1, (0.0,), (2.0,), num_actions=3)


@pytest.mark.parametrize(("spec", "expected"), [(BOX, -2.0), (DISCRETE, 0.98 * math.log(3.0))])
def test_the_target_entropy_is_that_of_the_papers(spec: SpaceSpec, expected: float) -> None:
    assert default_target_entropy(spec) == pytest.approx(expected)


def discrete(batch: Batch, actions: list[int]) -> Batch:
    return batch._replace(action=torch.tensor(actions)[:, None].float())


def test_the_value_of_an_action_that_was_not_taken_has_no_gradient(learner_of: LearnerOf, batch_of: BatchOf) -> None:
    learner = learner_of("sac", spec=DISCRETE)
    learner.update(Batches((discrete(batch_of(), [0, 2] * 4),), None))
    moments = learner.state().tensors
    for net in ("first", "second"):
        by_output = moments[f"critic_optimizer.exp_avg.{net}.2.bias"]
        assert (by_output == 0.0).tolist() == [False, True, False]


def test_the_policy_comes_to_prefer_what_pays(learner_of: LearnerOf, batch_of: BatchOf) -> None:
    """Action 2 pays 1, others nothing, and every step is the last one."""
    learner = learner_of("sac", spec=DISCRETE, actor_lr=0.01, critic_lr=0.01, init_alpha=0.05, auto_alpha=False)
    batch = discrete(batch_of(rows=12, terminated=torch.ones(12)), [0, 1, 2] * 4)
    learner.update(Batches((batch._replace(reward=(batch.action[:, 0] == 2.0).float()),) * 300, None))
    assert learner.policy.act(batch.obs).tolist() == [[2.0]] * 12


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_update_draws_nothing_and_is_a_function_of_the_state(
    precision: str, learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    options = {"spec": DISCRETE, "hidden_dims": (16, 16), "precision": precision, "max_grad_norm": 1.0}
    one, other = (learner_of("sac", **options) for _ in range(2))
    torch.rand(5, generator=other.generator)
    for learner in (one, other):
        learner.update(Batches(tuple(discrete(batch_of(seed), [0, 1, 2, 0] * 2) for seed in range(3)), None))
    left, right = one.state().tensors, other.state().tensors
    assert all(torch.equal(left[name], right[name]) for name in left if name != "generator")
