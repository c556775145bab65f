"""Claims about every learner."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from offpolicy.algos.learner import Learner, LearnerState
from offpolicy.errors import CheckpointError
from offpolicy.nets.policy import flat_size, flatten_into
from offpolicy.types import Batch, Batches

LearnerOf = Callable[..., Learner]
BatchOf = Callable[..., Batch]

both = pytest.mark.parametrize("name", ["sac", "td3"])


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
def test_the_global_generator_is_neither_used_nor_moved(name: str, learner_of: LearnerOf, batch_of: BatchOf) -> None:
    batch, before = batch_of(), torch.random.get_rng_state()
    learner_of(name).update(Batches((batch,), None))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["sac", "td3", "flashsac"])
@pytest.mark.parametrize("options", [{"policy_delay": 2}, {"policy_delay": 2, "normalize_obs": True}], ids=str)
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


BAD_FIELDS = [(field, math.nan) for field in ("obs", "action", "reward", "next_obs", "discount")] + [("obs", math.inf)]


@pytest.mark.promise("nan-never-trained")
@both
@pytest.mark.parametrize(("field", "number"), BAD_FIELDS)
def test_a_bad_number_changes_no_parameter_and_trips_the_guard(
    name: str, field: str, number: float, learner_of: LearnerOf, batch_of: BatchOf
) -> None:
    learner = learner_of(name, policy_delay=2, hidden_dims=(64, 32))
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


# State


def run(learner: Learner, batch_of: BatchOf, first: int, last: int) -> None:
    for seed in range(first, last):
        batch = batch_of(seed)
        learner.update(Batches((batch,), batch.obs))


def assert_same(left: LearnerState, right: LearnerState) -> None:
    assert left.numbers == right.numbers
    assert left.tensors.keys() == right.tensors.keys()
    different = [name for name, tensor in left.tensors.items() if not torch.equal(tensor, right.tensors[name])]
    assert different == []


@pytest.mark.promise("exact-resume")
@pytest.mark.parametrize("name", ["sac", "td3", "flashsac"])
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


def test_a_missing_tensor_is_named_and_nothing_is_changed(learner_of: LearnerOf, batch_of: BatchOf) -> None:
    source, learner = learner_of("sac", seed=1), learner_of("sac", seed=2)
    before, state = learner.state(), source.state()
    del state.tensors["log_alpha"]
    with pytest.raises(CheckpointError, match="no tensor log_alpha"):
        learner.load_state(state)
    assert_same(learner.state(), before)


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


# What an update asks of the device


HOST_READS = ("_local_scalar_dense", "nonzero", "equal", "item", "is_nonzero")


class HostReads(TorchDispatchMode):
    """Refuses what makes the host wait for the device, or branch on what it computed."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in HOST_READS, func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kernels", ["auto", "textbook"])
@pytest.mark.parametrize("name", ["sac", "td3", "flashsac"])
def test_no_update_reads_a_number_back(name: str, kernels: str, learner_of: LearnerOf, batch_of: BatchOf) -> None:
    learner = learner_of(name, kernels=kernels, max_grad_norm=1.0, policy_delay=2, normalize_obs=True)
    with HostReads():
        learner.update(Batches((batch_of(0), batch_of(1)), batch_of(0).obs))
        with pytest.raises(AssertionError, match="_local_scalar_dense"):
            learner.has_diverged()
