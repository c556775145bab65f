"""APPO: the effect of a batch of rollouts on networks, normalisers and metrics."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from offpolicy.algos.appo import Appo
from offpolicy.algos.learner import Learner
from offpolicy.algos.optim import SoloExchange
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.actor_critic import CategoricalActor, GaussianActor
from offpolicy.nets.distributions import PolicyDistribution, kl_divergence
from offpolicy.nets.policy import Policy
from offpolicy.types import Rollouts, SpaceSpec
from tests.unit.algos.conftest import LearnerOf, RolloutsOf, assert_equal, metrics

CPU = torch.device("cpu")
SPEC = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
DISCRETE = SpaceSpec(obs_dim=3, action_dim=1, action_low=(0.0,), action_high=(2.0,), num_actions=3)
SHORT = {"epochs": 3, "num_minibatches": 4}  # of 8 steps of 4 environments
ONE_STEP = {"epochs": 1, "num_minibatches": 1}
NUM_VALID = 30


def algo_of(**algo: Any) -> AlgoConfig:
    return AlgoConfig(**{"name": "appo", "hidden_dims": (16,), **SHORT, **algo})


def distribution(policy: Policy, obs: Tensor) -> PolicyDistribution:
    """Returns the policy's distribution for raw observations."""
    assert isinstance(policy.actor, GaussianActor | CategoricalActor)
    with torch.no_grad():
        return policy.actor.distribution(policy.normalize(obs))


def moved(learner: Learner, rollouts: Rollouts) -> dict[str, float]:
    """By how much an update moves every tensor of the state."""
    before = learner.state().tensors
    learner.update(rollouts)
    after = learner.state().tensors
    return {name: float((after[name].double() - before[name].double()).abs().max()) for name in before}


@pytest.mark.promise("ratio-one")
def test_the_ratio_is_one_at_no_lag_while_observations_are_normalised(
    learner_of: LearnerOf, rollouts_of: RolloutsOf
) -> None:
    learner = learner_of("appo", normalize_obs=True, lr=1e-2, clip=1e-4, **ONE_STEP)
    for seed in range(3):
        learner.update(rollouts_of(learner.policy, seed))
        assert metrics(learner)["clip_fraction"] == 0.0


@pytest.mark.promise("reset-rows")
def test_the_normalisers_see_every_transition_once_and_autoreset_rows_never(
    learner_of: LearnerOf, rollouts_of: RolloutsOf
) -> None:
    learner = learner_of("appo", normalize_obs=True, gamma=0.0, **SHORT)  # the value target is the reward
    rollouts = rollouts_of(learner.policy)
    is_valid = rollouts.is_valid == 1.0
    rollouts.obs[:-1][~is_valid] = 1e3
    rollouts.obs[-1] = 1e3  # it is the next rollout's first
    learner.update(rollouts)
    tensors = learner.state().tensors
    for name, rows in (("policy", rollouts.obs[:-1][is_valid]), ("critic", rollouts.reward[is_valid][:, None])):
        assert float(tensors[f"{name}.normalizer.count"]) == NUM_VALID
        assert torch.allclose(tensors[f"{name}.normalizer.mean"], rows.double().mean(dim=0), atol=1e-6)
        assert torch.allclose(tensors[f"{name}.normalizer.var"], rows.double().var(dim=0, correction=0), rtol=1e-5)


@pytest.mark.promise("reset-rows")
def test_autoreset_rows_are_not_learnt_from(learner_of: LearnerOf, rollouts_of: RolloutsOf) -> None:
    learners = [learner_of("appo", normalize_obs=True, **SHORT) for _ in range(2)]
    first, second = (rollouts_of(learner.policy) for learner in learners)
    nothing = second.is_valid == 0.0
    second.action[nothing] += 0.5
    second.log_prob[nothing] -= 0.5
    second.reward[nothing] = 7.0
    learners[0].update(first)
    learners[1].update(second)
    assert_equal(*learners)


