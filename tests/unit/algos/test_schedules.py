"""Rules follow the env steps of their batches: step sizes and the target entropy as they are scheduled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from offpolicy.algos.learner import Learner
from offpolicy.config.schedules import Ramp
from offpolicy.types import Batch, Batches, Rollouts, SpaceSpec

LearnerOf, BatchOf = Callable[..., Learner], Callable[..., Batch]
FALLING = Ramp(start=1e-3, end=0.0, over=100)  # from env step 1000 on, where learning starts


def trained(learner: Learner, batch_of: BatchOf, *env_steps: int) -> Learner:
    for seed, steps in enumerate(env_steps):
        learner.update(Batches((batch_of(seed),), None, steps))
    return learner


def parameters(learner: Learner, prefix: str) -> list[torch.Tensor]:
    return [tensor for name, tensor in learner.state().tensors.items() if name.startswith(prefix)]


@pytest.mark.parametrize(
    ("name", "option", "moves"),
    [
        *(("sac", "actor_lr", "policy."), ("sac", "critic_lr", "critic."), ("sac", "alpha_lr", "log_alpha")),
        *(("td3", "actor_lr", "policy."), ("td3", "critic_lr", "critic.")),
    ],
)
def test_a_learning_rate_of_zero_moves_nothing(
    name: str, option: str, moves: str, learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    scheduled = trained(learner_of(name, **{option: FALLING}), batch_of, 1010, 1020)
    before = [tensor.clone() for tensor in parameters(scheduled, moves)]
    trained(scheduled, batch_of, 1100, 5000)
    assert all(torch.equal(*pair) for pair in zip(before, parameters(scheduled, moves), strict=True))
    trained(scheduled, batch_of, 1050)
    assert not all(torch.equal(*pair) for pair in zip(before, parameters(scheduled, moves), strict=True))


def test_the_target_entropy_follows_its_ramp(learner_of: LearnerOf, batch_of: BatchOf) -> None:
    learner = learner_of("sac", target_entropy=Ramp(start=-50.0, end=50.0, over=100, begin=0), alpha_lr=0.01)
    temperatures = [
        float(trained(learner, batch_of, steps).state().tensors["log_alpha"]) for steps in (0, 10, 100, 100, 100, 100)
    ]
    assert temperatures[1] < temperatures[0]
    assert temperatures[-1] > temperatures[-2]


@pytest.mark.parametrize(("name", "stage"), [("appo", "teach"), ("hora", "teach"), ("hora", "adapt")])
def test_learners_from_rollouts_follow_a_ramp_of_lr_by_the_env_steps(
    name: str, stage: str, learner_of: LearnerOf, rollouts_of: Callable[..., Rollouts]
) -> None:
    spec = SpaceSpec(55, 2, (-1.0,) * 2, (1.0,) * 2, ("proprio_hist", "obs", "privileged"), ((25, 2), (3,), (2,)))
    options = {"stage": stage, "encoder_dims": (4,), "epochs": 1, "num_minibatches": 1}
    learner = learner_of(name, spec=spec, lr=Ramp(start=1e-3, end=0.0, over=100), **options)
    learner.update(rollouts_of(learner.policy, spec=spec, env_steps=75))
    assert float(learner.state().tensors["optimizer.step_size"]) == pytest.approx(2.5e-4)
    assert learner.policy_changes == 1
