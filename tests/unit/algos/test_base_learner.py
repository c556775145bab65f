from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from offpolicy.algos.base_learner import BaseLearner, LearnerState, MetricSums, Seeds, TensorGroups
from offpolicy.algos.optim import DivergenceGuard, GuardedAdam
from offpolicy.algos.registry import make_learner
from offpolicy.config.sections import AlgoConfig
from offpolicy.errors import CheckpointError
from offpolicy.nets.normalizer import RunningMoments
from offpolicy.types import Batch, Batches, SpaceSpec

LearnerOf = Callable[..., BaseLearner]
BatchOf = Callable[..., Batch]

both = pytest.mark.parametrize("name", ["sac", "td3"])


def run(learner: BaseLearner, batch_of: BatchOf, first: int, last: int) -> None:
    for seed in range(first, last):
        batch = batch_of(seed)
        learner.update(Batches((batch,), batch.obs))


def assert_same(left: LearnerState, right: LearnerState) -> None:
    assert left.numbers == right.numbers
    assert left.tensors.keys() == right.tensors.keys()
    different = [name for name, tensor in left.tensors.items() if not torch.equal(tensor, right.tensors[name])]
    assert different == []


@both
def test_a_restored_learner_continues_bit_for_bit(name: str, learner_of: LearnerOf, batch_of: BatchOf) -> None:
    whole = learner_of(name, policy_delay=2, normalize_obs=True)
    run(whole, batch_of, 0, 5)
    restored = learner_of(name, seed=99, policy_delay=2, normalize_obs=True)
    restored.load_state(whole.state())
    run(whole, batch_of, 5, 10)
    run(restored, batch_of, 5, 10)
    assert_same(restored.state(), whole.state())
    assert restored.num_updates == 10
    assert torch.equal(restored.policy.act(torch.ones(2, 3)), whole.policy.act(torch.ones(2, 3)))


