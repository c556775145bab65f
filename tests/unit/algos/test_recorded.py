"""Recorded and compiled updates make what updates kernel by kernel make."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

from offpolicy.algos.learners import ReplayLearner
from offpolicy.algos.recorded import CompiledUpdate, RecordedUpdate, Recorder
from offpolicy.algos.registry import make_learner
from offpolicy.config.schedules import Ramp
from offpolicy.config.sections import AlgoConfig
from offpolicy.types import Batch, Batches, SpaceSpec
from tests.unit.algos.tape import TapeRecorder

SPEC = SpaceSpec(obs_dim=5, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
CPU = torch.device("cpu")
FALLING = Ramp(start=1e-3, end=1e-4, over=100, begin=0)
OPTIONS: list[dict[str, Any]] = [
    {"name": "sac", "alpha_lr": FALLING, "target_entropy": Ramp(start=-1.0, end=-3.0, over=100, begin=0)},
    {"name": "sac", "policy_delay": 2, "normalize_obs": True, "max_grad_norm": 1.0},
    {"name": "sac", "precision": "bf16"},
    {"name": "td3", "policy_delay": 3, "critic_lr": FALLING},
    {"name": "td3", "critic_layer_norm": True, "precision": "fp32"},
    {"name": "flashsac", "actor_width": 8, "critic_width": 16, "num_bins": 11, "policy_delay": 2, "critic_lr": FALLING},
]


def learner_of(mode: str = "graph", **algo: Any) -> ReplayLearner:
    config = AlgoConfig(**{"hidden_dims": (16, 24), "actor_lr": FALLING, "compile": mode, **algo})
    learner = make_learner(config, SPEC, CPU, seed=3)
    assert isinstance(learner, ReplayLearner)
    return learner


def batch_of(seed: int, rows: int = 16) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    obs, action, next_obs = (torch.randn((rows, n), generator=generator) for n in (5, 2, 5))
    reward = torch.randn(rows, generator=generator)
    return Batch(obs, action.tanh(), reward, next_obs, torch.zeros(rows), torch.full((rows,), 0.99))


def recorded(learner: ReplayLearner) -> None:
    """Records the updates; the learner's state is as it was."""
    state = learner.state()
    update = RecordedUpdate(learner, TapeRecorder())
    update.prepare(batch_of(99))
    learner.load_state(state)
    learner.run_update = update


def train(learner: ReplayLearner, steps: range) -> None:
    for step in steps:
        rows = 12 if step % 10 == 9 else 16  # another shape now and then, as of a batch that was not recorded
        batch = batch_of(step, rows)
        learner.update(Batches((batch,), batch.obs, env_steps=step))


def assert_same(left: ReplayLearner, right: ReplayLearner) -> None:
    ours, theirs = left.state(), right.state()
    assert ours.numbers == theirs.numbers
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert [name for name in ours.tensors if not torch.equal(ours.tensors[name], theirs.tensors[name])] == []


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_replayed_updates_are_those_kernel_by_kernel_bit_for_bit(options: dict[str, Any]) -> None:
    """Over 100 updates with schedules, turns of the policy delay, statistics that move and batches of other shapes."""
    replayed, eager = learner_of(**options), learner_of(**options)
    recorded(replayed)
    for learner in (replayed, eager):
        train(learner, range(100))
    assert_same(replayed, eager)


@pytest.mark.parametrize("mode", ["graph", "auto"])
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_a_mode_changes_no_bit_on_a_cpu(mode: str, name: str) -> None:
    """Step sizes, which are tensors where updates may be replayed, are read as the numbers are."""
    other, off = learner_of(mode, name=name, actor_lr=3e-4), learner_of("off", name=name, actor_lr=3e-4)
    for learner in (other, off):
        train(learner, range(30))
    assert_same(other, off)


def test_a_nan_stops_replayed_updates_as_it_stops_others() -> None:
    learner = learner_of(name="sac")
    recorded(learner)
    train(learner, range(3))
    before = learner.state().tensors
    bad = batch_of(3)
    bad.reward[4] = float("nan")
    learner.update(Batches((bad,), None))
    learner.update(Batches((batch_of(4),), None))
    assert learner.has_diverged()
    after = learner.state().tensors
    assert all(torch.equal(before[key], after[key]) for key in before if key.startswith(("policy.", "critic.")))


def test_a_cpu_cannot_record() -> None:
    with pytest.raises(RuntimeError, match="captured on CUDA only, and the device is cpu"):
        Recorder(CPU)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch, about its own code
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs a C++ compiler")
@pytest.mark.parametrize(
    "options",
    [
        {"name": "sac"},
        {"name": "td3"},
        {"name": "sac", "hidden_dims": (128, 160), "products": "onednn"},
    ],
    ids=str,
)
def test_compiled_updates_give_the_same_numbers(options: dict[str, Any]) -> None:
    """To 1e-5 of a parameter after ten updates: fused sums are in another order."""
    compiled, eager = learner_of("reduce-overhead", **options), learner_of("reduce-overhead", **options)
    state = compiled.state()
    update = CompiledUpdate(compiled)
    update.prepare(batch_of(99))
    compiled.load_state(state)
    compiled.run_update = update
    for learner in (compiled, eager):
        for step in range(10):
            learner.update(Batches((batch_of(step),), None, env_steps=step))
    ours, theirs = compiled.state(), eager.state()
    assert ours.numbers == theirs.numbers
    assert torch.equal(ours.tensors["generator"], theirs.tensors["generator"])
    for key in ours.tensors.keys() - {"generator", "metrics.sums"}:
        assert torch.allclose(ours.tensors[key], theirs.tensors[key], rtol=1e-4, atol=1e-5), key
