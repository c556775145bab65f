"""SAC in its action spaces, and TD3; `test_transcription.py` holds whole updates beside the papers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from offpolicy.algos.learner import Learner
from offpolicy.types import Batch, Batches, SpaceSpec

LearnerOf = Callable[..., Learner]
BatchOf = Callable[..., Batch]


def log_alpha_step(learner: Learner, batch: Batch) -> float:
    before = learner.state().tensors["log_alpha"]
    learner.update(Batches((batch,), None))
    return float(learner.state().tensors["log_alpha"] - before)


@pytest.mark.parametrize(("target_entropy", "direction"), [(50.0, 1.0), (-50.0, -1.0)])
def test_temperature_moves_towards_the_target_entropy(
    target_entropy: float, direction: float, learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    learner = learner_of("sac", target_entropy=target_entropy, alpha_lr=0.01)
    assert log_alpha_step(learner, batch_of()) == pytest.approx(direction * 0.01, rel=1e-3)


def test_a_fixed_temperature_stays_and_reports_no_alpha_loss(learner_of: LearnerOf, batch_of: BatchOf) -> None:
    learner = learner_of("sac", auto_alpha=False, init_alpha=0.2)
    assert log_alpha_step(learner, batch_of()) == 0.0
    metrics = dict(zip(learner.read_metrics().names, learner.read_metrics().counts, strict=True))
    ent_coef = learner.read_metrics().sums[learner.read_metrics().names.index("ent_coef")]
    assert ent_coef == pytest.approx(0.2)
    assert (metrics["alpha_loss"], metrics["ent_coef"]) == (0.0, 1.0)


DISCRETE = SpaceSpec(3, 1, (0.0,), (2.0,), num_actions=3)


def discrete(batch: Batch, actions: list[int]) -> Batch:
    return batch._replace(action=torch.tensor(actions)[:, None].float())


def test_the_policy_comes_to_prefer_what_pays(learner_of: LearnerOf, batch_of: BatchOf) -> None:
    """Action 2 pays 1, others nothing, and every step is the last one."""
    learner = learner_of("sac", spec=DISCRETE, actor_lr=0.01, critic_lr=0.01, init_alpha=0.05, auto_alpha=False)
    batch = discrete(batch_of(rows=12, terminated=torch.ones(12)), [0, 1, 2] * 4)
    learner.update(Batches((batch._replace(reward=(batch.action[:, 0] == 2.0).float()),) * 300, None))
    assert learner.policy.act(batch.obs).tolist() == [[2.0]] * 12


@pytest.mark.promise("td3-delay")
def test_all_targets_move_only_with_the_delayed_actor(learner_of: LearnerOf, batch_of: BatchOf) -> None:
    learner = learner_of("td3", policy_delay=2)
    moved = []
    for seed in range(4):
        before = learner.state().tensors
        learner.update(Batches((batch_of(seed),), None))
        after = learner.state().tensors
        keys = ("target_actor.body.0.weight", "target_critic.first.0.weight", "target_critic.second.0.weight")
        moved.append([not torch.equal(before[key], after[key]) for key in keys])
    assert moved == [[False] * 3, [True] * 3, [False] * 3, [True] * 3]
