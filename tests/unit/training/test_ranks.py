"""What ranks agree on within a duty, and which backend joins them."""

from __future__ import annotations

from typing import Any

import pytest

from offpolicy.errors import ConfigError
from offpolicy.processes.control_page import HostWord
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase
from offpolicy.training.ranks import Collectives, pick_backend, single_rank
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


def test_nccl_without_a_gpu_is_refused(make_rank: MakeRank) -> None:
    rank = make_rank(runner={"name": "multi_gpu", "backend": "nccl"}, device="auto")
    with pytest.raises(
        ConfigError, match="runner.backend: got nccl, allowed auto, memory or gloo: the ranks train on cpu"
    ):
        pick_backend(rank)
