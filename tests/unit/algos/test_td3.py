from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from offpolicy.algos import td3
from offpolicy.algos.base_learner import BaseLearner
from offpolicy.algos.losses import smoothed_target_action
from offpolicy.types import Batch, Batches

LearnerOf = Callable[..., BaseLearner]
BatchOf = Callable[..., Batch]


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


def test_smoothing_noise_is_drawn_per_row_and_dimension_at_every_update(
    learner_of: LearnerOf, batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []

    def watched(action: Tensor, unit_noise: Tensor, noise_std: float, noise_clip: float) -> Tensor:
        seen.append(unit_noise)
        return smoothed_target_action(action, unit_noise, noise_std, noise_clip)

    monkeypatch.setattr(td3, "smoothed_target_action", watched)
    learner_of("td3").update(Batches((batch_of(0), batch_of(0)), None))
    assert [tuple(noise.shape) for noise in seen] == [(8, 2), (8, 2)]
    assert torch.cat(seen).unique().numel() == 32


@pytest.mark.parametrize(("target_noise", "is_same"), [(0.0, True), (0.2, False)])
def test_target_noise_can_be_switched_off(
    target_noise: float, is_same: bool, learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    """Two updates that teach nothing (learning rates of zero, almost) see the same target only without noise."""
    learner = learner_of("td3", target_noise=target_noise, critic_lr=1e-30, actor_lr=1e-30)
    learner.update(Batches((batch_of(),), None))
    first = learner.read_metrics().sums[2]
    learner.update(Batches((batch_of(),), None))
    assert bool(learner.read_metrics().sums[2] == 2 * first) is is_same


def test_metric_names(learner_of: LearnerOf) -> None:
    assert set(learner_of("td3").read_metrics().names) == {"critic_loss", "actor_loss", "q_mean", "target_q_mean"}


def test_the_actor_climbs_the_first_critic_only(learner_of: LearnerOf, batch_of: BatchOf) -> None:
    """Another second critic changes neither the actor's loss nor its step (all rows terminated: same targets)."""
    plain, changed = learner_of("td3"), learner_of("td3")
    state = changed.state()
    state.tensors["critic.second.2.bias"] += 100.0
    changed.load_state(state)
    for learner in (plain, changed):
        learner.update(Batches((batch_of(terminated=torch.ones(8)),), None))
    left, right = plain.state().tensors, changed.state().tensors
    assert not torch.equal(left["critic.second.0.weight"], right["critic.second.0.weight"])
    assert torch.equal(left["policy.actor.body.0.weight"], right["policy.actor.body.0.weight"])
