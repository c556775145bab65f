"""How updates are made where `algo.compile` asks for something: as asked, or kernel by kernel with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from offpolicy.algos.learners import ReplayLearner
from offpolicy.algos.registry import make_learner
from offpolicy.config.sections import AlgoConfig
from offpolicy.training.speed_tuner import Choice
from offpolicy.training.update_modes import UpdateModes
from offpolicy.types import Batch, Batches, SpaceSpec

SPEC = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
CPU = torch.device("cpu")
ALGO = AlgoConfig(name="sac", hidden_dims=(8,), compile="graph")
ROWS = torch.linspace(-1.0, 1.0, 12).reshape(4, 3)
BATCH = Batches((Batch(ROWS, ROWS[:, :2], ROWS[:, 0], ROWS, torch.zeros(4), torch.full((4,), 0.99)),), None)


class Device:
    """A device that works, or has failed."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self._is_broken = is_broken

    def wait(self) -> None:
        if self._is_broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


class Captured:
    """An update that counts as captured."""

    def __init__(self, learner: ReplayLearner) -> None:
        self._learner = learner

    def prepare(self, batch: Batch) -> None: ...

    def __call__(self, batch: Batch, has_actor_step: bool) -> None:  # noqa: FBT001  # an `Update`
        type(self._learner).update_once(self._learner, batch, has_actor_step)


def learner_on(device: Device, choice: Choice, reports: list[str], **make: Any) -> ReplayLearner:
    """A learner that chooses how it makes updates at its first one."""
    learner = make_learner(ALGO, SPEC, CPU, seed=1)
    assert isinstance(learner, ReplayLearner)
    report = lambda mode, text: reports.append(text)  # noqa: E731
    learner.run_update = UpdateModes(learner, ALGO, CPU, device, choice, report, lambda own: own[None], **make)
    return learner


def test_a_mode_that_is_asked_for_is_used_and_a_change_since_the_checkpoint_is_told() -> None:
    choice, reports = Choice(update_mode="off"), list[str]()
    learner = learner_on(Device(), choice, reports, make=lambda mode, learner, device: Captured(learner))
    learner.update(BATCH)
    assert (choice.update_mode, learner.num_updates) == ("graph", 1)
    assert reports == ["algo.compile=graph: graph, the continuation is not bitwise: updates were made with off before"]


def test_what_cannot_be_captured_is_made_kernel_by_kernel_and_told() -> None:
    choice, reports = Choice(), list[str]()
    learner = learner_on(Device(), choice, reports)
    learner.update(BATCH)
    assert (choice.update_mode, learner.num_updates) == ("off", 1)
    assert reports == [
        "algo.compile=graph: off, graph is impossible: kernels are captured on CUDA only, and the device is cpu"
    ]


def test_a_device_that_failed_ends_the_run_by_name() -> None:
    learner = learner_on(Device(is_broken=True), Choice(), [])
    with pytest.raises(RuntimeError, match=r"algo.compile=graph: the device failed: .*captured on CUDA only"):
        learner.update(BATCH)
