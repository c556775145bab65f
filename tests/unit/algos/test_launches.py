"""What an update asks of the device: few kernels, no answer to the host, and nothing that its state does not say."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from offpolicy.algos.base_learner import BaseLearner
from offpolicy.algos.registry import make_learner
from offpolicy.config.sections import AlgoConfig
from offpolicy.types import Batch, Batches, SpaceSpec

# So many observations that the CPU makes the gradient of the first layer with one kernel, as CUDA does.
SPEC = SpaceSpec(obs_dim=80, action_dim=6, action_low=(-1.0,) * 6, action_high=(1.0,) * 6)
VIEWS = ("empty", "new_empty", "split", "chunk", "broadcast_tensors", "_unsafe_view", "unbind")  # or memory alone
HOST_READS = ("_local_scalar_dense", "nonzero", "equal", "item", "is_nonzero")
LAUNCHES = {"sac": 105, "td3": 85, "flashsac": 499}  # 201 and 118 with one kernel per network and equation

both = pytest.mark.parametrize("name", ["sac", "td3"])
replayed = pytest.mark.parametrize("name", ["sac", "td3", "flashsac"])


def learner_of(name: str, **algo: Any) -> BaseLearner:
    config = AlgoConfig(**{"name": name, "policy_delay": 1, "products": "blas", **algo})
    return make_learner(config, SPEC, torch.device("cpu"), seed=1)


def batch_of(seed: int, rows: int = 64) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    obs, action, next_obs = (torch.randn((rows, n), generator=generator) for n in (80, 6, 80))
    reward = torch.randn(rows, generator=generator)
    return Batch(obs, action.tanh(), reward, next_obs, torch.zeros(rows), torch.full((rows,), 0.99))


class Operations(TorchDispatchMode):
    """Counts the operations that would be kernels on a device, and notes how much memory their results take anew."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.fresh: Counter[str] = Counter()  # greatest result in new memory, by operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = {t.untyped_storage().data_ptr() for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() in before:
            if func._schema.is_mutable:  # a view launches nothing
                self.launches[name] += 1
        else:
            self.launches[name] += not name.startswith(VIEWS)
            if isinstance(result, torch.Tensor):
                self.fresh[name] = max(self.fresh[name], result.numel())
        return result


def operations_of_an_update(name: str, **algo: Any) -> Operations:
    """Those of the fifth update."""
    learner = learner_of(name, **algo)
    *before, last = (Batches((batch_of(seed),), None) for seed in range(5))
    for batches in before:  # the first one finds its memory
        learner.update(batches)
    with Operations() as operations:
        learner.update(last)
    return operations


@replayed
def test_an_update_with_an_actor_step_launches_few_kernels(name: str) -> None:

    launches = operations_of_an_update(name).launches
    assert launches.total() <= LAUNCHES[name], launches.most_common()


class HostReads(TorchDispatchMode):
    """Refuses what makes the host wait for the device, or branch on what it computed."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in HOST_READS, func
        return func(*args, **(kwargs or {}))


@both
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"policy_delay": 2},
        {"critic_layer_norm": True, "max_grad_norm": 1.0},
        {"precision": "bf16"},
        {"compile": "graph"},
    ],
    ids=str,
)
def test_no_update_reads_a_number_back(name: str, options: dict[str, Any]) -> None:
    learner = learner_of(name, **options)
    with HostReads():
        learner.update(Batches((batch_of(0), batch_of(1)), None))
        with pytest.raises(AssertionError, match="_local_scalar_dense"):
            learner.has_diverged()


@pytest.mark.parametrize(
    ("name", "precision"), [("sac", "fp32"), ("sac", "bf16"), ("td3", "fp32"), ("td3", "bf16"), ("flashsac", "fp32")]
)
def test_an_update_is_a_function_of_the_state_alone(name: str, precision: str) -> None:
    """Whatever was in the memory that updates share, and whatever has been learnt before by the same objects."""
    learner, other = learner_of(name, precision=precision), learner_of(name, precision=precision)
    learner.update(Batches((batch_of(0),), None))
    start = copy.deepcopy(learner.state())
    ends = []
    for used in (learner, learner, other):
        used.load_state(start)
        used.update(Batches((batch_of(1), batch_of(2, rows=32), batch_of(3)), None))
        ends.append(used.state().tensors)
        used.update(Batches((batch_of(4, rows=48),), None))
    for end in ends[1:]:
        assert all(torch.equal(ends[0][key], end[key]) for key in end)
