"""APPO's value normalisation (PopArt): its units never change a prediction, and V converges to the returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest
import torch
from torch import Tensor

from offpolicy.algos.appo import Appo
from offpolicy.algos.learner import Learner
from offpolicy.algos.optim import SoloExchange
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.vector import VectorAdapter, make_vector
from offpolicy.nets.actor_critic import ValueCritic
from offpolicy.nets.normalizer import block_moments
from offpolicy.nets.policy import Policy
from offpolicy.types import Rollouts

CPU = torch.device("cpu")
GAMMA = 0.99
NUM_ENVS, LENGTH = 8, 128
ALGO = AlgoConfig(
    name="appo", hidden_dims=(64, 64), activation="tanh", normalize_obs=True, max_grad_norm=0.5, gamma=GAMMA, epochs=5
)
TAIL_STEPS = 4 * LENGTH  # after which gamma^t is below 1 %


def critic_of(*hidden_dims: int) -> ValueCritic:
    return ValueCritic(3, hidden_dims, "tanh", normalize_value=True)


def moments(mean: float, std: float, rows: int = 1000) -> Tensor:
    noise = torch.randn(rows, 1, generator=torch.Generator().manual_seed(3))
    return block_moments(mean + std * noise)


@torch.no_grad()
def returns(critic: ValueCritic, obs: Tensor) -> Tensor:
    return critic.in_returns(critic.forward(obs))


@pytest.mark.parametrize(("mean", "std"), [(-600.0, 300.0), (0.0, 1e-3), (1e6, 1.0), (-5.0, 1e5), (3.0, 0.0)])
def test_predictions_are_preserved_whatever_the_targets(mean: float, std: float) -> None:
    critic, obs = critic_of(16, 16), torch.randn(50, 3)
    critic.absorb(moments(10.0, 4.0))
    before = returns(critic, obs)
    critic.absorb(moments(mean, std))
    assert critic.normalizer is not None
    assert float(critic.normalizer.count) == 2000.0
    rounding = 2e-6 * (10.0 + abs(mean) + std)  # of float32, in the larger of the units
    assert torch.allclose(returns(critic, obs), before, rtol=0.0, atol=rounding)


def test_predictions_in_units_are_of_the_new_statistics() -> None:
    critic, obs = critic_of(16), torch.randn(50, 3)
    before = returns(critic, obs)
    critic.absorb(block_moments(torch.tensor([[100.0], [104.0]])))  # mean 102, std 2
    assert torch.allclose(critic.forward(obs), (before - 102.0) / 2.0, atol=1e-5)


def test_a_block_that_is_left_out_changes_no_bit() -> None:
    critic = critic_of(16)
    critic.absorb(moments(10.0, 4.0))
    before = {name: tensor.clone() for name, tensor in critic.state_dict().items()}
    for block in (moments(float("nan"), 1.0), block_moments(torch.empty(0, 1))):
        critic.absorb(block)
    assert [name for name, tensor in critic.state_dict().items() if not torch.equal(tensor, before[name])] == []


def test_a_critic_without_statistics_says_so() -> None:
    critic = ValueCritic(3, (8,), "tanh", normalize_value=False)
    with pytest.raises(RuntimeError, match="predicts returns"):
        critic.absorb(moments(0.0, 1.0))


class Pendulum:
    """Eight endless pendulums, and every reward so far."""

    def __init__(self, envs: VectorAdapter) -> None:
        self._envs, self._obs = envs, envs.reset(seed=1)
        self.spec = envs.spec
        self._generator = torch.Generator().manual_seed(1)
        self.rewards: list[Tensor] = []  # [T, B] of each batch

    def rollouts(self, policy: Policy) -> Rollouts:
        """Returns the next batch, acted by `policy`."""
        obs, rows = [self._obs], list[tuple[np.ndarray, ...]]()
        for _ in range(LENGTH):
            action, log_prob = policy.sample(torch.from_numpy(obs[-1]), self._generator)
            assert log_prob is not None
            out = self._envs.step(action.numpy())
            rows.append((action.numpy(), log_prob.numpy(), out.reward, out.terminated, out.truncated, out.is_valid))
            obs.append(out.next_obs.copy())
        self._obs = obs[-1]
        columns = [torch.from_numpy(np.stack(column).astype(np.float32)) for column in zip(*rows, strict=True)]
        self.rewards.append(columns[2])
        return Rollouts(torch.from_numpy(np.stack(obs)), *columns, progress=0.0, env_steps=0)

    def true_values(self) -> list[float]:
        """Returns the mean discounted return from each batch's states whose tail has been seen."""
        reward, value = torch.cat(self.rewards), torch.zeros(NUM_ENVS)
        values = torch.empty_like(reward)
        for t in reversed(range(len(reward))):
            value = reward[t] + GAMMA * value
            values[t] = value
        return [float(part.mean()) for part in values[:-TAIL_STEPS].split(LENGTH)]


@pytest.fixture
def pendulum() -> Iterator[Pendulum]:
    cfg = EnvConfig(id="Pendulum-v1", num_envs=NUM_ENVS, vectorization="sync", kwargs={"max_episode_steps": -1})
    with closing(make_vector(cfg)) as envs:
        yield Pendulum(envs)


def values_before_learning(kind: Callable[..., Appo], pendulum: Pendulum, iterations: int) -> list[float]:
    """Returns the mean V over each batch before it is learnt from; for the last batches the tail alone is played."""
    algorithm = kind(ALGO, pendulum.spec, CPU, 1, SoloExchange())
    learner, predicted = Learner(algorithm, ALGO), list[float]()
    critic = ValueCritic(pendulum.spec.obs_dim, ALGO.hidden_dims, ALGO.activation, normalize_value=True)
    for _ in range(iterations):
        rollouts = pendulum.rollouts(learner.policy)
        tensors = learner.state().tensors
        critic.load_state_dict({name: tensors[f"critic.{name}"] for name in critic.state_dict()})
        predicted.append(float(returns(critic, learner.policy.normalize(rollouts.obs[:-1])).mean()))
        learner.update(rollouts)
    return predicted


def greatest_share(predicted: list[float], true: list[float]) -> float:
    """Returns the largest V over the truth, of the batches whose tail has been seen."""
    return max(p / t for p, t in zip(predicted[: len(true)], true, strict=True))


@pytest.mark.slow
def test_values_converge_to_the_returns_without_overshooting(pendulum: Pendulum) -> None:
    predicted = values_before_learning(Appo, pendulum, iterations=30)
    true = pendulum.true_values()
    assert greatest_share(predicted, true) < 1.2
    assert predicted[len(true) - 1] == pytest.approx(true[-1], rel=0.2)
