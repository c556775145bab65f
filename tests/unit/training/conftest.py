"""A learner rank without processes: the real context over plain memory, with a fake child and a fake gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.algos.optim import SoloExchange
from offpolicy.algos.registry import make_learner
from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.distributed.world import World
from offpolicy.processes.control_page import ControlPage
from offpolicy.timing.device_timer import StreamSync, make_device_timer
from offpolicy.timing.ledger import NullLedger
from offpolicy.training.rank import Rank
from offpolicy.training.worker import HostPlan, WorkerSpec
from offpolicy.types import Float64, SpaceSpec

SPEC = SpaceSpec(4, 2, (-1.0, -1.0), (1.0, 1.0))
BLOCK_BYTES = 1 << 22


class FakeChild:
    """Memory by name instead of descriptors; messages are kept."""

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.fds: dict[str, int] = {}
        self.blocks: dict[str, memoryview] = {}
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.closing = ExitStack()

    def block(self, name: str, at_least: int = 0) -> memoryview:
        return self.blocks.setdefault(name, memoryview(bytearray(BLOCK_BYTES)))

    def send(self, kind: str, **fields: Any) -> None:
        self.sent.append((kind, fields))


class FakeGate:
    """Collectors that have done `env_steps`, and answer every snapshot request with `has_snapshot`."""

    def __init__(self) -> None:
        self.env_steps, self.has_snapshot, self.num_releases = 0, True, 0

    def request_snapshot(self) -> bool:
        return self.has_snapshot

    def release_snapshot(self) -> None:
        self.num_releases += 1


class FakeWorld(World):
    """A world of `num_ranks` ranks in which the others say what `others` returns for this rank's values."""

    def __init__(self, num_ranks: int = 1, others: Callable[[Float64], Sequence[Float64]] = lambda own: []) -> None:
        gate: Any = FakeGate()
        super().__init__(gate, lambda: (False, False), NullLedger(), SoloExchange())
        self.num_ranks, self._others = num_ranks, others
        self.gathered: list[Float64] = []
        self.num_recounts = 0

    def gather(self, values: Any) -> Any:
        own = values if isinstance(values, np.ndarray) else np.array(values, dtype=np.float64)
        self.gathered.append(own)
        return np.array([own, *self._others(own)])

    def agree(self, *, is_stopping: bool) -> bool:
        return is_stopping

    def recount(self) -> None:
        self.num_recounts += 1


MakeRank = Callable[..., Rank]


@pytest.fixture
def make_rank(tmp_path: Any) -> MakeRank:
    """`make_rank(index=, host=, start_step=, **tree)`: the context of a rank whose configuration is `tree`."""

    def make(
        *,
        index: int = 0,
        host: HostInfo | None = None,
        start_step: int = 0,
        checkpoint: int | None = None,
        last_eval_step: int = 0,
        has_evaluator: bool = False,
        spec: SpaceSpec | None = None,
        **tree: Any,
    ) -> Rank:
        cfg = RunConfig.from_mapping({"device": "cpu", **tree})
        plan = HostPlan(has_evaluator, learner_threads=1, collector_threads=1)
        job = WorkerSpec(
            cfg, spec or SPEC, plan, host or HostInfo(), str(tmp_path), start_step, checkpoint, 0, last_eval_step
        )
        control = ControlPage(
            memoryview(bytearray(ControlPage.nbytes(8, 8))), cfg.runner.world_size, cfg.collect.num_collectors
        )
        device = torch.device("cpu")
        timer = make_device_timer(StreamSync(device), NullLedger(), is_enabled=False)
        fakes: tuple[Any, Any] = FakeChild(index), FakeGate()
        return Rank(fakes[0], job, NullLedger(), device, timer, control, fakes[1])

    return make


def tiny_learner(rank: Rank) -> Any:
    """A learner with eight hidden units."""
    return make_learner(rank.cfg.algo, SPEC, rank.device, rank.learner_seed)


TINY = {"algo": {"hidden_dims": [8], "batch_size": 4, "learning_starts": 4}, "replay": {"capacity": 64}}


def run_if_due(duty: Any) -> None:
    """Does what the loop does with a duty."""
    if duty.is_due():
        duty.run()
