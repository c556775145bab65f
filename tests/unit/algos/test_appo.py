"""APPO: the effect of a batch of rollouts on networks, normalisers and metrics."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from offpolicy.algos.appo import Appo, Samples
from offpolicy.algos.base_learner import BaseLearner
from offpolicy.algos.learners import Absorb, RolloutLearner
from offpolicy.algos.optim import SoloExchange
from offpolicy.algos.vtrace import RatioBounds, Steps, Targets, gae, vtrace
from offpolicy.config.schedules import Ramp
from offpolicy.config.sections import AlgoConfig
from offpolicy.nets.actors import CategoricalActor, GaussianActor
from offpolicy.nets.distributions import PolicyDistribution, kl_divergence
from offpolicy.nets.normalizer import block_moments, weighted_moments
from offpolicy.nets.policy import Policy
from offpolicy.protocols import Exchange
from offpolicy.types import Rollouts, SpaceSpec

LearnerOf = Callable[..., BaseLearner]
RolloutsOf = Callable[..., Rollouts]

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


def metrics(learner: BaseLearner) -> dict[str, float]:
    """The means so far."""
    totals = learner.read_metrics()
    return dict(zip(totals.names, (totals.sums / totals.counts).tolist(), strict=True))


def moved(learner: BaseLearner, rollouts: Rollouts) -> dict[str, float]:
    """By how much an update moves every tensor of the state."""
    before = learner.state().tensors
    learner.update(rollouts)
    after = learner.state().tensors
    return {name: float((after[name].double() - before[name].double()).abs().max()) for name in before}


def learn(algorithm: Appo, rollouts: Rollouts) -> None:
    """One update as a learner makes it."""
    RolloutLearner(algorithm, SoloExchange()).update(rollouts)


def assert_equal(left: BaseLearner, right: BaseLearner) -> None:
    """The same state, bit for bit."""
    ours, theirs = left.state(), right.state()
    assert ours.numbers == theirs.numbers
    assert [name for name in ours.tensors if not torch.equal(ours.tensors[name], theirs.tensors[name])] == []


class Watched(Appo):
    """Records the inputs of the targets, and how many rows the normalisers hold then and at every step."""

    log_ratio: Tensor
    seen: tuple[float, float]  # observations, value targets
    seen_at_step: tuple[float, float]

    def _targets(self, rollouts: Rollouts, value: Tensor, log_ratio: Tensor) -> Targets:
        self.log_ratio = log_ratio
        self.seen = self._counts()
        return super()._targets(rollouts, value, log_ratio)

    def _step(self, batch: Samples) -> Tensor:
        self.seen_at_step = self._counts()
        return super()._step(batch)

    def _counts(self) -> tuple[float, float]:
        obs, value = self.policy.normalizer, self._net.critic.normalizer
        assert obs is not None
        assert value is not None
        return float(obs.count), float(value.count)


class AbsorbsFirst(Watched):
    """Seeded bug: the observation normaliser sees the rollouts before they are learnt from."""

    def learn(self, rollouts: Rollouts, absorb: Absorb) -> int:
        rows = rollouts.obs[:-1].flatten(0, 1)
        self.normalizers()["obs"].absorb(weighted_moments(rows, rollouts.is_valid.flatten()))
        return super().learn(rollouts, absorb)


def ratio_error(kind: type[Watched], rollouts_of: RolloutsOf) -> float:
    """Returns the greatest |ratio - 1| on rollouts of the current policy, over three updates."""
    algorithm = kind(algo_of(normalize_obs=True, lr=1e-2), SPEC, CPU, 1, SoloExchange())
    learner, errors = RolloutLearner(algorithm, SoloExchange()), list[float]()
    for seed in range(3):
        learner.update(rollouts_of(learner.policy, seed))
        errors.append(float((algorithm.log_ratio.exp() - 1.0).abs().max()))
    return max(errors)


def test_every_iteration_makes_another_policy(learner_of: LearnerOf, rollouts_of: RolloutsOf) -> None:
    learner = learner_of("appo")
    for count in (1, 2):
        learner.update(rollouts_of(learner.policy, count))
        assert learner.policy_changes == count


def test_the_ratio_at_zero_lag_is_one(rollouts_of: RolloutsOf) -> None:
    assert ratio_error(Watched, rollouts_of) < 1e-5


def test_a_normaliser_that_moves_before_learning_is_caught_by_the_ratio(rollouts_of: RolloutsOf) -> None:
    assert ratio_error(AbsorbsFirst, rollouts_of) > 1e-2


def test_observations_are_absorbed_after_learning_and_value_targets_before(rollouts_of: RolloutsOf) -> None:
    algorithm = Watched(algo_of(normalize_obs=True), SPEC, CPU, 1, SoloExchange())
    learner = RolloutLearner(algorithm, SoloExchange())
    for seed in range(3):
        learner.update(rollouts_of(learner.policy, seed))
        assert algorithm.seen == (seed * NUM_VALID, seed * NUM_VALID)
        assert algorithm.seen_at_step == (seed * NUM_VALID, (seed + 1) * NUM_VALID)


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


def test_without_normalisation_there_is_no_normaliser(learner_of: LearnerOf, rollouts_of: RolloutsOf) -> None:
    learner = learner_of("appo", normalize_value=False, **SHORT)
    learner.update(rollouts_of(learner.policy))
    assert [name for name in learner.state().tensors if "normalizer" in name] == []


def test_targets_are_of_returns_and_the_critic_learns_them_in_its_units(rollouts_of: RolloutsOf) -> None:
    algorithm = Appo(algo_of(gamma=0.0, normalize_advantage=False), SPEC, CPU, 1, SoloExchange())
    algorithm.normalizers()["value"].absorb(block_moments(torch.tensor([[100.0], [104.0]])))  # mean 102, std 2
    rollouts = rollouts_of(algorithm.policy)
    moments = dict[str, Tensor]()
    samples = algorithm._prepare(rollouts, moments.__setitem__)  # as where ranks step by themselves: the units stay
    is_valid, reward = samples.weight == 1.0, rollouts.reward.flatten()
    value = 102.0 + 2.0 * samples.old_value
    assert torch.allclose(moments["value"], block_moments(reward[is_valid][:, None]), atol=1e-4)
    assert torch.allclose(samples.value_target[is_valid], (reward[is_valid] - 102.0) / 2.0, atol=1e-4)
    assert torch.allclose(samples.advantage[is_valid], (reward - value)[is_valid], atol=1e-4)


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


def test_updates_are_epochs_times_minibatches(learner_of: LearnerOf, rollouts_of: RolloutsOf) -> None:
    learner = learner_of("appo", epochs=3, num_minibatches=4)
    for seed in range(2):
        learner.update(rollouts_of(learner.policy, seed))
    totals = learner.read_metrics()
    counts = dict(zip(totals.names, totals.counts, strict=True))
    assert (learner.num_updates, counts["actor_loss"], counts["explained_variance"]) == (24, 24, 2)
    assert float(learner.state().tensors["optimizer.num_steps"]) == 24.0


class Picked(Appo):
    """Records an identifier of each row of every minibatch."""

    picked: tuple[list[float], ...] = ()

    def _step(self, batch: Samples) -> Tensor:
        self.picked = (*self.picked, batch.log_prob.tolist())
        return super()._step(batch)


def test_each_epoch_shuffles_all_rows_into_equal_minibatches(rollouts_of: RolloutsOf) -> None:
    algorithm = Picked(algo_of(), SPEC, CPU, 1, SoloExchange())
    rollouts = rollouts_of(algorithm.policy)
    learn(algorithm, rollouts)
    assert [len(part) for part in algorithm.picked] == [8] * 4 * 3
    in_order = rollouts.log_prob.flatten().tolist()
    orders = [sum(algorithm.picked[first : first + 4], []) for first in (0, 4, 8)]
    assert [sorted(order) for order in orders] == [sorted(in_order)] * 3
    assert orders[0] != orders[1] != orders[2] != in_order


def test_the_seed_alone_determines_the_learner(learner_of: LearnerOf, rollouts_of: RolloutsOf) -> None:
    learners = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        learners.append(learner_of("appo", seed=5, normalize_obs=True, **SHORT))
        before = torch.random.get_rng_state()
        learners[-1].update(rollouts_of(learners[-1].policy))
        assert torch.equal(torch.random.get_rng_state(), before)
    assert_equal(*learners)


@pytest.mark.parametrize("spec", [SPEC, DISCRETE], ids=["box", "discrete"])
def test_another_seed_gives_other_weights(spec: SpaceSpec, learner_of: LearnerOf) -> None:
    left, right = (learner_of("appo", seed=seed, spec=spec).state().tensors for seed in (1, 2))
    for name in ("policy.actor.body.0.weight", "critic.body.0.weight", "generator"):
        assert not torch.equal(left[name], right[name])


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


def mean_after(bounds_coef: float, rollouts_of: RolloutsOf) -> float:
    """The mean action after some steps from 3."""
    algorithm = Appo(algo_of(bounds_coef=bounds_coef, lr=1e-2), SPEC, CPU, 1, SoloExchange())
    assert isinstance(algorithm.policy.actor, GaussianActor)
    torch.nn.init.constant_(algorithm.policy.actor.body[-1].bias, 3.0)
    rollouts = rollouts_of(algorithm.policy)
    learn(algorithm, rollouts)
    return float(algorithm.policy.actor.distribution(rollouts.obs).mean.detach().mean())


def test_the_bounds_loss_pulls_the_means_inwards(rollouts_of: RolloutsOf) -> None:
    assert mean_after(10.0, rollouts_of) < mean_after(0.0, rollouts_of) - 0.05


def critic_moves(value_clip: float | None, rollouts_of: RolloutsOf) -> float:
    """The mean change of the values by many steps towards rewards of 5."""
    algo = algo_of(value_clip=value_clip, lr=1e-3, epochs=20, gamma=0.0, normalize_value=False)
    algorithm = Appo(algo, SPEC, CPU, 1, SoloExchange())
    rollouts = rollouts_of(algorithm.policy, reward=torch.full((8, 4), 5.0))
    before = algorithm._net.value(rollouts.obs).detach()
    learn(algorithm, rollouts)
    return float((algorithm._net.value(rollouts.obs).detach() - before).abs().mean())


def test_the_value_clip_keeps_the_critic_near_its_old_value(rollouts_of: RolloutsOf) -> None:
    assert critic_moves(None, rollouts_of) > 1.0
    assert critic_moves(0.1, rollouts_of) < 0.5


@pytest.mark.parametrize(("progress", "moves"), [(1.0, False), (0.9, True)])
def test_the_linear_schedule_ends_at_a_step_of_zero(
    progress: float, moves: bool, learner_of: LearnerOf, rollouts_of: RolloutsOf
) -> None:
    learner = learner_of("appo", lr_schedule="linear", **SHORT)
    by = moved(learner, rollouts_of(learner.policy, progress=progress))
    assert (by["policy.actor.body.0.weight"] > 0.0, by["critic.body.0.weight"] > 0.0) == (moves, moves)
    assert metrics(learner)["learning_rate"] == pytest.approx(3e-4 * (1.0 - progress))


@pytest.mark.parametrize(("lr", "expected"), [(1e-5, 1e-5 * 1.5**3), (1e-2, 1e-2 / 1.5**3)])
def test_the_adaptive_schedule_changes_the_step_size_once_per_epoch(
    lr: float, expected: float, learner_of: LearnerOf, rollouts_of: RolloutsOf
) -> None:
    learner = learner_of("appo", lr=lr, lr_schedule="kl_adaptive", target_kl=1e-3, **SHORT)
    learner.update(rollouts_of(learner.policy))
    assert float(learner.state().tensors["optimizer.step_size"]) == pytest.approx(expected)


def test_metric_names(learner_of: LearnerOf) -> None:
    assert set(learner_of("appo").read_metrics().names) == {
        "actor_loss", "critic_loss", "entropy", "approx_kl", "clip_fraction",
        "rho_clip_fraction", "explained_variance", "value_mean", "learning_rate",
    }  # fmt: skip


def test_the_first_step_of_an_unmoved_policy_has_no_kl_and_clips_nothing(
    learner_of: LearnerOf, rollouts_of: RolloutsOf
) -> None:
    learner = learner_of("appo", lr=1e-2, **ONE_STEP)
    learner.update(rollouts_of(learner.policy))
    means = metrics(learner)
    assert (means["clip_fraction"], means["rho_clip_fraction"]) == (0.0, 0.0)
    assert means["approx_kl"] == pytest.approx(0.0, abs=1e-9)  # a step of its std alone would show as 2e-4
    assert means["entropy"] == pytest.approx(2 * 1.418939, rel=1e-6)
    assert means["actor_loss"] == pytest.approx(0.0, abs=1e-6)  # advantages of mean 0, ratios of 1


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


def test_a_higher_bound_of_rho_clips_less(learner_of: LearnerOf, rollouts_of: RolloutsOf) -> None:
    learner = learner_of("appo", rho_clip=2.0, **ONE_STEP)
    learner.update(aged(learner.policy, rollouts_of(learner.policy), 0.5))
    assert metrics(learner)["rho_clip_fraction"] == 0.0


@pytest.mark.parametrize(
    ("slope", "shift", "explained"),
    [(1.0, 0.0, 1.0), (1.0, 3.0, 1.0), (2.0, 0.0, 0.75), (-1.0, 0.0, -3.0)],
)
def test_explained_variance_has_known_values(
    slope: float, shift: float, explained: float, rollouts_of: RolloutsOf
) -> None:
    algorithm = Appo(algo_of(gamma=0.0, normalize_value=False), SPEC, CPU, 1, SoloExchange())
    first, *_, last = algorithm._net.critic.body
    with torch.no_grad():  # V(s) = max(s_0 + 20, 0) - 20
        first.weight.copy_(torch.eye(16, 3))
        first.bias.fill_(20.0)
        last.weight.copy_(torch.eye(1, 16))
        last.bias.fill_(-20.0)
    rollouts = rollouts_of(algorithm.policy)
    learn(algorithm, rollouts._replace(reward=slope * rollouts.obs[:-1, :, 0] + shift))  # with gamma 0 it is the target
    totals = algorithm.metrics.totals()
    assert totals.sums[totals.names.index("explained_variance")] == pytest.approx(explained, abs=1e-4)


class Beside:
    """An exchange with one other rank that always brings the same numbers."""

    num_ranks = 2

    def __init__(self, other: Tensor) -> None:
        self._other = other

    def average(self, tensors: Sequence[Tensor]) -> None:
        """As if the other had the same."""

    def gather(self, vector: Tensor) -> Tensor:
        return torch.stack((vector, self._other))


def normalized(exchange: Exchange) -> list[float]:
    """Returns the normalised advantages 1, 2, 3 and, in an autoreset row, 99."""
    algorithm = Appo(algo_of(), SPEC, CPU, 1, exchange)
    advantage = algorithm._normalized(torch.tensor([1.0, 2.0, 3.0, 99.0]), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    return advantage[:3].tolist()


def test_advantages_are_normalised_over_the_transitions() -> None:
    assert normalized(SoloExchange()) == pytest.approx([-(1.5**0.5), 0.0, 1.5**0.5])


def test_advantages_are_normalised_over_the_transitions_of_all_ranks() -> None:
    others = weighted_moments(torch.tensor([[5.0], [9.0], [77.0]]), torch.tensor([1.0, 1.0, 0.0]))
    assert normalized(Beside(others)) == pytest.approx([(x - 4.0) / 8.0**0.5 for x in (1.0, 2.0, 3.0)])


def test_advantages_stay_raw_without_normalize_advantage(rollouts_of: RolloutsOf) -> None:
    algorithm = Appo(algo_of(normalize_advantage=False), SPEC, CPU, 1, SoloExchange())
    assert algorithm._normalized(torch.tensor([1.0, 5.0]), torch.ones(2)).tolist() == [1.0, 5.0]


class BesideAnotherKl(Beside):
    """The other rank's policy has changed by 0.2 nats more."""

    def average(self, tensors: Sequence[Tensor]) -> None:
        if len(tensors) == 1:  # the losses and gradients of a step come together
            tensors[0].add_(0.1)


