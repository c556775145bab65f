"""Claims about every learner of replayed rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from offpolicy.algos.base_learner import BaseLearner
from offpolicy.algos.learners import CriticTrainer, TargetNetwork
from offpolicy.algos.optim import OptimizerStep, SoloExchange
from offpolicy.config.sections import AlgoConfig
from offpolicy.nets.critics import make_critic
from offpolicy.nets.policy import flat_size, flatten_into
from offpolicy.types import Batch, Batches, SpaceSpec

LearnerOf = Callable[..., BaseLearner]
BatchOf = Callable[..., Batch]

both = pytest.mark.parametrize("name", ["sac", "td3"])
NAN = torch.full((8,), float("nan"))


def mean_of_last(learner: BaseLearner, batch: Batch, metric: str) -> float:
    """The metric of one more update."""
    before = learner.read_metrics()
    learner.update(Batches((batch,), None))
    after, i = learner.read_metrics(), before.names.index(metric)
    assert after.counts[i] == before.counts[i] + 1
    return float(after.sums[i] - before.sums[i])


@both
def test_the_seed_alone_determines_the_learner(name: str, learner_of: LearnerOf, batch_of: BatchOf) -> None:
    learners = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        learners.append(learner_of(name, seed=5))
        learners[-1].update(Batches((batch_of(),), None))
    left, right = (learner.state().tensors for learner in learners)
    assert all(torch.equal(left[key], right[key]) for key in left)


@both
def test_another_seed_gives_other_weights(name: str, learner_of: LearnerOf) -> None:
    left, right = (learner_of(name, seed=seed).state().tensors for seed in (1, 2))
    assert not torch.equal(left["policy.actor.body.0.weight"], right["policy.actor.body.0.weight"])
    assert not torch.equal(left["generator"], right["generator"])


@both
def test_the_global_generator_is_neither_used_nor_moved(name: str, learner_of: LearnerOf, batch_of: BatchOf) -> None:
    batch, before = batch_of(), torch.random.get_rng_state()
    learner_of(name).update(Batches((batch,), None))
    assert torch.equal(torch.random.get_rng_state(), before)


@both
def test_one_gradient_update_per_batch(name: str, learner_of: LearnerOf, batch_of: BatchOf) -> None:
    learner = learner_of(name)
    learner.update(Batches((batch_of(0), batch_of(1), batch_of(2)), None))
    assert learner.num_updates == 3
    assert learner.read_metrics().counts[0] == 3


@pytest.mark.parametrize("name", ["sac", "td3", "flashsac"])
@pytest.mark.parametrize("options", [{}, {"policy_delay": 2}, {"policy_delay": 2, "normalize_obs": True}], ids=str)
@pytest.mark.parametrize("num_batches", [1, 3])
def test_every_change_of_the_policy_is_counted(
    name: str, options: dict[str, Any], num_batches: int, learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    """What is not counted is not published: the collectors would act with an older policy."""
    learner, counts = learner_of(name, **options), [0]
    before, after = (np.zeros(flat_size(learner.policy), np.float32) for _ in range(2))
    flatten_into(learner.policy, before)
    for step in range(6):
        batches = tuple(batch_of(10 * step + i) for i in range(num_batches))
        learner.update(Batches(batches, batches[0].obs))
        flatten_into(learner.policy, after)
        if learner.policy_changes == counts[-1]:
            np.testing.assert_array_equal(before, after)
        before[:] = after
        counts.append(learner.policy_changes)
    skips = options == {"policy_delay": 2} and num_batches == 1
    assert counts == ([0, 0, 1, 1, 2, 2, 3] if skips else [0, 1, 2, 3, 4, 5, 6])


@both
def test_terminated_rows_do_not_bootstrap(name: str, learner_of: LearnerOf, batch_of: BatchOf) -> None:
    batch = batch_of(terminated=torch.ones(8))
    target_q_mean = mean_of_last(learner_of(name), batch, "target_q_mean")
    assert target_q_mean == pytest.approx(float(batch.reward.mean()), rel=1e-6)


@both
def test_truncated_rows_bootstrap_with_the_discount_of_the_row(
    name: str, learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    def bootstrap(discount: float) -> float:
        batch = batch_of(reward=torch.zeros(8), discount=torch.full((8,), discount))
        return mean_of_last(learner_of(name), batch, "target_q_mean")

    assert bootstrap(0.5) != 0.0
    assert bootstrap(0.25) == pytest.approx(bootstrap(0.5) / 2, rel=1e-5)


@both
def test_rows_of_shape_b_1_are_refused(name: str, learner_of: LearnerOf, batch_of: BatchOf) -> None:
    with pytest.raises(ValueError, match=r"reward has shape \(8, 1\)"):
        learner_of(name).update(Batches((batch_of(reward=torch.zeros(8, 1)),), None))


@both
def test_no_network_keeps_a_gradient(name: str, learner_of: LearnerOf, batch_of: BatchOf) -> None:
    learner = learner_of(name)
    learner.update(Batches((batch_of(),), None))
    assert all(parameter.grad is None and parameter.requires_grad for parameter in learner.policy.parameters())


@both
def test_critic_learns_at_every_update_and_actor_at_every_second(
    name: str, learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    learner = learner_of(name, policy_delay=2)
    states = [learner.state().tensors]
    for seed in range(4):
        learner.update(Batches((batch_of(seed),), None))
        states.append(learner.state().tensors)

    def moved(key: str) -> list[bool]:
        return [not torch.equal(old[key], new[key]) for old, new in zip(states, states[1:], strict=False)]

    assert moved("critic.first.0.weight") == [True, True, True, True]
    assert moved("policy.actor.body.0.weight") == [False, True, False, True]


@both
def test_fresh_observations_are_counted_once_and_replayed_rows_never(
    name: str, learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    learner = learner_of(name, normalize_obs=True)
    learner.update(Batches((batch_of(0), batch_of(1)), torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])))
    learner.update(Batches((batch_of(2),), None))
    tensors = learner.state().tensors
    assert float(tensors["policy.normalizer.count"]) == 2.0
    assert tensors["policy.normalizer.mean"].tolist() == [2.0, 2.0, 2.0]


@both
def test_the_networks_see_normalised_observations(name: str, learner_of: LearnerOf, batch_of: BatchOf) -> None:
    fresh = 100.0 + 5.0 * torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    raw, normalised = learner_of(name, normalize_obs=True), learner_of(name)
    batch = batch_of(obs=fresh[:8], next_obs=fresh[8:16])
    scaled = [(obs - fresh.mean(dim=0)) / fresh.std(dim=0, correction=0) for obs in (batch.obs, batch.next_obs)]
    raw.update(Batches((batch,), fresh))
    normalised.update(Batches((batch._replace(obs=scaled[0], next_obs=scaled[1]),), fresh))
    assert raw.read_metrics().sums == pytest.approx(normalised.read_metrics().sums, rel=1e-3)


@pytest.mark.parametrize("name", ["sac", "td3", "flashsac"])
def test_max_grad_norm_clips_the_gradients_of_actor_and_critics(
    name: str, learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    learner = learner_of(name, max_grad_norm=1e-3, policy_delay=1)
    learner.update(Batches((batch_of(),), None))
    tensors = learner.state().tensors
    for network in ("actor", "critic"):
        moments = [tensors[key].flatten() for key in tensors if key.startswith(f"{network}_optimizer.exp_avg.")]
        assert float(torch.cat(moments).norm()) == pytest.approx(0.1 * 1e-3, rel=1e-2)  # a tenth of the only gradient


BAD_FIELDS = ["obs", "action", "reward", "next_obs", "discount"]


@both
@pytest.mark.parametrize("hidden_dims", [(16,), (64, 32)], ids=str)  # of the second biases and ReLU are one pass
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("field", BAD_FIELDS)
def test_a_bad_number_changes_no_parameter_and_trips_the_guard(  # noqa: PLR0913  # cases and fixtures
    name: str, field: str, number: float, hidden_dims: tuple[int, ...], learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    learner = learner_of(name, policy_delay=2, hidden_dims=hidden_dims)
    learner.update(Batches(tuple(batch_of(seed) for seed in range(3)), None))
    before = learner.state().tensors
    assert not learner.has_diverged()
    bad = getattr(batch_of(3), field).clone()
    bad[2] = number
    learner.update(Batches((batch_of(3, **{field: bad}), batch_of(4)), None))
    after = learner.state().tensors
    kept = ("policy.", "critic.", "log_alpha", "actor_optimizer.", "critic_optimizer.", "alpha_optimizer.")
    assert [key for key in before if key.startswith(kept) and not torch.equal(before[key], after[key])] == []
    assert all(bool(after[key].isfinite().all()) for key in after if key.startswith("target_"))
    assert learner.has_diverged()


@both
def test_a_bad_fresh_observation_trips_the_guard_and_spares_the_statistics(
    name: str, learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    learner = learner_of(name, normalize_obs=True)
    learner.update(Batches((batch_of(),), torch.ones(2, 3)))
    before = learner.state().tensors
    learner.update(Batches((batch_of(),), torch.tensor([[1.0, float("inf"), 1.0]])))
    after = learner.state().tensors
    assert learner.has_diverged()
    assert [key for key in before if key.startswith("policy.") and not torch.equal(before[key], after[key])] == []


class HostReads(TorchDispatchMode):
    """Counts the operations that wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(func) in ("aten._local_scalar_dense.default", "aten.nonzero.default", "aten.equal.default")
        return func(*args, **(kwargs or {}))