@pytest.mark.promise("bootstrap")
def test_a_truncated_row_is_bootstrapped_from_its_final_observation(
    learner_of: LearnerOf, rollouts_of: RolloutsOf
) -> None:
    """Of rows that end no episode, or terminate one, the final observation is never read."""

    def learnt(change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None) -> list[torch.Tensor]:
        learner = learner_of("appo")
        rollouts = rollouts_of(learner.policy)
        rollouts = rollouts._replace(is_valid=torch.ones_like(rollouts.is_valid))
        if change is not None:
            is_truncated = rollouts.truncated[..., None] == 1.0
            rollouts = rollouts._replace(final_obs=change(rollouts.obs[1:], is_truncated))
        learner.update(rollouts)
        return [parameter.detach().clone() for parameter in learner.policy.parameters()]

    def is_same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
        return all(torch.allclose(one, other, atol=1e-6) for one, other in zip(first, second, strict=True))

    nan = torch.tensor(torch.nan)
    next_row = learnt(None)
    assert is_same(learnt(lambda obs, is_truncated: torch.where(is_truncated, obs, nan)), next_row)
    assert not is_same(learnt(lambda obs, is_truncated: torch.where(is_truncated, obs + 1.0, nan)), next_row)


@pytest.mark.parametrize("schedule", ["constant", "kl_adaptive"])
def test_a_restored_learner_continues_bit_for_bit(
    schedule: str, learner_of: LearnerOf, rollouts_of: RolloutsOf
) -> None:
    algo = {**SHORT, "normalize_obs": True, "lr_schedule": schedule, "max_grad_norm": 0.5}
    learner, restored = learner_of("appo", seed=1, **algo), learner_of("appo", seed=2, **algo)
    for seed in range(2):
        learner.update(rollouts_of(learner.policy, seed))
    restored.load_state(learner.state())
    has_adapted = float(learner.state().tensors["optimizer.step_size"]) != pytest.approx(3e-4)
    assert has_adapted == (schedule == "kl_adaptive")
    for seed in range(2, 4):
        learner.update(rollouts_of(learner.policy, seed))
        restored.update(rollouts_of(restored.policy, seed))
    assert_equal(learner, restored)


@pytest.mark.promise("nan-never-trained")
@pytest.mark.parametrize("field", ["obs", "action", "log_prob", "reward"])
def test_a_bad_number_changes_no_parameter_and_trips_the_guard(
    field: str, learner_of: LearnerOf, rollouts_of: RolloutsOf
) -> None:
    learner = learner_of("appo", normalize_obs=True, **SHORT)
    learner.update(rollouts_of(learner.policy, 0))
    assert not learner.has_diverged()
    rollouts = rollouts_of(learner.policy, 1)
    getattr(rollouts, field)[6, 2] = float("nan")
    kept = ("policy.actor", "critic.", "optimizer.")
    assert [name for name, by in moved(learner, rollouts).items() if name.startswith(kept) and by != 0.0] == []
    assert learner.has_diverged()


def test_discrete_actions_learn_a_bandit(learner_of: LearnerOf, rollouts_of: RolloutsOf) -> None:
    learner = learner_of("appo", spec=DISCRETE, gamma=0.0, lr=1e-2, normalize_obs=True, **SHORT)
    for seed in range(10):
        rollouts = rollouts_of(learner.policy, seed)
        learner.update(rollouts._replace(reward=(rollouts.action.squeeze(-1) == 2.0).float()))
    policy = distribution(learner.policy, rollouts.obs)
    assert float(policy.log_prob(torch.full((9, 4, 1), 2.0)).exp().min()) > 0.8  # from 1/3
    assert learner.policy.act(rollouts.obs[0]).tolist() == [[2.0]] * 4


def test_continuous_actions_learn_a_bandit(learner_of: LearnerOf, rollouts_of: RolloutsOf) -> None:
    learner = learner_of("appo", gamma=0.0, lr=1e-2, normalize_obs=True, **SHORT)
    for seed in range(20):
        rollouts = rollouts_of(learner.policy, seed)
        best = torch.tensor([0.5, -0.5])
        learner.update(rollouts._replace(reward=-(rollouts.action - best).square().sum(dim=-1)))
    assert learner.policy.act(rollouts.obs[0]).mean(dim=0).tolist() == pytest.approx([0.5, -0.5], abs=0.2)
    assert float(learner.state().tensors["policy.actor.log_std"].max()) < -0.1  # from 0: it grew sure


