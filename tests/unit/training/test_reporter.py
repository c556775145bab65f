"""Reports are sent when all ranks have agreed to one, and once more at the end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.distributed.host_info import HostInfo
from offpolicy.errors import NumericsError
from offpolicy.processes.control_page import RankWord
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase
from offpolicy.timing.profiler import Profiler
from offpolicy.training.health import HealthCheck
from offpolicy.training.rank import Rank
from offpolicy.training.reporter import Reporter
from offpolicy.training.run_memory import learner_reports
from offpolicy.types import NO_ACCOUNT, MetricTotals
from tests.unit.training.conftest import FakeWorld, MakeRank


class FakeLearner:
    """A learner with one metric and a number of updates."""

    def __init__(self) -> None:
        self.num_updates, self.diverged = 3, False

    def read_metrics(self) -> MetricTotals:
        return MetricTotals(("critic_loss",), np.array([1.5]), np.array([1.0]))

    def has_diverged(self) -> bool:
        return self.diverged

    def is_origin(self) -> bool:
        return True

    def tensors(self) -> dict[str, Any]:
        return {"actor": torch.arange(3.0)}


def reporter(rank: Rank, world: FakeWorld) -> tuple[Reporter, FakeLearner]:
    learner: Any = FakeLearner()
    source = SimpleNamespace(samples=12, sample_age_sum=34.0, rollouts=None, packer_account=lambda: NO_ACCOUNT)
    start = SimpleNamespace(metrics=learner.read_metrics())
    state: Any = SimpleNamespace(rank=rank, learner=learner, source=source, world=world, start=start)
    return Reporter(state, HealthCheck(rank.cfg, learner, world), Profiler(Path(), 0, 0, rank.warn)), learner


def published(rank: Rank, num_ranks: int = 1) -> Any:
    return learner_reports(rank.child.block("learner_report"), ["critic_loss"], num_ranks)


def test_an_iteration_updates_the_progress_words_and_asks_no_other_rank(make_rank: MakeRank) -> None:
    rank, world = make_rank(), FakeWorld()
    report, _ = reporter(rank, world)
    report.run_if_due()
    report.run_if_due()
    words = [rank.words[word] for word in (RankWord.PROGRESS, RankWord.ITERATIONS, RankWord.UPDATES)]
    assert (words, world.gathered, published(rank).version) == ([2, 2, 3], [], 0)


def test_an_agreed_report_is_one_collective_and_holds_every_rank(make_rank: MakeRank) -> None:
    rank = make_rank(runner={"name": "multi_gpu", "world_size": 2}, timing={"enabled": False})
    world = FakeWorld(2, lambda own: [own.copy()])
    world.is_reporting = True
    report, _ = reporter(rank, world)
    report.run_if_due()
    assert len(world.gathered) == 1
    totals = published(rank, 2).read()
    assert [(each.updates, each.samples, each.sample_age_sum) for each in totals] == [(3, 12, 34.0)] * 2


def test_ages_count_the_transitions_of_all_hosts(make_rank: MakeRank) -> None:
    """The source counts those of its own rings."""
    rank = make_rank(host=HostInfo(num_hosts=3))
    reporting, _ = reporter(rank, FakeWorld())
    reporting.publish_own()
    assert published(rank, rank.num_ranks).read()[0].sample_age_sum == 3 * 34.0


@pytest.mark.promise("nan-never-trained")
def test_a_loss_that_is_no_number_ends_the_run_at_the_next_report(make_rank: MakeRank) -> None:
    rank, world = make_rank(), FakeWorld()
    report, learner = reporter(rank, world)
    learner.diverged = world.is_reporting = True
    with pytest.raises(NumericsError, match="a loss became NaN or Inf"):
        report.run_if_due()


def test_the_last_report_says_how_the_run_ended(make_rank: MakeRank) -> None:
    rank, world = make_rank(), FakeWorld()
    world.env_steps = 80
    report, _ = reporter(rank, world)
    report.run_last(is_complete=True)
    sent = rank.child.sent  # type: ignore[attr-defined]  # a fake child
    assert sent == [("done", {"is_complete": True, "env_steps": 80, "stopped_by": None})]
    assert published(rank).version == 1


def test_the_iteration_that_reports_is_counted_as_its_time_is(make_rank: MakeRank) -> None:
    rank, world = make_rank(), FakeWorld()
    ledger = Ledger(LearnerPhase)
    object.__setattr__(rank, "ledger", ledger)
    report, _ = reporter(rank, world)
    world.is_reporting = True
    counts = []
    for _ in range(3):  # the first one is the warm-up
        with ledger.phase(LearnerPhase.LOG):
            report.run_if_due()
        counts += [totals.account.iterations for totals in published(rank).read()]
        ledger.close()
        ledger.end_warmup()
    ledger.begin_cooldown()
    report.run_last(is_complete=True)
    assert [*counts, *(totals.account.iterations for totals in published(rank).read())] == [0, 1, 2, 2]
