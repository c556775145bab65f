"""Reports are sent when all ranks have agreed to one; divergence is found on all at once; weights are published."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.errors import DesyncError, NumericsError
from offpolicy.nets.policy import flatten_into
from offpolicy.processes.mailbox import Mailbox
from offpolicy.processes.reports import Reports
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase
from offpolicy.training.rank import Rank
from offpolicy.training.reporter import Reporter, WeightPublisher, check_health
from offpolicy.types import NO_ACCOUNT, LearnerTotals, MetricTotals
from tests.unit.training.conftest import TINY, FakeWorld, MakeRank, tiny_learner


class FakeLearner:
    """A learner with one metric and a number of updates."""

    def __init__(self) -> None:
        self.num_updates, self.diverged, self.is_own = 3, False, True

    def read_metrics(self) -> MetricTotals:
        return MetricTotals(("critic_loss",), np.array([1.5]), np.array([1.0]))

    def has_diverged(self) -> bool:
        return self.diverged

    def is_origin(self) -> bool:
        return self.is_own

    def tensors(self) -> dict[str, Any]:
        return {"actor": torch.arange(3.0)}


def reporter(rank: Rank, world: FakeWorld) -> tuple[Reporter, FakeLearner]:
    learner: Any = FakeLearner()
    source = SimpleNamespace(samples=12, sample_age_sum=34.0, rollouts=None, packer_account=lambda: NO_ACCOUNT)
    return Reporter(rank, world, learner, source), learner  # type: ignore[arg-type]  # a fake source


def published(rank: Rank, num_ranks: int = 1) -> Reports[LearnerTotals]:
    return Reports(rank.child.block("learner_report"), num_ranks)


def test_an_agreed_report_is_one_collective_and_holds_every_rank(make_rank: MakeRank) -> None:
    rank = make_rank(runner={"name": "multi_gpu", "world_size": 2}, timing={"enabled": False})
    world = FakeWorld(2, lambda own: [own.copy()])
    world.is_reporting = True
    report, _ = reporter(rank, world)
    report.run_if_due()
    assert len(world.gathered) == 1
    totals = published(rank, 2).read()
    assert [(each.updates, each.samples, each.sample_age_sum) for each in totals] == [(3, 12, 34.0)] * 2


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
    rank.ledger = ledger
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


@pytest.mark.promise("nan-never-trained", "ranks-together")
def test_a_diverged_loss_names_the_rank_it_began_on_and_the_step_sizes_to_lower(make_rank: MakeRank) -> None:
    table = np.array([(1.0, 0.0, 7.0), (1.0, 1.0, 7.0)])
    with pytest.raises(NumericsError, match=r"NaN or Inf on rank 1 before .*algo\.actor_lr or algo\.critic_lr"):
        check_health(make_rank(), FakeWorld(2), table)
    appo = make_rank(algo={"name": "appo"}, runner={"name": "appo"})
    with pytest.raises(NumericsError, match=r"became NaN or Inf before .*Lower algo\.lr,"):
        check_health(appo, FakeWorld(), table[1:])


def test_ranks_that_differ_from_rank_0_are_named(make_rank: MakeRank) -> None:
    table = np.array([(0.0, 0.0, 7.0), (0.0, 0.0, 8.0), (0.0, 0.0, 9.0)])
    with pytest.raises(DesyncError, match="ranks 1, 2 no longer held"):
        check_health(make_rank(), FakeWorld(3), table)
    check_health(make_rank(), FakeWorld(2), np.array([table[0], table[0]]))


def test_what_is_published_are_the_weights_and_statistics_of_the_policy(make_rank: MakeRank) -> None:
    """With a normaliser they are written together; without one the parameters' own memory is published."""
    for normalize_obs in (False, True):
        rank = make_rank(**{**TINY, "algo": {**TINY["algo"], "normalize_obs": normalize_obs}})
        learner = tiny_learner(rank)
        policy, publisher = learner.policy, WeightPublisher(rank, learner)
        with torch.no_grad():
            next(policy.actor.parameters()).fill_(3.0)
        publisher.publish()
        received, expected = np.zeros_like(publisher.flat), np.zeros_like(publisher.flat)
        Mailbox(rank.child.block("weights"), received.nbytes).read(received)
        flatten_into(policy, expected)
        np.testing.assert_array_equal(received, expected)
        assert received[0] == 3.0
