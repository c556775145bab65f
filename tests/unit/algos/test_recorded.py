"""Recorded and compiled updates make what updates kernel by kernel make."""

from __future__ import annotations

import contextlib
import copy
import gc
import shutil
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from offpolicy.algos.learners import ReplayLearner
from offpolicy.algos.recorded import CompiledUpdate, RecordedUpdate, Recorder, replaced_update
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


def test_a_restored_learner_goes_on_with_replays_bit_for_bit() -> None:
    whole, broken = learner_of(name="sac", policy_delay=2), learner_of(name="sac", policy_delay=2)
    train(whole, range(15))
    broken.load_state(copy.deepcopy(whole.state()))
    recorded(broken)
    for learner in (whole, broken):
        train(learner, range(15, 40))
    assert_same(whole, broken)


@pytest.mark.parametrize("mode", ["graph", "auto"])
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_a_mode_changes_no_bit_on_a_cpu(mode: str, name: str) -> None:
    """Step sizes, which are tensors where updates may be replayed, are read as the numbers are."""
    other, off = learner_of(mode, name=name, actor_lr=3e-4), learner_of("off", name=name, actor_lr=3e-4)
    for learner in (other, off):
        train(learner, range(30))
    assert_same(other, off)


class ForgetfulRecorder(TapeRecorder):
    """As CUDA's, holds no tensor."""

    def record(self, work: Callable[[], None], generator: torch.Generator) -> Callable[[], None]:
        work()
        return lambda: None


def test_a_recording_keeps_the_memory_that_it_writes() -> None:
    """The networks give up their activations of 16 rows after updates of four other sizes."""
    learner = learner_of(name="sac")
    update = RecordedUpdate(learner, ForgetfulRecorder())
    update.prepare(batch_of(99))
    twin: Any = learner._algorithm._critic._twin  # type: ignore[attr-defined]
    activations = weakref.ref(twin.memory(16).hidden[0].untyped_storage())
    for rows in (3, 5, 7, 9):
        learner.update_once(batch_of(1, rows), True)
    assert 16 not in twin._workspace.by_rows
    assert activations() is not None
    del update
    gc.collect()
    assert activations() is None