@both
def test_an_update_never_waits_for_the_device(name: str, learner_of: LearnerOf, batch_of: BatchOf) -> None:
    learner = learner_of(name, normalize_obs=True, max_grad_norm=1.0)
    with HostReads() as host_reads:
        learner.update(Batches((batch_of(0), batch_of(1)), torch.ones(4, 3)))
        assert host_reads.count == 0
        learner.has_diverged()
        assert host_reads.count == 1


CPU = torch.device("cpu")
SPEC = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
OBS, ACTION = torch.randn(4, 3), torch.randn(4, 2)


def trainer() -> CriticTrainer:
    algo = AlgoConfig(hidden_dims=(8,))
    return CriticTrainer(algo, make_critic(algo, SPEC), OptimizerStep(CPU, SoloExchange()))


def test_a_target_network_starts_equal_and_needs_no_gradient() -> None:
    source = nn.Linear(2, 1)
    target = TargetNetwork(source, tau=0.5)
    assert torch.equal(target.module.weight, source.weight)
    assert not any(parameter.requires_grad for parameter in target.module.parameters())
    assert all(parameter.requires_grad for parameter in source.parameters())


def test_a_target_network_follows_its_source() -> None:
    source = nn.Linear(1, 1, bias=False)
    target = TargetNetwork(source, tau=0.25)
    with torch.no_grad():
        source.weight.add_(4.0)
    start = target.module.weight.clone()
    target.follow()
    assert torch.allclose(target.module.weight, start + 1.0)


def test_target_values_carry_no_gradient_to_any_critic() -> None:
    assert not trainer().target_q(OBS, ACTION).requires_grad