def aged(policy: Policy, rollouts: Rollouts, lag: float) -> Rollouts:
    """As if a policy had acted under which the actions were e^lag times less likely; with 0, exactly this one."""
    log_prob = distribution(policy, rollouts.obs[:-1]).log_prob(rollouts.action)
    return rollouts._replace(log_prob=log_prob - lag)


@pytest.mark.promise("vtrace-gae")
@pytest.mark.parametrize(("lag", "is_same"), [(0.0, True), (-0.5, False)])
def test_vtrace_is_gae_at_zero_lag_and_only_there(
    lag: float, is_same: bool, learner_of: LearnerOf, rollouts_of: RolloutsOf
) -> None:
    tensors = []
    for advantage in ("vtrace", "gae"):
        learner = learner_of("appo", advantage=advantage, **SHORT)
        learner.update(aged(learner.policy, rollouts_of(learner.policy), lag))
        tensors.append(learner.state().tensors)
    assert torch.equal(*(each["policy.actor.body.0.weight"] for each in tensors)) == is_same
    assert torch.equal(*(each["critic.body.0.weight"] for each in tensors)) == is_same


def test_the_entropy_bonus_raises_the_entropy(learner_of: LearnerOf, rollouts_of: RolloutsOf) -> None:
    entropy = []
    for ent_coef in (0.0, 1.0):
        learner = learner_of("appo", ent_coef=ent_coef, lr=1e-2, **SHORT)
        rollouts = rollouts_of(learner.policy)
        learner.update(rollouts)
        entropy.append(float(distribution(learner.policy, rollouts.obs).entropy().detach().mean()))
    start = 2 * 1.418939  # of two standard normals
    assert entropy[1] > start + 0.1
    assert entropy[1] > entropy[0] + 0.1


@pytest.mark.parametrize(("lr", "expected"), [(1e-5, 1e-5 * 1.5**3), (1e-2, 1e-2 / 1.5**3)])
def test_the_adaptive_schedule_changes_the_step_size_once_per_epoch(
    lr: float, expected: float, learner_of: LearnerOf, rollouts_of: RolloutsOf
) -> None:
    learner = learner_of("appo", lr=lr, lr_schedule="kl_adaptive", target_kl=1e-3, **SHORT)
    learner.update(rollouts_of(learner.policy))
    assert float(learner.state().tensors["optimizer.step_size"]) == pytest.approx(expected)


@pytest.mark.parametrize("spec", [SPEC, DISCRETE], ids=["box", "discrete"])
def test_the_kl_is_from_the_policy_at_the_start_of_the_iteration_its_std_too(
    spec: SpaceSpec, learner_of: LearnerOf, rollouts_of: RolloutsOf
) -> None:
    algo = {"spec": spec, "lr": 1e-2, "ent_coef": 1.0, "num_minibatches": 1}
    once, twice = (learner_of("appo", epochs=epochs, **algo) for epochs in (1, 2))
    rollouts = rollouts_of(once.policy)
    before = distribution(copy.deepcopy(once.policy), rollouts.obs[:-1])
    once.update(rollouts)
    twice.update(rollouts)
    kl = kl_divergence(before, distribution(once.policy, rollouts.obs[:-1]))[rollouts.is_valid == 1.0].mean()
    assert metrics(twice)["approx_kl"] == pytest.approx(float(kl.detach()) / 2, rel=1e-3)  # the first step has none


def test_rows_that_a_stale_policy_found_less_likely_are_counted_as_clipped(
    learner_of: LearnerOf, rollouts_of: RolloutsOf
) -> None:
    learner = learner_of("appo", **ONE_STEP)
    rollouts = rollouts_of(learner.policy)
    rollouts.log_prob[:, 0] -= 0.5  # 7 transitions and an autoreset row, now e^0.5 times likelier
    rollouts.log_prob[:, 1] += 0.5  # as many, less likely: outside of the surrogate's clip, but not of rho's
    learner.update(rollouts)
    assert metrics(learner)["rho_clip_fraction"] == pytest.approx(7 / NUM_VALID)
    assert metrics(learner)["clip_fraction"] == pytest.approx(14 / NUM_VALID)


