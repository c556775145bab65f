"""The choice of how updates are made: measured, said, and without a trace in what is learnt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest
import torch

from offpolicy.algos.learners import ReplayLearner
from offpolicy.algos.registry import make_learner
from offpolicy.config.sections import AlgoConfig
from offpolicy.training import update_modes
from offpolicy.training.speed_tuner import Choice
from offpolicy.training.update_modes import UpdateModes, choose_update_mode, slow_precision
from offpolicy.types import Batch, Batches, SpaceSpec

SPEC = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
CPU = torch.device("cpu")


class Machine:
    """A clock, and updates that take as long on it as is said. None: the mode is impossible."""

    def __init__(self, update_ms: Mapping[str, float | None]) -> None:
        self.update_ms, self.now_ns, self.reports = update_ms, 0, list[tuple[str, str]]()
        self.made: list[str] = []

    def wait(self) -> None: ...

    def make(self, mode: str, learner: ReplayLearner, device: torch.device) -> Any:
        self.made.append(mode)
        milliseconds = self.update_ms[mode]
        if milliseconds is None:
            raise RuntimeError(f"no {mode} here\nand a second line")
        return Spending(self, learner, milliseconds)

    def choose(self, learner: ReplayLearner, mode: str, choice: Choice | None = None) -> Choice:
        """Has the learner choose at its next update."""
        learner.update_once = Spending(self, learner, self.update_ms["off"] or 0.0)  # type: ignore[method-assign]
        found = choice or Choice()
        algo = AlgoConfig(name="sac", hidden_dims=(8,), compile=mode)
        report = lambda mode, text: self.reports.append((mode, text))  # noqa: E731
        learner.run_update = UpdateModes(learner, algo, CPU, self, found, report, self.make, lambda: self.now_ns)
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


def batches(seed: int) -> Batches:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn((4, n), generator=generator) for n in (3, 2, 1, 3)]
    flags = torch.zeros(4), torch.full((4,), 0.99)
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
        said = f"{name} is impossible: no {name} here" if milliseconds is None else f"{name} {milliseconds:.2f} ms"
        assert said in text or set(update_ms.values()) == {2.0, None}


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


@pytest.mark.parametrize(("before", "warnings"), [(None, 0), ("off", 0), ("graph", 1)])
def test_a_change_to_off_is_announced(before: str | None, warnings: int) -> None:
    rank, choice = mock.MagicMock(), Choice(update_mode=before)
    rank.cfg.algo.compile = "off"
    choose_update_mode(rank, learner_of("off"), choice)
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


def test_what_cannot_be_captured_is_made_kernel_by_kernel_and_said() -> None:
    learner, reports = learner_of("graph"), list[tuple[str, str]]()
    algo, choice = AlgoConfig(name="sac", hidden_dims=(8,), compile="graph"), Choice()
    machine = Machine({})
    learner.run_update = UpdateModes(learner, algo, CPU, machine, choice, lambda *said: reports.append(said))
    learner.update(batches(0))
    assert learner.num_updates == 1
    assert learner.run_update == learner.update_once
    assert reports == [
        (
            "off",
            "algo.compile=graph: off, graph is impossible: kernels are captured on CUDA only, and the device is cpu",
        )
    ]


@pytest.mark.parametrize(("has_products", "expected"), [(True, ""), (False, "updates are slower than with fp32")])
def test_bfloat16_on_a_cpu_without_it_is_warned_of(
    has_products: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_modes, "has_bf16_products", lambda: has_products)
    assert slow_precision(AlgoConfig(precision="bf16"), CPU).endswith(expected)
    assert slow_precision(AlgoConfig(), CPU) == ""
    assert bool(slow_precision(AlgoConfig(precision="bf16"), CPU)) == bool(expected)
