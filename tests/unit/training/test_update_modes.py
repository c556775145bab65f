"""The choice of how updates are made: measured, reported, and without a trace in what is learnt."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from offpolicy.algos.learners import ReplayLearner
from offpolicy.algos.optim import SoloExchange
from offpolicy.algos.recorded import GRAPH, REDUCE_OVERHEAD, RecordedUpdate
from offpolicy.algos.registry import make_learner
from offpolicy.checkpoint.content import UPDATE_MODES
from offpolicy.config.sections import AlgoConfig
from offpolicy.training import update_modes
from offpolicy.training.speed_tuner import Choice
from offpolicy.training.update_modes import AUTO, MODES, OFF, UpdateModes, choose_update_mode, slow_precision
from offpolicy.types import Batch, Batches, SpaceSpec
from tests.unit.algos.tape import TapeRecorder

SPEC = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
CPU = torch.device("cpu")
REPOSITORY = Path(__file__).resolve().parents[3]
COMPILE = """
from tests.unit.training.test_update_modes import *
learner, machine, choice = learner_of("reduce-overhead"), Machine({}), Choice()
algo = AlgoConfig(name="sac", hidden_dims=(8,), compile="reduce-overhead")
report = lambda mode, text: machine.reports.append((mode, text))
learner.run_update = UpdateModes(learner, algo, CPU, machine, choice, report, machine.gather)
learner.update(batches(0))
print(learner.num_updates, machine.reports[0][1])
"""


class Machine:
    """A clock, and updates that take as long on it as `update_ms` has them. None: the mode is impossible."""

    def __init__(self, update_ms: Mapping[str, float | None]) -> None:
        self.update_ms, self.now_ns, self.reports = update_ms, 0, list[tuple[str, str]]()
        self.made: list[str] = []
        self.is_broken = False
        self.error: type[Exception] = RuntimeError  # of an impossible mode
        self.other_s: Mapping[str, float] | None = None  # seconds per update of another rank, by mode

    def wait(self) -> None:
        if self.is_broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def gather(self, vector: Tensor) -> Tensor:
        """Of two ranks, if there is another one."""
        others = [] if self.other_s is None else [torch.tensor([self.other_s[mode] for mode in MODES])]
        return torch.stack([vector, *others])

    def make(self, mode: str, learner: ReplayLearner, device: torch.device) -> Any:
        self.made.append(mode)
        milliseconds = self.update_ms[mode]
        if milliseconds is None:
            raise self.error(f"no {mode} here\nand a second line")
        return Spending(self, learner, milliseconds)

    def choose(self, learner: ReplayLearner, mode: str, choice: Choice | None = None) -> Choice:
        """Has the learner choose at its next update."""
        learner.update_once = Spending(self, learner, self.update_ms["off"] or 0.0)  # type: ignore[method-assign]
        found = choice or Choice()
        algo = AlgoConfig(name="sac", hidden_dims=(8,), compile=mode)
        report = lambda mode, text: self.reports.append((mode, text))  # noqa: E731
        now_ns = lambda: self.now_ns  # noqa: E731
        learner.run_update = UpdateModes(learner, algo, CPU, self, found, report, self.gather, self.make, now_ns)
        return found


class Spending:
    """An update that takes time on a machine's clock."""

    def __init__(self, machine: Machine, learner: ReplayLearner, milliseconds: float) -> None:
        self._machine, self._update, self._ns = machine, type(learner).update_once, int(1e6 * milliseconds)
        self._learner = learner

    def prepare(self, batch: Batch) -> None:
        self(batch, True)

    def __call__(self, batch: Batch, has_actor_step: bool) -> None:  # noqa: FBT001  # an `Update`
        self._machine.now_ns += self._ns
        self._update(self._learner, batch, has_actor_step)


def learner_of(mode: str = "auto") -> ReplayLearner:
    learner = make_learner(AlgoConfig(name="sac", hidden_dims=(8,), compile=mode), SPEC, CPU, seed=1)
    assert isinstance(learner, ReplayLearner)
    return learner


def batches(seed: int, num_rows: int = 4) -> Batches:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn((num_rows, n), generator=generator) for n in (3, 2, 1, 3)]
    flags = torch.zeros(num_rows), torch.full((num_rows,), 0.99)
    return Batches((Batch(rows[0], rows[1].tanh(), rows[2][:, 0], rows[3], *flags),), None)


@pytest.fixture(autouse=True)
def _tries_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_modes, "TRIED", {"cpu": ("graph", "reduce-overhead")})


