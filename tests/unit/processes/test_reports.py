"""Reports arrive in the other process as they were published, for any number of ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from offpolicy.processes.reports import LearnerReports, ProcessReports
from offpolicy.types import (
    HISTOGRAM_BINS,
    NO_ACCOUNT,
    Account,
    CollectorTotals,
    Cooldown,
    EvaluatorTotals,
    LearnerTotals,
    MetricTotals,
    SchedulerStats,
    TaggedTime,
)

COLLECTOR_PHASES = ("env_step", "other")
PHASES, PACKER_PHASES, METRICS = ("train", "other"), ("pack", "copy", "other"), ("critic_loss", "q_mean")


def make_reports(num_ranks: int) -> LearnerReports:
    buffer = memoryview(bytearray(LearnerReports.nbytes(num_ranks, PHASES, PACKER_PHASES, len(METRICS))))
    return LearnerReports(buffer, num_ranks, phases=PHASES, packer_phases=PACKER_PHASES, metrics=METRICS)


def account(warmup_ns: int, iterations: int, **phases_ns: int) -> Account:
    return Account(sum(phases_ns.values()), warmup_ns, iterations, phases_ns, cpu_ns=99)


LEARNER = account(7, 12, train=2**52 + 1, other=3)
PACKER = account(5, 24, pack=600, copy=70, other=8)


def learner(
    rank: int, timed: Account = NO_ACCOUNT, packer: Account = NO_ACCOUNT, sums: tuple[float, float] = (0.1, -2.5)
) -> LearnerTotals:
    metrics = MetricTotals(METRICS, np.array(sums), np.array([3.0, 4.0 + rank]))
    return LearnerTotals(timed, 10 + rank, 2560 + rank, 1.5 + rank, metrics, packer, warmup_updates=4 + rank)


def assert_same(got: LearnerTotals, sent: LearnerTotals) -> None:
    for name in ("account", "updates", "warmup_updates", "samples", "sample_age_sum", "packer", "device", "late"):
        assert getattr(got, name) == getattr(sent, name)
    assert got.metrics.names == sent.metrics.names
    np.testing.assert_array_equal(got.metrics.sums, sent.metrics.sums)
    np.testing.assert_array_equal(got.metrics.counts, sent.metrics.counts)


def sent_and_read(*totals: LearnerTotals) -> tuple[LearnerTotals, ...]:
    reports = make_reports(len(totals))
    reports.publish(np.stack([reports.vector(rank) for rank in totals]))
    return reports.read()


@pytest.mark.parametrize(("timed", "packer"), [(NO_ACCOUNT, NO_ACCOUNT), (LEARNER, PACKER)])
def test_the_reports_of_all_ranks_arrive_in_their_order(timed: Account, packer: Account) -> None:
    sent = [learner(rank, timed, packer) for rank in range(3)]
    got = sent_and_read(*sent)
    assert len(got) == 3
    for one, other in zip(got, sent, strict=True):
        assert_same(one, other)


ACCOUNT = Account(2**55 + 4, 2**60 + 1, 12, {"env_step": 2**55 + 1, "other": 3}, 99)


@pytest.mark.parametrize(
    "sent",
    [
        CollectorTotals(NO_ACCOUNT, 2**60 + 1, 50, 12.5, 40, rollouts=2**60 + 3, rollouts_dropped=7),
        EvaluatorTotals(ACCOUNT, episodes=2**60 + 1, skipped=3),
    ],
)
def test_the_report_of_a_process_arrives_exactly(sent: CollectorTotals | EvaluatorTotals) -> None:
    kind = type(sent)
    reports = ProcessReports(
        memoryview(bytearray(ProcessReports.nbytes(kind, COLLECTOR_PHASES))), kind, COLLECTOR_PHASES
    )
    assert reports.read() is None
    reports.publish(sent)
    assert (reports.read(), reports.version) == (sent, 1)


def test_every_part_of_an_account_arrives() -> None:
    histogram = np.arange(3 * HISTOGRAM_BINS).reshape(3, HISTOGRAM_BINS)
    cooldown = Cooldown({"train": 1, "other": 2}, 3, SchedulerStats(4, 5))
    sent = replace(
        LEARNER,
        scheduler=SchedulerStats(5, 6),
        tagged=TaggedTime(7, 8),
        histogram=histogram,
        cooldown=cooldown,
    )
    (got,) = sent_and_read(learner(0, sent, replace(PACKER, scheduler=SchedulerStats(1, 2), histogram=histogram)))
    assert got.account == sent
    assert got.account.histogram is not None
    assert (got.account.histogram.dtype, got.account.histogram.tolist()) == (np.int64, histogram.tolist())
    assert got.packer is not None
    assert (got.packer.scheduler, got.packer.histogram) == (SchedulerStats(1, 2), None)