@both
@pytest.mark.parametrize(
    "dropped", ["generator", "critic_optimizer.num_steps", "critic_optimizer.exp_avg_sq.first.0.bias"]
)
def test_a_learner_restored_without_a_part_continues_differently(
    name: str, dropped: str, learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    whole, restored = learner_of(name), learner_of(name)
    fresh = whole.state().tensors[dropped]
    run(whole, batch_of, 0, 5)
    state = whole.state()
    state.tensors[dropped] = fresh
    restored.load_state(state)
    run(whole, batch_of, 5, 6)
    run(restored, batch_of, 5, 6)
    weight = "critic.first.0.bias"
    assert not torch.equal(restored.state().tensors[weight], whole.state().tensors[weight])


@both
def test_a_state_before_the_first_update_restores_too(name: str, learner_of: LearnerOf) -> None:
    source, restored = learner_of(name, seed=1), learner_of(name, seed=2)
    restored.load_state(source.state())
    assert_same(restored.state(), source.state())


@both
def test_a_state_is_a_copy(name: str, learner_of: LearnerOf, batch_of: BatchOf) -> None:
    learner = learner_of(name)
    state, later = learner.state(), learner.state()
    run(learner, batch_of, 0, 3)
    assert_same(state, later)


@both
def test_a_state_holds_plain_cpu_tensors_that_share_no_memory(name: str, learner_of: LearnerOf) -> None:
    tensors = learner_of(name, normalize_obs=True).state().tensors
    assert all(type(tensor) is torch.Tensor and not tensor.requires_grad for tensor in tensors.values())
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == len(tensors)


def test_a_missing_tensor_is_named_and_nothing_is_changed(learner_of: LearnerOf, batch_of: BatchOf) -> None:
    source, learner = learner_of("sac", seed=1), learner_of("sac", seed=2)
    before, state = learner.state(), source.state()
    del state.tensors["log_alpha"]
    with pytest.raises(CheckpointError, match="no tensor log_alpha"):
        learner.load_state(state)
    assert_same(learner.state(), before)


def test_a_tensor_of_another_shape_is_named(learner_of: LearnerOf) -> None:
    state = learner_of("sac", hidden_dims=(8,)).state()
    with pytest.raises(CheckpointError, match=r"policy.actor.body.0.weight is torch.float32 \(8, 3\).*\(16, 3\)"):
        learner_of("sac").load_state(state)


def test_a_normaliser_that_the_learner_lacks_is_named(learner_of: LearnerOf) -> None:
    state = learner_of("sac", normalize_obs=True).state()
    with pytest.raises(CheckpointError, match=r"policy.normalizer.count that this learner does not know"):
        learner_of("sac").load_state(state)


def test_a_missing_number_is_named(learner_of: LearnerOf) -> None:
    state = learner_of("td3").state()
    del state.numbers["num_updates"]
    with pytest.raises(CheckpointError, match="no number num_updates"):
        learner_of("td3").load_state(state)


def test_the_state_of_another_algorithm_is_refused(learner_of: LearnerOf) -> None:
    with pytest.raises(CheckpointError, match=r"policy.actor.body.2.weight is torch.float32 \(4, 16\)"):
        learner_of("td3").load_state(learner_of("sac").state())


def test_weights_and_updates_draw_from_different_streams() -> None:
    seeds = Seeds(0)
    with seeds.initial_weights():
        weights = torch.randn(4)
    assert not torch.equal(weights, torch.randn(4, generator=seeds.generator(torch.device("cpu"))))


def test_groups_follow_the_types_of_modules_not_their_names() -> None:
    odd = nn.ModuleDict({"normalizer": nn.Linear(1, 1), "optimizer": RunningMoments(1)})
    adam = GuardedAdam({"w": nn.Parameter(torch.zeros(1))}, torch.tensor(0.1), DivergenceGuard(torch.device("cpu")))
    groups = TensorGroups.of({"net": odd}, {"adam": adam})
    assert list(groups.networks) == ["net.normalizer.weight", "net.normalizer.bias"]
    assert list(groups.normalizers) == ["net.optimizer.mean", "net.optimizer.var", "net.optimizer.count"]
    assert list(groups.optimizers) == ["adam.num_steps", "adam.exp_avg.w", "adam.exp_avg_sq.w", "adam.step_size"]


@pytest.mark.parametrize("name", ["sac", "flashsac"])
def test_ranks_that_step_by_themselves_share_the_temperature(name: str) -> None:
    spec = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
    algo = AlgoConfig(name=name, hidden_dims=(4,))
    assert "log_alpha" in make_learner(algo, spec, torch.device("cpu"), 1, average_every=4).shared_tensors()


@pytest.mark.parametrize("name", ["sac", "td3", "appo"])
def test_ranks_that_step_by_themselves_share_networks_and_statistics_only(name: str) -> None:
    algo = AlgoConfig(name=name, hidden_dims=(4,), normalize_obs=True)
    spec = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
    learner = make_learner(algo, spec, torch.device("cpu"), 1, average_every=4)
    own = learner.start_tensors().keys() - learner.shared_tensors().keys()
    assert {key.partition(".")[0].removeprefix("actor_") for key in own} <= {
        *("diverged", "optimizer", "critic_optimizer", "alpha_optimizer")
    }
    assert "policy.normalizer.mean" in learner.shared_tensors()


def test_an_averaging_makes_another_policy_also_after_an_update_without_an_actor_step(batch_of: BatchOf) -> None:
    algo = AlgoConfig(name="td3", hidden_dims=(4,), policy_delay=3)
    spec = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
    learner, counts = make_learner(algo, spec, torch.device("cpu"), 1, average_every=2), list[int]()
    for seed in range(3):
        learner.update(Batches((batch_of(seed),), None))
        counts.append(learner.policy_changes)
    for _ in range(2):
        learner.settle()
        counts.append(learner.policy_changes)
    assert counts == [0, 1, 2, 3, 3]  # nothing, an averaging, an actor step, an averaging, nothing


GROUPS = {"critic": ("critic_loss", "q_mean"), "actor": ("actor_loss",)}


def metric_sums() -> MetricSums:
    return MetricSums(GROUPS, torch.device("cpu"))


def test_totals_are_sums_and_counts_per_name() -> None:
    metrics = metric_sums()
    metrics.add("critic", (torch.tensor(1.0), torch.tensor(10.0)))
    metrics.add("critic", (torch.tensor(2.0), torch.tensor(20.0)))
    metrics.add("actor", (torch.tensor(-5.0),))
    totals = metrics.totals()
    assert totals.names == ("critic_loss", "q_mean", "actor_loss")
    assert totals.sums.tolist() == [3.0, 30.0, -5.0]
    assert totals.counts.tolist() == [2.0, 2.0, 1.0]


def test_groups_that_are_measured_together_are_added_as_one_by_one() -> None:
    metrics = metric_sums()
    critic, actor = (torch.tensor(1.0), torch.tensor(10.0)), (torch.tensor(-5.0),)
    metrics.add_all({"critic": critic, "actor": actor})
    metrics.add_all({"critic": critic})
    metrics.add_all({"actor": actor, "critic": critic})
    totals = metrics.totals()
    assert totals.sums.tolist() == [3.0, 30.0, -10.0]
    assert totals.counts.tolist() == [3.0, 3.0, 2.0]


def test_totals_do_not_change_afterwards() -> None:
    metrics = metric_sums()
    totals = metrics.totals()
    metrics.add("actor", (torch.tensor(1.0),))
    assert totals.sums.tolist() == [0.0, 0.0, 0.0]
    assert totals.counts.tolist() == [0.0, 0.0, 0.0]


def test_a_small_value_is_not_lost_beside_a_large_sum() -> None:
    metrics = metric_sums()
    metrics.add("actor", (torch.tensor(2.0**30),))
    metrics.add("actor", (torch.tensor(0.25),))
    assert float(metrics.totals().sums[2]) == 2.0**30 + 0.25


@both
def test_a_learner_that_begins_with_anothers_networks_keeps_its_own_optimisers_and_counters(
    name: str, learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    source = learner_of(name, normalize_obs=True)
    run(source, batch_of, 0, 5)
    begun = learner_of(name, seed=99, normalize_obs=True)
    before, given = begun.state(), source.state()
    begun.adopt(given.tensors)
    after = begun.state()
    assert after.numbers == before.numbers
    fresh = ("_optimizer.", "log_alpha", "generator", "metrics.", "diverged")
    for key, tensor in after.tensors.items():
        expected = before if any(part in key for part in fresh) else given
        assert torch.equal(tensor, expected.tensors[key]), key
    assert not torch.equal(given.tensors["policy.normalizer.mean"], before.tensors["policy.normalizer.mean"])


def test_networks_of_another_shape_are_refused_and_change_nothing(learner_of: LearnerOf) -> None:
    begun, other = learner_of("sac"), learner_of("sac", hidden_dims=(8,))
    before = begun.state()
    with pytest.raises(CheckpointError, match="learner state"):
        begun.adopt(other.state().tensors)
    assert_same(begun.state(), before)
