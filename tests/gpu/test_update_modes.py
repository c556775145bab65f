"""Updates captured as CUDA graphs, and compiled. Run with `make test-gpu` on a machine that has a CUDA device."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from offpolicy.algos.learners import ReplayLearner
from offpolicy.algos.recorded import RecordedUpdate, Recorder, replaced_update
from offpolicy.algos.registry import make_learner
from offpolicy.config.schedules import Ramp
from offpolicy.config.sections import AlgoConfig
from offpolicy.timing.device_timer import StreamSync
from offpolicy.training.speed_tuner import Choice
from offpolicy.training.update_modes import UpdateModes
from offpolicy.types import Batch, Batches, SpaceSpec

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6)
FALLING = Ramp(start=1e-3, end=1e-4, over=100, begin=0)
OPTIONS: list[dict[str, Any]] = [
    {"name": "sac", "actor_lr": FALLING, "target_entropy": Ramp(start=-3.0, end=-6.0, over=100, begin=0)},
    {"name": "sac", "policy_delay": 2, "normalize_obs": True, "max_grad_norm": 1.0},
    {"name": "sac", "critic_layer_norm": True},
    {"name": "sac", "precision": "bf16"},
    {"name": "td3", "policy_delay": 2, "critic_lr": FALLING},
]


def device() -> torch.device:
    return torch.device("cuda", 0)


def learner_of(mode: str = "graph", **algo: Any) -> ReplayLearner:
    learner = make_learner(AlgoConfig(compile=mode, **algo), SPEC, device(), seed=3)
    assert isinstance(learner, ReplayLearner)
    return learner


def batch_of(seed: int, rows: int = 256) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    obs, action, next_obs = (torch.randn((rows, n), generator=rng).to(device()) for n in (17, 6, 17))
    reward, zeros = torch.randn(rows, generator=rng).to(device()), torch.zeros(rows, device=device())
    return Batch(obs, action.tanh(), reward, next_obs, zeros, zeros + 0.99)


def replace(learner: ReplayLearner, mode: str) -> None:
    state = learner.state()
    update = replaced_update(mode, learner, device())
    update.prepare(batch_of(99))
    learner.load_state(state)
    learner.run_update = update


def train(learner: ReplayLearner, steps: range) -> None:
    for step in steps:
        batch = batch_of(step, 128 if step % 10 == 9 else 256)
        learner.update(Batches((batch,), batch.obs, env_steps=step))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_captured_updates_equal_those_kernel_by_kernel(options: dict[str, Any]) -> None:
    """Over 100 updates, random numbers included: to float rounding, for cuBLAS may choose others on another stream."""
    captured, eager = learner_of(**options), learner_of(**options)
    replace(captured, "graph")
    for learner in (captured, eager):
        train(learner, range(100))
    ours, theirs = captured.state(), eager.state()
    assert ours.numbers == theirs.numbers
    assert torch.equal(ours.tensors["generator"], theirs.tensors["generator"])
    tolerance = 2e-2 if options.get("precision") == "bf16" else 1e-3
    for name in ours.tensors.keys() - {"generator", "metrics.sums"}:
        assert torch.allclose(ours.tensors[name], theirs.tensors[name], rtol=tolerance, atol=tolerance), name


def test_a_captured_learner_restored_from_a_checkpoint_goes_on_bit_for_bit() -> None:
    whole, broken = (learner_of(name="sac", policy_delay=2) for _ in range(2))
    for learner in (whole, broken):
        replace(learner, "graph")
    train(whole, range(15))
    broken.load_state(whole.state())
    for learner in (whole, broken):
        train(learner, range(15, 40))
    ours, theirs = whole.state().tensors, broken.state().tensors
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_a_nan_stops_captured_updates() -> None:
    learner = learner_of(name="sac")
    replace(learner, "graph")
    train(learner, range(3))
    before = learner.state().tensors
    bad = batch_of(3)
    bad.reward[4] = float("nan")
    for batch in (bad, batch_of(4)):
        learner.update(Batches((batch,), None))
    assert learner.has_diverged()
    after = learner.state().tensors
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith(("policy.", "critic.")))


def test_a_replay_makes_the_host_wait_for_nothing() -> None:
    learner, batch = learner_of(name="sac"), batch_of(0)
    replace(learner, "graph")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            learner.update(Batches((batch,), None))
    finally:
        torch.cuda.set_sync_debug_mode("default")


class WaitingRecorder(Recorder):
    """Records work that waits for the device, which no graph can hold."""

    def record(self, work: Any, generator: torch.Generator) -> Any:
        return super().record(lambda: (work(), torch.ones((), device=device()).item()), generator)  # type: ignore[arg-type,return-value]


def test_an_update_that_cannot_be_captured_is_made_kernel_by_kernel() -> None:
    learner, plain = learner_of(name="sac"), learner_of(name="sac")
    said: list[tuple[str, str]] = []

    def make(mode: str, learner: ReplayLearner, device: torch.device) -> RecordedUpdate:
        return RecordedUpdate(learner, WaitingRecorder(device))

    algo = AlgoConfig(name="sac", compile="graph")
    sync = StreamSync(device())
    learner.run_update = UpdateModes(learner, algo, device(), sync, Choice(), lambda *a: said.append(a), make)
    for one in (learner, plain):
        train(one, range(5))
    assert said[0][0] == "off"
    assert "graph is impossible" in said[0][1]
    ours, theirs = learner.state().tensors, plain.state().tensors
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_auto_measures_and_leaves_no_trace(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints what it measured: the numbers of this machine."""
    learner, said = learner_of("auto", name=name), list[tuple[str, str]]()
    state = learner.state()
    algo = AlgoConfig(name=name, compile="auto")
    UpdateModes(learner, algo, device(), StreamSync(device()), Choice(), lambda *a: said.append(a))._choose(batch_of(0))
    after = learner.state()
    assert state.numbers == after.numbers
    assert all(torch.equal(state.tensors[key], after.tensors[key]) for key in state.tensors)
    learner.run_update = UpdateModes(learner, algo, device(), StreamSync(device()), Choice(), lambda *a: said.append(a))
    begin = time.perf_counter()
    train(learner, range(3))
    with capsys.disabled():
        print(f"\n{name}: {said[0][1]}; chosen in {time.perf_counter() - begin:.0f} s")
    assert said[0][0] in ("off", "graph", "reduce-overhead")