@pytest.mark.parametrize(
    ("update_ms", "expected"),
    [
        ({"off": 2.0, "graph": 0.5, "reduce-overhead": 1.0}, "graph"),
        ({"off": 2.0, "graph": None, "reduce-overhead": 1.0}, "reduce-overhead"),
        ({"off": 2.0, "graph": 1.98, "reduce-overhead": 9.0}, "off"),  # not worth while
        ({"off": 2.0, "graph": None, "reduce-overhead": None}, "off"),
    ],
    ids=str,
)
def test_auto_keeps_the_fastest_one_if_it_is_worth_while(update_ms: dict[str, float | None], expected: str) -> None:
    machine, learner = Machine(update_ms), learner_of()
    choice = machine.choose(learner, "auto")
    learner.update(batches(0))
    before_ns = machine.now_ns
    learner.update(batches(1))
    assert machine.now_ns - before_ns == 1e6 * (update_ms[expected] or 0.0)
    assert choice.update_mode == expected
    ((mode, text),) = machine.reports
    assert mode == expected
    assert text.startswith(f"algo.compile=auto: {expected}, ")
    for name, milliseconds in update_ms.items():
        reported = f"{name} is impossible: no {name} here" if milliseconds is None else f"{name} {milliseconds:.2f} ms"
        assert reported in text or set(update_ms.values()) == {2.0, None}


def test_the_choice_leaves_no_trace_in_what_is_learnt() -> None:
    chooser, plain = learner_of(), learner_of()
    Machine({"off": 2.0, "graph": 0.5, "reduce-overhead": 1.0}).choose(chooser, "auto")
    for learner in (chooser, plain):
        for seed in range(3):
            learner.update(batches(seed))
    ours, theirs = chooser.state(), plain.state()
    assert ours.numbers == theirs.numbers
    assert all(torch.equal(ours.tensors[name], theirs.tensors[name]) for name in ours.tensors)


@pytest.mark.parametrize("mode", ["graph", "off"])
def test_the_mode_of_a_checkpoint_stays_unmeasured(mode: str) -> None:
    machine, learner = Machine({"off": 1.0, "graph": 5.0}), learner_of()
    choice = machine.choose(learner, "auto", Choice(update_mode=mode, measured_on="cpu"))
    learner.update(batches(0))
    assert choice.update_mode == mode
    assert machine.made == ["graph"] * (mode == "graph")
    assert "not bitwise" not in machine.reports[0][1]


@pytest.mark.parametrize("measured_on", [None, "cuda"])
def test_a_mode_that_was_not_measured_on_this_kind_of_device_is_measured(measured_on: str | None) -> None:
    machine, learner = Machine({"off": 2.0, "graph": 0.5, "reduce-overhead": 1.0}), learner_of()
    choice = machine.choose(learner, "auto", Choice(update_mode="off", measured_on=measured_on))
    learner.update(batches(0))
    assert (choice.update_mode, choice.measured_on) == ("graph", "cpu")
    assert "not bitwise: updates were made with off before" in machine.reports[0][1]


INF = float("inf")


@pytest.mark.parametrize(
    ("other_s", "expected", "reported"),
    [
        ({"off": 2e-3, "graph": 0.5e-3, "reduce-overhead": 1e-3}, "graph", "graph 0.50 ms"),
        ({"off": 2e-3, "graph": 3e-3, "reduce-overhead": 1e-3}, "reduce-overhead", "graph 3.00 ms"),
        ({"off": 2e-3, "graph": INF, "reduce-overhead": INF}, "off", "graph is impossible: another rank cannot"),
        ({"off": 1.0, "graph": 0.0, "reduce-overhead": INF}, "graph", "off 1000.00 ms"),  # it keeps a checkpoint's
    ],
    ids=str,
)
def test_ranks_choose_alike_what_is_fastest_on_the_slowest(
    other_s: dict[str, float], expected: str, reported: str
) -> None:
    machine, learner = Machine({"off": 2.0, "graph": 0.5, "reduce-overhead": 1.0}), learner_of()
    machine.other_s = other_s
    choice = machine.choose(learner, "auto")
    learner.update(batches(0))
    assert choice.update_mode == machine.reports[0][0] == expected
    assert reported in machine.reports[0][1]


@pytest.mark.parametrize(("graph_s", "expected"), [(0.0, "graph"), (INF, "off")])
def test_a_mode_that_is_asked_for_is_used_if_all_ranks_can(graph_s: float, expected: str) -> None:
    machine, learner = Machine({"off": 1.0, "graph": 5.0}), learner_of("graph")
    machine.other_s = {"off": 1.0, "graph": graph_s, "reduce-overhead": INF}
    machine.choose(learner, "graph")
    learner.update(batches(0))
    assert machine.reports[0][0] == expected
    assert ("another rank cannot" in machine.reports[0][1]) == (expected == "off")


@pytest.mark.parametrize(("is_leader", "kind"), [(True, "update_mode"), (False, "note")])
def test_one_rank_reports_the_mode_and_the_others_note_theirs(is_leader: bool, kind: str) -> None:
    rank, learner = mock.MagicMock(is_leader=is_leader, rank=3, device=CPU), learner_of("graph")
    rank.cfg.algo = AlgoConfig(name="sac", hidden_dims=(8,), compile="graph")
    choose_update_mode(rank, mock.MagicMock(exchange=SoloExchange()), learner, Choice())
    learner.update(batches(0))
    sent = {"update_mode": rank.child.send, "note": rank.note}
    assert {name: method.call_count for name, method in sent.items()} == {"update_mode": 0, "note": 0} | {kind: 1}