def test_the_step_size_adapts_to_the_mean_kl_of_all_ranks(rollouts_of: RolloutsOf) -> None:
    algo = algo_of(lr=1e-5, lr_schedule="kl_adaptive", normalize_advantage=False)
    algorithm = Appo(algo, SPEC, CPU, 1, BesideAnotherKl(torch.zeros(1)))
    learn(algorithm, rollouts_of(algorithm.policy))
    assert float(algorithm.tensor_groups().optimizers["optimizer.step_size"]) == pytest.approx(
        1e-5 / 1.5**3
    )  # alone it would grow


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


def learn_together(rollouts_of: RolloutsOf) -> list[RolloutLearner]:
    """Returns two ranks after two updates, each on different rollouts."""
    table, barrier = [None, None], threading.Barrier(2, timeout=30.0)
    meetings = [Meeting(own, table, barrier) for own in (0, 1)]
    algo = algo_of(normalize_obs=True, lr_schedule="kl_adaptive", max_grad_norm=0.5)
    learners = [RolloutLearner(Appo(algo, SPEC, CPU, 1, meeting), meeting) for meeting in meetings]

    def learn(own: int) -> None:
        for seed in range(2):
            learners[own].update(rollouts_of(learners[own].policy, seed=2 * seed + own))

    threads = [threading.Thread(target=learn, args=(own,)) for own in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return learners


def test_two_ranks_stay_bitwise_equal_and_normalise_with_the_rows_of_both(rollouts_of: RolloutsOf) -> None:
    first, second = (learner.shared_tensors() for learner in learn_together(rollouts_of))
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    assert float(first["policy.normalizer.count"]) == 4 * NUM_VALID
    assert float(first["critic.normalizer.count"]) == 4 * NUM_VALID


def test_value_coef_weighs_the_critics_gradient(learner_of: LearnerOf, rollouts_of: RolloutsOf) -> None:
    moments = []
    for value_coef in (0.5, 2.0):
        learner = learner_of("appo", value_coef=value_coef, **ONE_STEP)
        learner.update(rollouts_of(learner.policy))
        moments.append(learner.state().tensors["optimizer.exp_avg.critic.body.0.weight"])
    torch.testing.assert_close(moments[1], 4.0 * moments[0])
    assert float(moments[0].abs().max()) > 0.0


def test_max_grad_norm_clips_the_gradient(learner_of: LearnerOf, rollouts_of: RolloutsOf) -> None:
    learner = learner_of("appo", max_grad_norm=1e-3, **ONE_STEP)
    learner.update(rollouts_of(learner.policy))
    moments = [t.flatten() for name, t in learner.state().tensors.items() if name.startswith("optimizer.exp_avg.")]
    assert float(torch.cat(moments).norm()) == pytest.approx(0.1 * 1e-3, rel=1e-3)  # a tenth of the only gradient


@pytest.mark.parametrize("advantage", ["vtrace", "gae"])
def test_the_targets_are_those_of_the_options(advantage: str, rollouts_of: RolloutsOf) -> None:
    algo = algo_of(advantage=advantage, gamma=0.9, gae_lambda=0.5, rho_clip=2.0, trace_clip=1.2)
    algorithm = Appo(algo, SPEC, CPU, 1, SoloExchange())
    r, value, log_ratio = rollouts_of(algorithm.policy), torch.randn(9, 4), torch.full((8, 4), math.log(1.6))
    steps = Steps(value, r.reward, r.terminated, r.truncated, r.is_valid, log_ratio)
    wanted = vtrace(steps, 0.9, 0.5, RatioBounds(2.0, 1.2)) if advantage == "vtrace" else gae(steps, 0.9, 0.5)
    assert all(map(torch.equal, algorithm._targets(r, value, log_ratio), wanted))


def test_old_values_are_in_the_units_that_the_critic_learns_in(rollouts_of: RolloutsOf) -> None:
    algorithm = Appo(algo_of(), SPEC, CPU, 1, SoloExchange())
    rollouts = rollouts_of(algorithm.policy, reward=100.0 + 50.0 * torch.randn(8, 4))
    samples = algorithm._prepare(rollouts, lambda name, moments: algorithm.normalizers()[name].absorb(moments))
    torch.testing.assert_close(samples.old_value, algorithm._net.value(samples.obs), atol=1e-4, rtol=1e-4)


def test_a_ramp_of_lr_follows_the_env_steps_of_the_rollouts(learner_of: LearnerOf, rollouts_of: RolloutsOf) -> None:
    learner = learner_of("appo", lr=Ramp(start=1e-3, end=0.0, over=100), **ONE_STEP)
    learner.update(rollouts_of(learner.policy, env_steps=75))
    assert float(learner.state().tensors["optimizer.step_size"]) == pytest.approx(2.5e-4)


class FirstMoves(Appo):
    """The first minibatch of each epoch moves the policy, the others do not."""

    calls = 0

    def _step(self, batch: Samples) -> Tensor:
        self.calls += 1
        return torch.tensor(0.1 if self.calls % SHORT["num_minibatches"] == 1 else 0.0)


def test_the_step_size_adapts_to_the_mean_kl_of_the_minibatches(rollouts_of: RolloutsOf) -> None:
    algorithm = FirstMoves(algo_of(lr=1e-4, lr_schedule="kl_adaptive"), SPEC, CPU, 1, SoloExchange())
    learn(algorithm, rollouts_of(algorithm.policy))
    assert float(algorithm._lr.value) == pytest.approx(1e-4 / 1.5**3)  # a mean of 0.025 is above twice the target


@pytest.mark.parametrize("spec", [SPEC, DISCRETE], ids=["box", "discrete"])
def test_the_observation_of_an_autoreset_row_is_not_learnt_from(
    spec: SpaceSpec, learner_of: LearnerOf, rollouts_of: RolloutsOf
) -> None:
    learners = [learner_of("appo", spec=spec, ent_coef=1.0, bounds_coef=1.0) for _ in range(2)]
    first, second = (rollouts_of(learner.policy, spec=spec) for learner in learners)
    second.obs[5, 1] *= 1e4  # behind a terminated step: no value is taken of it either
    learners[0].update(first)
    learners[1].update(second)
    assert_equal(*learners)