@pytest.mark.parametrize(
    ("slope", "shift", "explained"), [(1.0, 0.0, 1.0), (1.0, 3.0, 1.0), (2.0, 0.0, 0.75), (-1.0, 0.0, -3.0)]
)
def test_explained_variance_has_known_values(
    slope: float, shift: float, explained: float, learner_of: LearnerOf, rollouts_of: RolloutsOf
) -> None:
    learner = learner_of("appo", gamma=0.0, normalize_value=False, **SHORT)
    state = learner.state()  # V(s) = max(s_0 + 20, 0) - 20
    state.tensors["critic.body.0.weight"].copy_(torch.eye(16, 3))
    state.tensors["critic.body.0.bias"].fill_(20.0)
    state.tensors["critic.body.2.weight"].copy_(torch.eye(1, 16))
    state.tensors["critic.body.2.bias"].fill_(-20.0)
    learner.load_state(state)
    rollouts = rollouts_of(learner.policy)
    learner.update(rollouts._replace(reward=slope * rollouts.obs[:-1, :, 0] + shift))  # the target, with gamma 0
    assert metrics(learner)["explained_variance"] == pytest.approx(explained, abs=1e-4)


class CrowdedExchange(SoloExchange):
    """As beside a rank whose so many advantages have mean 0 and standard deviation 1."""

    def gather(self, vector: Tensor) -> Tensor:
        if len(vector) != 3:
            return super().gather(vector)
        return torch.stack((vector, torch.tensor([1e12, 0.0, 1e12], dtype=vector.dtype)))


def test_advantages_are_normalised_over_the_transitions_of_all_ranks(rollouts_of: RolloutsOf) -> None:
    found = []
    for normalizes, exchange in ((True, CrowdedExchange()), (False, SoloExchange()), (True, SoloExchange())):
        algo = algo_of(normalize_advantage=normalizes)
        learner = Learner(Appo(algo, SPEC, CPU, 1, exchange), algo)
        learner.update(rollouts_of(learner.policy))
        found.append(learner.tensors()["policy.actor.body.0.weight"].detach())
    crowded, as_they_are, alone = found
    assert torch.allclose(crowded, as_they_are, atol=1e-6)
    assert not torch.allclose(alone, as_they_are, atol=1e-4)


class Meeting:
    """The exchange of two learners in threads."""

    num_ranks = 2

    def __init__(self, own: int, table: list[Any], barrier: threading.Barrier) -> None:
        self._own, self._table, self._barrier = own, table, barrier

    def average(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            tensor.copy_(self.gather(tensor.detach()).mean(dim=0))

    def gather(self, vector: Tensor) -> Tensor:
        self._table[self._own] = vector.clone()
        self._barrier.wait()
        both = torch.stack(tuple(self._table))
        self._barrier.wait()
        return both


def learn_together(rollouts_of: RolloutsOf) -> list[Learner]:
    """Returns two ranks after two updates, each on different rollouts."""
    table, barrier = [None, None], threading.Barrier(2, timeout=30.0)
    meetings = [Meeting(own, table, barrier) for own in (0, 1)]
    algo = algo_of(normalize_obs=True, lr_schedule="kl_adaptive", max_grad_norm=0.5)
    learners = [Learner(Appo(algo, SPEC, CPU, 1, meeting), algo) for meeting in meetings]

    def learn(own: int) -> None:
        for seed in range(2):
            learners[own].update(rollouts_of(learners[own].policy, seed=2 * seed + own))

    threads = [threading.Thread(target=learn, args=(own,)) for own in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return learners


@pytest.mark.promise("ranks-together")
def test_two_ranks_stay_bitwise_equal_and_normalise_with_the_rows_of_both(rollouts_of: RolloutsOf) -> None:
    first, second = (learner.tensors() for learner in learn_together(rollouts_of))
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    assert float(first["policy.normalizer.count"]) == 4 * NUM_VALID
    assert float(first["critic.normalizer.count"]) == 4 * NUM_VALID