def test_a_capture_that_failed_leaves_the_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.cuda.graph` stays on the stream of the capture when its end fails."""
    streams = ["that of the run"]

    @contextlib.contextmanager
    def capture(graph: Any, **_: Any) -> Iterator[None]:
        streams.append("that of the capture")
        yield
        raise RuntimeError("operation failed due to a previous error during capture")

    fakes = {"CUDAGraph": mock.MagicMock, "Stream": mock.MagicMock, "graph_pool_handle": mock.MagicMock}
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    fakes |= {"graph": capture, "current_stream": lambda _: streams[-1], "set_stream": streams.append}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    recorder = Recorder(torch.device("cuda", 0))
    with pytest.raises(RuntimeError, match="previous error during capture"):
        recorder.record(lambda: None, torch.Generator())
    assert streams == ["that of the run", "that of the capture", "that of the run"]


def test_the_workspace_of_cublas_is_made_within_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of before could be given up while the graph still writes there; one of within must not be used outside."""
    events: list[str] = []

    @contextlib.contextmanager
    def capture(graph: Any, **_: Any) -> Iterator[None]:
        events.append("begin")
        yield
        events.append("end")

    for name in ("CUDAGraph", "Stream", "graph_pool_handle", "current_stream", "set_stream"):
        monkeypatch.setattr(torch.cuda, name, mock.MagicMock())
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: events.append("clear"), raising=False)
    recorder = Recorder(torch.device("cuda", 0))
    recorder.record(lambda: events.append("work"), torch.Generator())
    assert events == ["clear", "begin", "work", "end", "clear"]


def test_a_torch_that_cannot_go_on_after_a_failed_capture_captures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.12.1+cu128"))
    with pytest.raises(RuntimeError, match=r"after a failed capture torch 2.12.1\+cu128 cannot go on; 2.13 can"):
        Recorder(torch.device("cuda", 0))


def test_a_state_loaded_after_the_recording_is_replayed_from() -> None:
    replayed, other = learner_of(name="td3"), learner_of(name="td3")
    recorded(replayed)
    train(replayed, range(5))
    train(other, range(30))
    replayed.load_state(other.state())
    for learner in (replayed, other):
        train(learner, range(30, 40))
    assert_same(replayed, other)


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


def test_the_saved_state_is_that_of_any_mode() -> None:
    """Numbers that live in tensors because of a recording are no part of it: modes may change between two runs."""
    assert (
        learner_of("graph", name="sac").state().tensors.keys() == learner_of("off", name="sac").state().tensors.keys()
    )


def test_a_cpu_cannot_record() -> None:
    with pytest.raises(RuntimeError, match="captured on CUDA only, and the device is cpu"):
        Recorder(CPU)


def test_updates_that_wait_for_other_ranks_are_not_replaced() -> None:
    learner = learner_of(name="sac")
    learner._algorithm.optimizer_step.exchange = TwoRanks()
    with pytest.raises(RuntimeError, match="several ranks average their gradients within an update"):
        replaced_update("graph", learner, CPU)


class TwoRanks:
    num_ranks = 2

    def average(self, tensors: Any) -> None: ...
    def gather(self, vector: torch.Tensor) -> torch.Tensor:
        return torch.stack((vector, vector))


class Traced:
    """What torch.compile traces, and no compiler behind it: for each part, whether it has no CUDA graph."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.without_graph: list[bool] = []
        compile_, backend = torch.compile, aot_autograd(fw_compiler=self._add)
        monkeypatch.setattr(torch, "compile", lambda update, **_: compile_(update, backend=backend, dynamic=False))
        torch._dynamo.reset()

    def _add(self, part: Any, _: object) -> Any:
        """As torch decides: a part that writes an input which may move has none (`check_for_mutation`)."""
        facts = torch._guards.TracingContext.get().fw_metadata  # type: ignore[union-attr]
        written = {i for i, one in enumerate(facts.input_info) if one.mutates_data}
        self.without_graph.append(not written <= set(facts.static_input_indices))
        return part.forward


@pytest.mark.filterwarnings("ignore")  # of torch, about its own code
@pytest.mark.parametrize(
    ("options", "num_without_graph"),
    [
        # One part of SAC writes what an earlier part has made, which torch knows once that has a graph.
        pytest.param({"name": "sac"}, 1, marks=pytest.mark.slow),
        ({"name": "td3", "policy_delay": 2}, 0),
    ],
    ids=str,
)
def test_a_prepared_update_is_never_compiled_again(
    options: dict[str, Any], num_without_graph: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of another shape are not compiled either. What the learner keeps is known to stay where it is."""
    traced = Traced(monkeypatch)
    learner = learner_of("reduce-overhead", **options)
    state, update = learner.state(), CompiledUpdate(learner)
    update.prepare(batch_of(99))
    learner.load_state(state)
    learner.run_update = update
    num_parts = len(traced.without_graph)
    assert num_parts > 10
    assert sum(traced.without_graph) == num_without_graph
    with torch._dynamo.config.patch(error_on_recompile=True):
        train(learner, range(20))
    assert len(traced.without_graph) == num_parts
    assert learner.read_metrics().counts[0] == 20


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch, about its own code
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs a C++ compiler")
def test_what_cannot_be_compiled_is_said_to_be_impossible() -> None:
    """FlashSAC's actor is differentiated by autograd, whose graph does not outlive a compiled part (algorithms.md)."""
    learner = learner_of("reduce-overhead", name="flashsac", actor_width=8, critic_width=8, num_bins=11)
    with pytest.raises(RuntimeError, match="does not require grad"):
        CompiledUpdate(learner).prepare(batch_of(99))
