from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from offpolicy.algos.base_learner import BaseLearner, LearnerState, MetricSums
from offpolicy.algos.registry import make_learner
from offpolicy.config.sections import AlgoConfig
from offpolicy.errors import CheckpointError
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


@pytest.mark.promise("exact-resume")
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
def test_a_state_is_a_copy(name: str, learner_of: LearnerOf, batch_of: BatchOf) -> None:
    learner = learner_of(name)
    state, later = learner.state(), learner.state()
    run(learner, batch_of, 0, 3)
    assert_same(state, later)


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
