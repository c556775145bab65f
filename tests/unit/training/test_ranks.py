"""What ranks agree on within a duty, and which backend joins them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.distributed.host_info import HostInfo
from offpolicy.distributed.world import CLOCK_EXCHANGES
from offpolicy.errors import ConfigError
from offpolicy.processes.control_page import HostWord
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase
from offpolicy.training import ranks as ranks_module
from offpolicy.training.ranks import Collectives, pick_backend, process_group, single_rank
from tests.unit.training.conftest import FakeWorld, MakeRank


class Clock:
    """Advances by 10 ns whenever it is read."""

    def __init__(self) -> None:
        self._now = 0

    def now_ns(self) -> int:
        self._now += 10
        return self._now


def test_a_flag_of_any_rank_counts_for_all() -> None:
    world = FakeWorld(2, lambda own: [1.0 - own])
    collectives = Collectives(world, Ledger(LearnerPhase))
    assert collectives.any(False)
    assert not Collectives(FakeWorld(2, lambda own: [own]), Ledger(LearnerPhase)).any(False)


def test_a_total_sums_over_the_ranks() -> None:
    assert Collectives(FakeWorld(3, lambda own: [own, 2 * own]), Ledger(LearnerPhase)).total(3.0) == 12.0


@pytest.mark.parametrize("call", ["gather", "any", "total", "agree", "recount"])
def test_waiting_for_other_ranks_is_the_rank_barriers_time(call: str) -> None:
    ledger = Ledger(LearnerPhase, Clock())
    collectives = Collectives(FakeWorld(), ledger)
    arguments: dict[str, tuple[Any, ...]] = {"gather": ((1.0,),), "any": (True,), "total": (1.0,)}
    with ledger.phase(LearnerPhase.CHECKPOINT):
        if call == "agree":
            collectives.agree(is_stopping=False)
        else:
            getattr(collectives, call)(*arguments.get(call, ()))
    ledger.end_warmup()
    with ledger.phase(LearnerPhase.CHECKPOINT):
        collectives.recount()
    assert ledger.account().phases_ns["rank_barrier"] == 10


def test_one_rank_reports_once_per_request_and_saves_once_per_request(make_rank: MakeRank) -> None:
    rank = make_rank()
    world = single_rank(rank).world
    wishes = []
    for reports, saves in ((0, 0), (1, 0), (1, 1), (2, 1)):
        rank.control.host.set(HostWord.REPORT_REQUEST, reports)
        rank.control.host.set(HostWord.SAVE_REQUEST, saves)
        world.agree(is_stopping=False)
        wishes.append((world.is_reporting, world.is_saving))
    assert wishes == [(False, False), (True, False), (False, True), (True, False)]


def test_one_rank_saves_once_per_request(make_rank: MakeRank) -> None:
    rank = make_rank()
    collectives = single_rank(rank).collectives
    saves = []
    for requests in (0, 1, 1, 3):
        rank.control.host.set(HostWord.SAVE_REQUEST, requests)
        collectives.agree(is_stopping=False)
        saves.append(collectives.is_saving)
    assert saves == [False, True, False, True]


@pytest.mark.parametrize(
    ("backend", "device", "num_hosts", "chosen"),
    [
        *(("auto", "cpu", 1, "memory"), ("auto", "cuda:0", 1, "memory"), ("auto", "cpu", 2, "gloo")),
        *(("gloo", "cpu", 1, "gloo"), ("gloo", "cuda", 1, "gloo"), ("memory", "cuda", 1, "memory")),
        *(("auto", "cuda", 1, "nccl"), ("auto", "cuda", 2, "nccl")),
    ],
)
def test_nccl_joins_ranks_that_have_a_gpu_each_and_memory_other_ranks_of_one_host(
    make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch, backend: str, device: str, num_hosts: int, chosen: str
) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    runner = {"name": "multi_gpu", "world_size": 2, "backend": backend}
    rank = make_rank(runner=runner, device=device, host=HostInfo(num_hosts=num_hosts))
    object.__setattr__(rank, "device", torch.device(device.partition(":")[0]))
    assert pick_backend(rank) == chosen


def test_nccl_without_a_gpu_is_refused(make_rank: MakeRank) -> None:
    rank = make_rank(runner={"name": "multi_gpu", "backend": "nccl"}, device="auto")
    with pytest.raises(
        ConfigError, match="runner.backend: got nccl, allowed auto, memory or gloo: the ranks train on cpu"
    ):
        pick_backend(rank)


def test_gathered_values_have_a_row_per_rank() -> None:
    table = Collectives(FakeWorld(2, lambda own: [own + 1]), Ledger(LearnerPhase)).gather((1.0, 2.0))
    np.testing.assert_array_equal(table, [[1.0, 2.0], [2.0, 3.0]])


class FakeGroup:
    """A group in which all ranks say the same."""

    rank, uses_nccl = 0, False

    def __init__(self, store: Any, rank: int, num_ranks: int, **kwargs: Any) -> None:
        self.num_ranks, self.num_gathered = num_ranks, 0

    def gather(self, vector: torch.Tensor) -> torch.Tensor:
        self.num_gathered += 1
        return vector.expand(self.num_ranks, -1)

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("num_hosts", "is_timed", "num_gathered"), [(1, True, 0), (2, True, CLOCK_EXCHANGES + 1), (2, False, 0)]
)
def test_clocks_are_compared_where_there_are_several(
    make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch, num_hosts: int, is_timed: bool, num_gathered: int
) -> None:
    monkeypatch.setattr(ranks_module, "MemoryGroup", FakeGroup)
    monkeypatch.setattr(ranks_module, "ProcessGroup", FakeGroup)
    monkeypatch.setattr(ranks_module, "open_store", lambda *args, **kwargs: None)
    monkeypatch.setattr(ranks_module, "bind_interface", lambda name: None)
    rank = make_rank(
        runner={"name": "multi_gpu", "world_size": 2}, timing={"enabled": is_timed}, host=HostInfo(num_hosts=num_hosts)
    )
    with process_group(rank) as ranks:
        group: Any = ranks.world
        assert group._group.num_gathered == num_gathered