def test_a_mode_that_was_refused_is_tried_again_by_a_resumed_run() -> None:
    machine, learner = Machine({"off": 2.0, "graph": None, "reduce-overhead": 4.0}), learner_of()
    choice = machine.choose(learner, "auto")
    learner.update(batches(0))
    assert (choice.update_mode, choice.measured_on) == ("off", None)


@pytest.mark.parametrize("error", [FileNotFoundError, FileExistsError, ImportError])
def test_a_compiler_that_cannot_be_loaded_is_no_error_of_the_run(error: type[Exception]) -> None:
    machine, learner = Machine({"off": 1.0, "reduce-overhead": None}), learner_of("reduce-overhead")
    machine.error = error
    choice = machine.choose(learner, "reduce-overhead")
    learner.update(batches(0))
    assert (choice.update_mode, learner.num_updates) == ("off", 1)
    assert machine.reports[0][1].endswith(
        f"off, reduce-overhead is impossible: {error.__name__}: no reduce-overhead here"
    )


def test_a_cache_of_the_compiler_that_cannot_be_made_is_a_reason_for_plain_kernels(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "file")}
    command = [sys.executable, "-c", COMPILE]  # in a process of its own: the compiler is loaded once
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 algo.compile=reduce-overhead: off, reduce-overhead is impossible: FileExistsError")


@pytest.mark.parametrize("error", [RuntimeError, FileNotFoundError])
def test_a_device_that_failed_with_a_mode_ends_the_run_by_name(error: type[Exception]) -> None:
    machine, learner = Machine({"off": 1.0, "graph": None}), learner_of("graph")
    machine.error = error
    machine.choose(learner, "graph")
    machine.is_broken = True
    with pytest.raises(RuntimeError, match=r"algo.compile=graph: the device failed: .*no graph here"):
        learner.update(batches(0))


def test_the_first_batch_of_another_shape_is_reported() -> None:
    machine, learner = Machine({}), learner_of("graph")
    algo = AlgoConfig(name="sac", hidden_dims=(8,), compile="graph")
    report = lambda mode, text: machine.reports.append((mode, text))  # noqa: E731
    make: Any = lambda mode, learner, device: RecordedUpdate(learner, TapeRecorder())  # noqa: E731
    learner.run_update = UpdateModes(learner, algo, CPU, machine, Choice(), report, machine.gather, make)
    for rows in (4, 4, 3, 2):
        learner.update(batches(0, rows))
    assert learner.num_updates == 4
    assert machine.reports == [
        ("graph", "algo.compile=graph: graph"),
        ("graph", "algo.compile=graph: graph; a batch of 3 rows, not 4 as the first, is learnt from kernel by kernel"),
    ]


def test_all_parts_know_the_same_modes() -> None:
    (of_config,) = [spec for spec in dataclasses.fields(AlgoConfig) if spec.name == "compile"]
    assert set(of_config.metadata["choices"]) == {*MODES, AUTO}
    assert set(MODES) == {OFF, GRAPH, REDUCE_OVERHEAD}
    assert set(UPDATE_MODES) == set(MODES)


@pytest.mark.parametrize(("before", "warnings"), [(None, 0), ("off", 0), ("graph", 1)])
def test_a_change_to_off_is_announced(before: str | None, warnings: int) -> None:
    rank, choice = mock.MagicMock(), Choice(update_mode=before)
    rank.cfg.algo.compile = "off"
    choose_update_mode(rank, mock.MagicMock(), learner_of("off"), choice)
    assert choice.update_mode == "off"
    assert rank.warn.call_count == warnings


def test_a_mode_that_is_asked_for_is_used_whatever_its_speed() -> None:
    machine, learner = Machine({"off": 1.0, "graph": 5.0}), learner_of("graph")
    choice = machine.choose(learner, "graph", Choice(update_mode="off"))
    learner.update(batches(0))
    assert choice.update_mode == "graph"
    assert machine.reports == [
        ("graph", "algo.compile=graph: graph, the continuation is not bitwise: updates were made with off before")
    ]


def test_what_cannot_be_captured_is_made_kernel_by_kernel_and_reported() -> None:
    learner, reports = learner_of("graph"), list[tuple[str, str]]()
    algo, choice = AlgoConfig(name="sac", hidden_dims=(8,), compile="graph"), Choice()
    machine = Machine({})
    report = lambda mode, text: reports.append((mode, text))  # noqa: E731
    learner.run_update = UpdateModes(learner, algo, CPU, machine, choice, report, machine.gather)
    learner.update(batches(0))
    assert learner.num_updates == 1
    assert learner.run_update == learner.update_once
    assert reports == [
        (
            "off",
            "algo.compile=graph: off, graph is impossible: kernels are captured on CUDA only, and the device is cpu",
        )
    ]


@pytest.mark.parametrize(("has_products", "expected"), [(True, ""), (False, "many times as long as with fp32")])
def test_bfloat16_on_a_cpu_without_it_is_warned_of(
    has_products: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_modes, "has_bf16_products", lambda: has_products)
    assert slow_precision(AlgoConfig(precision="bf16"), CPU).endswith(expected)
    assert slow_precision(AlgoConfig(), CPU) == ""
    assert bool(slow_precision(AlgoConfig(precision="bf16"), CPU)) == bool(expected)
