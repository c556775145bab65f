"""The choice of how updates are made: measured, reported, and without a trace in what is learnt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from offpolicy.algos.learners import ReplayLearner
from offpolicy.algos.registry import make_learner
from offpolicy.config.sections import AlgoConfig
from offpolicy.training.speed_tuner import Choice
from offpolicy.training.update_modes import MODES, UpdateModes
from offpolicy.types import Batch, Batches, SpaceSpec

SPEC = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
CPU = torch.device("cpu")


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


INF = float("inf")


@pytest.mark.parametrize(("graph_s", "expected"), [(0.0, "graph"), (INF, "off")])
def test_a_mode_that_is_asked_for_is_used_if_all_ranks_can(graph_s: float, expected: str) -> None:
    machine, learner = Machine({"off": 1.0, "graph": 5.0}), learner_of("graph")
    machine.other_s = {"off": 1.0, "graph": graph_s, "reduce-overhead": INF}
    machine.choose(learner, "graph")
    learner.update(batches(0))
    assert machine.reports[0][0] == expected
    assert ("another rank cannot" in machine.reports[0][1]) == (expected == "off")


@pytest.mark.parametrize("error", [RuntimeError, FileNotFoundError])
def test_a_device_that_failed_with_a_mode_ends_the_run_by_name(error: type[Exception]) -> None:
    machine, learner = Machine({"off": 1.0, "graph": None}), learner_of("graph")
    machine.error = error
    machine.choose(learner, "graph")
    machine.is_broken = True
    with pytest.raises(RuntimeError, match=r"algo.compile=graph: the device failed: .*no graph here"):
        learner.update(batches(0))


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
