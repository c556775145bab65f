from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from offpolicy.algos.base_learner import BaseLearner
from offpolicy.types import Batch, Batches

LearnerOf = Callable[..., BaseLearner]
BatchOf = Callable[..., Batch]


def log_alpha_step(learner: BaseLearner, batch: Batch) -> float:
    before = learner.state().tensors["log_alpha"]
    learner.update(Batches((batch,), None))
    return float(learner.state().tensors["log_alpha"] - before)


@pytest.mark.parametrize(("target_entropy", "direction"), [(50.0, 1.0), (-50.0, -1.0)])
def test_temperature_moves_towards_the_target_entropy(
    target_entropy: float, direction: float, learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    learner = learner_of("sac", target_entropy=target_entropy, alpha_lr=0.01)
    assert log_alpha_step(learner, batch_of()) == pytest.approx(direction * 0.01, rel=1e-3)


def test_target_entropy_is_minus_the_number_of_action_dimensions(learner_of: LearnerOf, batch_of: BatchOf) -> None:
    default, explicit = learner_of("sac"), learner_of("sac", target_entropy=-2.0)
    for learner in (default, explicit):
        learner.update(Batches((batch_of(),), None))
    assert default.read_metrics().sums.tolist() == explicit.read_metrics().sums.tolist()


def test_a_fixed_temperature_stays_and_reports_no_alpha_loss(learner_of: LearnerOf, batch_of: BatchOf) -> None:
    learner = learner_of("sac", auto_alpha=False, init_alpha=0.2)
    assert log_alpha_step(learner, batch_of()) == 0.0
    metrics = dict(zip(learner.read_metrics().names, learner.read_metrics().counts, strict=True))
    ent_coef = learner.read_metrics().sums[learner.read_metrics().names.index("ent_coef")]
    assert ent_coef == pytest.approx(0.2)
    assert (metrics["alpha_loss"], metrics["ent_coef"]) == (0.0, 1.0)


def test_target_critics_follow_at_every_update_also_between_actor_steps(
    learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    learner = learner_of("sac", policy_delay=3, tau=0.25)
    for seed in range(2):
        target = learner.state().tensors["target_critic.second.0.weight"]
        learner.update(Batches((batch_of(seed),), None))
        tensors = learner.state().tensors
        expected = 0.75 * target + 0.25 * tensors["critic.second.0.weight"]
        assert torch.allclose(tensors["target_critic.second.0.weight"], expected, atol=1e-7)


def test_metric_names(learner_of: LearnerOf) -> None:
    assert set(learner_of("sac").read_metrics().names) == {
        "critic_loss", "actor_loss", "alpha_loss", "ent_coef", "entropy", "q_mean", "target_q_mean",
    }  # fmt: skip


def test_the_actor_step_leaves_the_critics_alone(learner_of: LearnerOf, batch_of: BatchOf) -> None:
    with_actor, without_actor = learner_of("sac", policy_delay=1), learner_of("sac", policy_delay=2)
    for learner in (with_actor, without_actor):
        learner.update(Batches((batch_of(),), None))
    left, right = with_actor.state().tensors, without_actor.state().tensors
    assert not torch.equal(left["policy.actor.body.0.weight"], right["policy.actor.body.0.weight"])
    for key in left:
        if key.startswith("critic"):  # not bitwise: with an actor step the policy is evaluated in more rows at once
            assert torch.allclose(left[key], right[key], rtol=1e-5, atol=1e-7), key
