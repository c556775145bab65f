"""Rules follow the env steps of their batches: step sizes and the target entropy as they are scheduled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from offpolicy.algos.base_learner import BaseLearner
from offpolicy.algos.optim import LearningRate, SoloExchange
from offpolicy.algos.sac import Sac
from offpolicy.algos.td3 import Td3
from offpolicy.config.schedules import Ramp
from offpolicy.config.sections import AlgoConfig
from offpolicy.types import Batch, Batches, Rollouts, SpaceSpec

LearnerOf, BatchOf = Callable[..., BaseLearner], Callable[..., Batch]
FALLING = Ramp(start=1e-3, end=0.0, over=100)  # from env step 1000 on, where learning starts


def trained(learner: BaseLearner, batch_of: BatchOf, *env_steps: int) -> BaseLearner:
    for seed, steps in enumerate(env_steps):
        learner.update(Batches((batch_of(seed),), None, steps))
    return learner


def parameters(learner: BaseLearner, prefix: str) -> list[torch.Tensor]:
    return [tensor for name, tensor in learner.state().tensors.items() if name.startswith(prefix)]


def same(one: BaseLearner, other: BaseLearner, prefix: str = "") -> bool:
    pairs = zip(parameters(one, prefix), parameters(other, prefix), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


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


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_a_flat_ramp_is_bitwise_the_constant(name: str, learner_of: LearnerOf, batch_of: BatchOf) -> None:
    def ramp(value: float) -> Ramp:
        return Ramp(start=value, end=value, over=10, begin=1003)

    steps = range(1000, 1020)
    flat = trained(learner_of(name, actor_lr=3e-4, critic_lr=7e-4), batch_of, *steps)
    ramps = trained(learner_of(name, actor_lr=ramp(3e-4), critic_lr=ramp(7e-4)), batch_of, *steps)
    assert same(flat, ramps)


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_a_learner_restored_in_a_ramp_continues_bit_for_bit(
    name: str, learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    whole = trained(learner_of(name, actor_lr=FALLING, critic_lr=FALLING), batch_of, 1010)
    broken = learner_of(name, seed=2, actor_lr=FALLING, critic_lr=FALLING)
    broken.load_state(whole.state())
    for learner in (whole, broken):
        learner.update(Batches((batch_of(7), batch_of(8)), None, 1060))
    assert same(whole, broken)


def test_the_step_sizes_are_those_of_the_env_steps() -> None:
    algo = AlgoConfig(name="td3", hidden_dims=(16,), actor_lr=FALLING, critic_lr=Ramp(start=0.0, end=1.0, over=200))
    algorithm = Td3(algo, *_place())
    algorithm.follow_schedules(1025)
    assert (algorithm._actor_optimizer.lr, algorithm._critic.optimizer.lr) == (7.5e-4, 0.125)


def test_the_target_entropy_follows_its_ramp() -> None:
    algo = AlgoConfig(name="sac", hidden_dims=(16,), target_entropy=Ramp(start=-1.0, end=-3.0, over=100, begin=0))
    algorithm = Sac(algo, *_place())
    algorithm.follow_schedules(25)
    loss = algorithm._temperature.loss(torch.tensor(1.0), torch.tensor(-0.5)).value
    assert loss.item() == pytest.approx(-(0.5 - 1.5))


def _place() -> Any:
    return SpaceSpec(3, 2, (-1.0, -1.0), (1.0, 1.0)), torch.device("cpu"), 1, SoloExchange()


@pytest.mark.parametrize(("env_steps", "value"), [(0, 1e-3), (50, 5e-4), (100, 0.0), (10**6, 0.0)])
def test_appo_follows_a_ramp_of_lr_from_the_start(env_steps: int, value: float) -> None:
    size = LearningRate(AlgoConfig(name="appo", lr=FALLING), torch.device("cpu"))
    size.follow_progress(0.9, env_steps)
    assert float(size.value) == pytest.approx(value)


@pytest.mark.parametrize("stage", ["teach", "adapt"])
def test_horas_stages_follow_a_ramp_of_lr_by_the_env_steps_of_the_rollouts(
    stage: str, learner_of: LearnerOf, rollouts_of: Callable[..., Rollouts]
) -> None:
    spec = SpaceSpec(55, 2, (-1.0,) * 2, (1.0,) * 2, ("proprio_hist", "obs", "privileged"), ((25, 2), (3,), (2,)))
    options = {"stage": stage, "encoder_dims": (4,), "epochs": 1, "num_minibatches": 1}
    learner = learner_of("hora", spec=spec, lr=Ramp(start=1e-3, end=0.0, over=100), **options)
    learner.update(rollouts_of(learner.policy, spec=spec, env_steps=75))
    assert float(learner.state().tensors["optimizer.step_size"]) == pytest.approx(2.5e-4)
