"""Updates captured as CUDA graphs, and compiled. Run with `make test-gpu` on a machine that has a CUDA device.

Not run on a GPU yet.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from offpolicy.algos import recorded
from offpolicy.algos.learners import ReplayLearner
from offpolicy.algos.optim import SoloExchange
from offpolicy.algos.recorded import RecordedUpdate, Recorder, replaced_update
from offpolicy.algos.registry import make_learner
from offpolicy.config.schedules import Ramp
from offpolicy.config.sections import AlgoConfig
from offpolicy.timing.device_timer import StreamSync
from offpolicy.training.speed_tuner import Choice
from offpolicy.training.update_modes import Make, UpdateModes
from offpolicy.types import Batch, Batches, SpaceSpec
from tests.on_device import waits_refused

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # the first product of autograd's thread
]
SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6)
FALLING = Ramp(start=1e-3, end=1e-4, over=100, begin=0)
OPTIONS: list[dict[str, Any]] = [
    {"name": "sac", "actor_lr": FALLING, "target_entropy": Ramp(start=-3.0, end=-6.0, over=100, begin=0)},
    {"name": "sac", "policy_delay": 2, "normalize_obs": True, "max_grad_norm": 1.0},
    {"name": "sac", "critic_layer_norm": True},
    {"name": "sac", "precision": "bf16"},
    {"name": "td3", "policy_delay": 2, "critic_lr": FALLING},
]


@pytest.fixture(autouse=True)
def older_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures of an older torch, which a machine may have, are tested too: only a failed one is broken there."""
    monkeypatch.setattr(recorded, "OLDEST_TORCH", "2.10")


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


def choosing(
    learner: ReplayLearner, algo: AlgoConfig, reports: list[tuple[str, str]], make: Make = replaced_update
) -> UpdateModes:
    def report(mode: str, text: str) -> None:
        reports.append((mode, text))

    sync, gather = StreamSync(device()), SoloExchange().gather
    return UpdateModes(learner, algo, device(), sync, Choice(), report, gather, make)


def train(learner: ReplayLearner, steps: range) -> None:
    for step in steps:
        batch = batch_of(step, 128 if step % 10 == 9 else 256)
        learner.update(Batches((batch,), batch.obs, env_steps=step))


def assert_close(one: ReplayLearner, other: ReplayLearner, tolerance: float = 1e-3) -> None:
    """To float rounding: cuBLAS may choose other kernels on another stream."""
    ours, theirs = one.state(), other.state()
    assert ours.numbers == theirs.numbers
    assert torch.equal(ours.tensors["generator"], theirs.tensors["generator"])
    for name in ours.tensors.keys() - {"generator", "metrics.sums"}:
        assert torch.allclose(ours.tensors[name], theirs.tensors[name], rtol=tolerance, atol=tolerance), name


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_captured_updates_equal_those_kernel_by_kernel(options: dict[str, Any]) -> None:
    """Over 100 updates, random numbers included."""
    captured, eager = learner_of(**options), learner_of(**options)
    replace(captured, "graph")
    for learner in (captured, eager):
        train(learner, range(100))
    assert_close(captured, eager, 2e-2 if options.get("precision") == "bf16" else 1e-3)


@pytest.mark.filterwarnings("ignore")  # of torch, about its own code
def test_a_graph_outlives_the_compiled_updates_that_empty_all_caches() -> None:
    """torch gives up the workspaces of cuBLAS, of all streams, for its own graphs: the captured one has another."""
    captured, eager, compiled = (learner_of(name="sac") for _ in range(3))
    replace(captured, "graph")
    replace(compiled, "reduce-overhead")
    torch.cuda.empty_cache()
    filling = [torch.full((1 << 20,), float("nan"), device=device()) for _ in range(64)]  # where a workspace was
    for learner in (captured, eager):
        train(learner, range(100))
    assert len(filling) == 64
    assert_close(captured, eager)


@pytest.mark.filterwarnings("ignore")  # of torch, about its own code
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_compiled_updates_give_the_same_numbers_and_how_many_parts_have_no_graph(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/algorithms.md: one part of SAC may have none. torch skips those that write what may move."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled, eager = learner_of("reduce-overhead", name=name), learner_of("reduce-overhead", name=name)
    replace(compiled, "reduce-overhead")
    counters = torch._dynamo.utils.counters
    num_parts, num_skipped = counters["stats"]["unique_graphs"], counters["inductor"]["cudagraph_skips"]
    with capsys.disabled():
        print(f"\n{name}: {num_skipped} of {num_parts} compiled parts have no CUDA graph")
    for learner in (compiled, eager):
        train(learner, range(30))
    assert_close(compiled, eager)
    assert num_skipped <= (name == "sac")
    assert num_parts > 10


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
    with waits_refused():
        for _ in range(5):
            learner.update(Batches((batch,), None))


class WaitingRecorder(Recorder):
    """Records work that waits for the device, which no graph can hold."""

    def record(self, work: Any, generator: torch.Generator) -> Any:
        return super().record(lambda: (work(), torch.ones((), device=device()).item()), generator)  # type: ignore[arg-type,return-value]


@pytest.mark.skipif(torch.__version__ < recorded.OLDEST_TORCH, reason="this torch cannot go on after a failed capture")
def test_an_update_that_cannot_be_captured_is_made_kernel_by_kernel() -> None:
    learner, plain = learner_of(name="sac"), learner_of(name="sac")
    reports, stream = list[tuple[str, str]](), torch.cuda.current_stream(device())

    def make(mode: str, learner: ReplayLearner, device: torch.device) -> RecordedUpdate:
        return RecordedUpdate(learner, WaitingRecorder(device))

    learner.run_update = choosing(learner, AlgoConfig(name="sac", compile="graph"), reports, make)
    for one in (learner, plain):
        train(one, range(5))
    assert reports[0][0] == "off"
    assert "graph is impossible" in reports[0][1]
    assert torch.cuda.current_stream(device()) == stream
    ours, theirs = learner.state().tensors, plain.state().tensors
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_auto_measures_and_leaves_no_trace(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints what it measured: the numbers of this machine."""
    learner, reports = learner_of("auto", name=name), list[tuple[str, str]]()
    modes = choosing(learner, AlgoConfig(name=name, compile="auto"), reports)
    state, begin = learner.state(), time.perf_counter()
    mode, update, reasons = modes._choose(batch_of(0))
    with capsys.disabled():
        print(f"\n{name}: {mode}, {reasons}; chosen in {time.perf_counter() - begin:.0f} s")
    after = learner.state()
    assert state.numbers == after.numbers
    assert all(torch.equal(state.tensors[key], after.tensors[key]) for key in state.tensors)
    assert mode in ("off", "graph")
    learner.run_update = update
    train(learner, range(3))
    assert not learner.has_diverged()
