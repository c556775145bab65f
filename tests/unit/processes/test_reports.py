"""Reports arrive in the other process as they were published, for any number of ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from offpolicy.processes.reports import Reports, pack, unpack
from offpolicy.types import HISTOGRAM_BINS, Account, CollectorTotals, Cooldown, LearnerTotals, MetricTotals
from offpolicy.types import SchedulerStats as Stats

HISTOGRAM = np.arange(16 * HISTOGRAM_BINS).reshape(16, HISTOGRAM_BINS)  # of as many phases as a learner has
ACCOUNT = Account(
    2**60 + 4, 2**60 + 1, 12, {"train": 2**60 + 1, "other": 3}, 99,
    histogram=HISTOGRAM, cooldown=Cooldown({"train": 1, "other": 2}, 3, Stats(4, 5)),
)  # fmt: skip


def learner(rank: int) -> LearnerTotals:
    metrics = MetricTotals(("critic_loss", "q_mean"), np.array([0.1, -2.5]), np.array([3.0, 4.0 + rank]))
    return LearnerTotals(
        ACCOUNT, 10 + rank, 2560 + rank, 1.5 + rank, metrics, packer=replace(ACCOUNT, histogram=HISTOGRAM[:6])
    )


def test_the_reports_of_all_ranks_arrive_in_their_order() -> None:
    reports = Reports[LearnerTotals](memoryview(bytearray(Reports.nbytes(3))), 3)
    assert reports.read() == ()
    reports.publish(*map(unpack, [pack(learner(rank)) for rank in range(3)]))
    got = reports.read()
    assert [(each.updates, each.samples, each.account) for each in got] == [
        (10 + rank, 2560 + rank, ACCOUNT) for rank in range(3)
    ]
    assert [each.metrics.counts.tolist() for each in got] == [[3.0, 4.0 + rank] for rank in range(3)]
    np.testing.assert_array_equal(got[2].account.histogram, HISTOGRAM)


def test_the_report_of_a_process_arrives_exactly_and_the_newest_is_read() -> None:
    reports = Reports[CollectorTotals](memoryview(bytearray(Reports.nbytes())))
    sent = CollectorTotals(ACCOUNT, 2**60 + 1, 50, 12.5, 40, rollouts=2**60 + 3, rollouts_dropped=7)
    reports.publish(sent)
    reports.publish(sent)
    assert (reports.read(), reports.version) == ((sent,), 2)
