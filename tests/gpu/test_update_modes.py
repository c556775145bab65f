"""Updates captured as CUDA graphs, `algo.compile=graph`. Run with `make test-gpu` on a machine that has a CUDA device.

Not run on a GPU yet.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from offpolicy.algos.graph import GraphUpdate
from offpolicy.algos.learner import Learner
from offpolicy.algos.registry import make_learner
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.config.schedules import Ramp
from offpolicy.errors import ConfigError
from offpolicy.types import Batch, Batches, SpaceSpec
from tests.on_device import waits_refused

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # the first product of autograd's thread
]
SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6)
DISCRETE = SpaceSpec(17, 1, (0.0,), (3.0,), num_actions=4)
FALLING = Ramp(start=1e-3, end=1e-4, over=20, begin=0)
OPTIONS: list[dict[str, Any]] = [
    {"name": "sac", "actor_lr": FALLING, "target_entropy": Ramp(start=-3.0, end=-6.0, over=20, begin=0)},
    {"name": "sac", "policy_delay": 2, "normalize_obs": True, "max_grad_norm": 1.0},
    {"name": "sac", "critic_layer_norm": True}, {"name": "sac", "precision": "bf16"},
    {"name": "td3", "policy_delay": 2, "critic_lr": FALLING}, {"name": "flashsac", "policy_delay": 2},
    {"name": "sac", "spec": DISCRETE},
]  # fmt: skip


def device() -> torch.device:
    return torch.device("cuda", 0)


def learner_of(spec: SpaceSpec = SPEC, *, is_captured: bool = False, **algo: Any) -> Learner:
    learner = make_learner(AlgoConfig(**algo), spec, device(), seed=3)
    if is_captured:
        learner.run_update = GraphUpdate(learner, device())
    return learner


def batch_of(seed: int, spec: SpaceSpec = SPEC) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    obs, action, next_obs = (torch.randn((256, n), generator=rng).to(device()) for n in (17, spec.action_dim, 17))
    action = (3.0 * action.sigmoid()).round() if spec.num_actions else action.tanh()
    reward, zeros = torch.randn(256, generator=rng).to(device()), torch.zeros(256, device=device())
    return Batch(obs, action, reward, next_obs, zeros, zeros + 0.99)


def train(learner: Learner, steps: range, spec: SpaceSpec = SPEC) -> None:
    for step in steps:
        batch = batch_of(step, spec)
        learner.update(Batches((batch,), batch.obs, env_steps=step))


def assert_close(captured: Learner, eager: Learner, tolerance: float) -> None:
    """To float rounding: cuBLAS may choose other kernels on another stream."""
    ours, theirs = captured.state(), eager.state()
    assert ours.numbers == theirs.numbers
    assert torch.equal(ours.tensors["generator"], theirs.tensors["generator"])
    for name in ours.tensors.keys() - {"generator", "metrics.sums"}:
        torch.testing.assert_close(ours.tensors[name], theirs.tensors[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_captured_updates_equal_those_kernel_by_kernel(options: dict[str, Any]) -> None:
    """Over 20 updates, random numbers included."""
    captured, eager = learner_of(is_captured=True, **options), learner_of(**options)
    for learner in (captured, eager):
        train(learner, range(20), options.get("spec", SPEC))
    assert_close(captured, eager, 2e-2 if options.get("precision") == "bf16" else 1e-3)


def test_a_captured_learner_restored_from_a_checkpoint_goes_on_bit_for_bit() -> None:
    whole, broken = (learner_of(is_captured=True, name="sac", policy_delay=2) for _ in range(2))
    train(whole, range(15))
    broken.load_state(whole.state())
    for learner in (whole, broken):
        train(learner, range(15, 40))
    ours, theirs = whole.state().tensors, broken.state().tensors
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_a_nan_stops_captured_updates() -> None:
    learner = learner_of(is_captured=True, name="sac")
    train(learner, range(3))
    before = learner.state().tensors
    bad = batch_of(3)
    bad.reward[4] = float("nan")
    for batch in (bad, batch_of(4)):
        learner.update(Batches((batch,), None))
    assert learner.has_diverged()
    after = learner.state().tensors
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith(("policy.", "critic.")))


def test_a_launch_makes_the_host_wait_for_nothing() -> None:
    learner, batch = learner_of(is_captured=True, name="sac"), batch_of(0)
    learner.update(Batches((batch,), None))  # captures
    with waits_refused():
        for _ in range(5):
            learner.update(Batches((batch,), None))


def test_an_update_that_cannot_be_captured_ends_the_run_and_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(is_captured=True, name="sac")
    update_tensors = learner.update_tensors

    def waiting(raw: Batch, *, has_actor_step: bool) -> tuple[str, ...]:
        raw.reward.sum().item()  # waits for the device, which no graph can hold
        return update_tensors(raw, has_actor_step=has_actor_step)

    monkeypatch.setattr(learner, "update_tensors", waiting)
    with pytest.raises(ConfigError, match="algo.compile: got graph, but the capture failed: .*; allowed here: off"):
        learner.update(Batches((batch_of(0),), None))
