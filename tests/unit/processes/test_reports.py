"""Reports arrive in the other process as they were published, for any number of ranks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from offpolicy.processes.mailbox import Mailbox
from offpolicy.processes.reports import CollectorReports, EvaluatorReports, LearnerReports
from offpolicy.types import (
    HISTOGRAM_BINS,
    NUM_LAGS,
    Account,
    ArrivalTotals,
    CollectorTotals,
    Cooldown,
    DeviceTotals,
    EvaluatorTotals,
    HookTotals,
    LearnerTotals,
    MetricTotals,
    RolloutTotals,
    SchedulerStats,
    TaggedTime,
)

COLLECTOR_PHASES = ("env_step", "other")
PHASES, PACKER_PHASES, METRICS = ("train", "other"), ("pack", "copy", "other"), ("critic_loss", "q_mean")
NO_METRICS = MetricTotals(METRICS, np.zeros(2), np.zeros(2))


def make_reports(num_ranks: int) -> LearnerReports:
    buffer = memoryview(bytearray(LearnerReports.nbytes(num_ranks, PHASES, PACKER_PHASES, len(METRICS))))
    return LearnerReports(buffer, num_ranks, phases=PHASES, packer_phases=PACKER_PHASES, metrics=METRICS)


def account(warmup_ns: int, iterations: int, **phases_ns: int) -> Account:
    return Account(sum(phases_ns.values()), warmup_ns, iterations, phases_ns, cpu_ns=99)


LEARNER = account(7, 12, train=2**52 + 1, other=3)
PACKER = account(5, 24, pack=600, copy=70, other=8)


def learner(
    rank: int, timed: Account | None = None, packer: Account | None = None, sums: tuple[float, float] = (0.1, -2.5)
) -> LearnerTotals:
    metrics = MetricTotals(METRICS, np.array(sums), np.array([3.0, 4.0 + rank]))
    return LearnerTotals(
        timed, 10 + rank, 2560 + rank, 1.5 + rank, metrics, packer, warmup_updates=4 + rank, reported_ns=2**52 + rank
    )


def assert_same(got: LearnerTotals, sent: LearnerTotals) -> None:
    for name in ("account", "updates", "warmup_updates", "samples", "sample_age_sum", "packer", "device", "arrivals"):
        assert getattr(got, name) == getattr(sent, name)
    assert got.reported_ns == sent.reported_ns
    assert got.metrics.names == sent.metrics.names
    np.testing.assert_array_equal(got.metrics.sums, sent.metrics.sums)
    np.testing.assert_array_equal(got.metrics.counts, sent.metrics.counts)


def sent_and_read(*totals: LearnerTotals) -> tuple[LearnerTotals, ...]:
    reports = make_reports(len(totals))
    reports.publish(np.stack([reports.vector(rank) for rank in totals]))
    return reports.read()


@pytest.mark.parametrize("timed", [None, LEARNER])
@pytest.mark.parametrize("packer", [None, PACKER])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_the_reports_of_all_ranks_arrive_in_their_order(
    num_ranks: int, timed: Account | None, packer: Account | None
) -> None:
    sent = [learner(rank, timed, packer) for rank in range(num_ranks)]
    got = sent_and_read(*sent)
    assert len(got) == num_ranks
    for one, other in zip(got, sent, strict=True):
        assert_same(one, other)


def test_one_rank_may_have_what_another_one_lacks() -> None:
    sent = (learner(0, LEARNER), learner(1, None, PACKER), learner(2))
    for one, other in zip(sent_and_read(*sent), sent, strict=True):
        assert_same(one, other)


def test_integers_are_exact_up_to_two_to_the_fifty_third() -> None:
    days_104 = 2**53 - 1
    sent = LearnerTotals(account(days_104, days_104, train=days_104, other=0), days_104, days_104, 0.0, NO_METRICS)
    (got,) = sent_and_read(sent)
    assert got.account == sent.account
    assert (got.updates, got.samples) == (days_104, days_104)
    assert isinstance(got.updates, int)


def test_the_account_of_a_longer_run_is_rounded_and_still_closes() -> None:
    sent = LearnerTotals(account(0, 1, train=2**53 + 1, other=2**54 + 3), 0, 0, 0.0, NO_METRICS)
    (got,) = sent_and_read(sent)
    assert got.account is not None
    assert got.account.wall_ns == sum(got.account.phases_ns.values())
    assert got.account.wall_ns == pytest.approx(2**53 + 2**54, rel=1e-15)


def test_sums_that_are_no_numbers_arrive_and_disturb_no_neighbour() -> None:
    sent = (learner(0, LEARNER, PACKER, (math.nan, math.inf)), learner(1, LEARNER, PACKER))
    for one, other in zip(sent_and_read(*sent), sent, strict=True):
        assert_same(one, other)


def test_what_became_of_rollouts_arrives_and_a_rank_without_them_has_none() -> None:
    lags = np.arange(NUM_LAGS, dtype=np.float64)
    with_rollouts = replace(learner(0, LEARNER), rollouts=RolloutTotals(too_old=3, lags=lags))
    got, without = sent_and_read(with_rollouts, learner(1, LEARNER))
    assert_same(got, with_rollouts)
    assert got.rollouts is not None
    assert (got.rollouts.too_old, got.rollouts.lags.tolist()) == (3, lags.tolist())
    assert without.rollouts is None


def test_rollouts_that_are_all_still_to_come_are_not_none() -> None:
    (got,) = sent_and_read(replace(learner(0), rollouts=RolloutTotals(0, np.zeros(NUM_LAGS))))
    assert got.rollouts is not None
    assert (got.rollouts.too_old, got.rollouts.lags.sum()) == (0, 0.0)


def test_the_devices_time_arrives_and_a_rank_without_a_device_has_none() -> None:
    on_device = replace(
        learner(0, LEARNER), device=DeviceTotals(2**52 + 1, 2, 3, 4, 5, iterations=6, launch_bound=7, dropped=8)
    )
    got, without = sent_and_read(on_device, learner(1, LEARNER))
    assert_same(got, on_device)
    assert without.device is None


def test_lateness_arrives() -> None:
    late = replace(learner(0), arrivals=ArrivalTotals(1, 2, 3, 2**52 + 1, 5))
    got, other = sent_and_read(late, learner(1))
    assert_same(got, late)
    assert other.arrivals == ArrivalTotals()


def test_time_moves_between_the_phases_of_each_rank_of_a_gathered_matrix() -> None:
    reports = make_reports(2)
    gathered = np.stack([[7.0, *reports.vector(learner(rank, LEARNER))] for rank in (0, 1)])
    matrix = gathered[:, 1:]  # as it is gathered, behind other numbers
    reports.move(matrix, "train", "other", [10, 0])
    reports.publish(matrix)
    first, second = reports.read()
    assert first.account == account(7, 12, train=2**52 - 9, other=13)
    assert second.account == LEARNER


def test_nothing_is_read_before_the_first_report() -> None:
    reports = make_reports(2)
    assert (reports.read(), reports.version) == ((), 0)


def test_the_newest_report_is_read() -> None:
    reports = make_reports(1)
    for rank in range(5):
        reports.publish(reports.vector(learner(rank))[None])
    assert (reports.read()[0].updates, reports.version) == (14, 5)


def test_a_report_that_was_read_is_not_overwritten_by_the_next() -> None:
    reports = make_reports(1)
    reports.publish(reports.vector(learner(0, sums=(1.0, 2.0)))[None])
    (first,) = reports.read()
    for _ in range(3):
        reports.publish(reports.vector(learner(0, sums=(8.0, 9.0)))[None])
    assert reports.read()[0].metrics.sums.tolist() == [8.0, 9.0]
    assert first.metrics.sums.tolist() == [1.0, 2.0]


# Two accounts with eleven numbers and a flag besides their phases, and a cooldown with three numbers, a flag and the
# phases again; the first with how each phase and the whole spread, with slow iterations and with states; four counters,
# rollouts (a flag, those too old, 32 lags), the device (a flag, eight numbers), lateness (five), sums and counts.
ROW = (12 + 2 + 4 + 2 + 3 * HISTOGRAM_BINS + 3 + 3 * 2) + (12 + 3 + 4 + 3) + 4 + 1 + 34 + 9 + 5 + 2 + 2


def test_the_size_of_a_block_follows_from_the_number_of_metrics() -> None:
    assert LearnerReports.nbytes(3, PHASES, PACKER_PHASES, len(METRICS)) == Mailbox.nbytes(3 * 8 * ROW)


@pytest.mark.parametrize(
    "matrix", [np.zeros((2, ROW)), np.zeros((3, ROW), np.float32), np.zeros((3, ROW - 1)), np.zeros(3 * ROW)]
)
def test_a_matrix_that_is_not_one_row_per_rank_is_refused(matrix: np.ndarray) -> None:
    with pytest.raises(ValueError, match=rf"reports are float64 \(3, {ROW}\), got"):
        make_reports(3).publish(matrix)


def test_a_rank_with_other_metrics_is_refused() -> None:
    odd = LearnerTotals(None, 0, 0, 0.0, MetricTotals(("q_mean", "critic_loss"), np.zeros(2), np.zeros(2)))
    with pytest.raises(ValueError, match="q_mean"):
        make_reports(1).vector(odd)


ACCOUNT = Account(2**55 + 4, 2**60 + 1, 12, {"env_step": 2**55 + 1, "other": 3}, 99)


@pytest.mark.parametrize("timed", [None, ACCOUNT])
def test_a_collectors_report_arrives_exactly(timed: Account | None) -> None:
    reports = CollectorReports(memoryview(bytearray(CollectorReports.nbytes(COLLECTOR_PHASES))), COLLECTOR_PHASES)
    assert reports.read() is None
    hook = HookTotals(9, 2, 2**60 + 5, 2**59 + 1)
    sent = CollectorTotals(timed, 2**60 + 1, 50, 12.5, 40, rollouts=2**60 + 3, rollouts_dropped=7, hook=hook)
    reports.publish(sent)
    found = reports.read()
    assert (found, reports.version) == (sent, 1)
    assert found is not None
    assert found.hook.post_hidden_ns == 2**59 + 1


@pytest.mark.parametrize("timed", [None, ACCOUNT])
def test_the_evaluators_report_arrives_exactly(timed: Account | None) -> None:
    reports = EvaluatorReports(memoryview(bytearray(EvaluatorReports.nbytes(COLLECTOR_PHASES))), COLLECTOR_PHASES)
    assert reports.read() is None
    sent = EvaluatorTotals(timed, episodes=2**60 + 1, skipped=3, post_failures=1)
    reports.publish(sent)
    assert (reports.read(), reports.version) == (sent, 1)


def test_every_part_of_an_account_arrives() -> None:
    histogram = np.arange(3 * HISTOGRAM_BINS).reshape(3, HISTOGRAM_BINS)
    cooldown = Cooldown({"train": 1, "other": 2}, 3, SchedulerStats(4, 5))
    states = np.arange(6).reshape(2, 3)
    sent = replace(
        LEARNER,
        scheduler=SchedulerStats(5, 6),
        tagged=TaggedTime(7, 8, 9, 10, 11, 12),
        histogram=histogram,
        cooldown=cooldown,
        states=states,
    )
    (got,) = sent_and_read(learner(0, sent, replace(PACKER, scheduler=SchedulerStats(1, 2), histogram=histogram)))
    assert got.account == sent
    assert got.account.histogram is not None
    assert (got.account.histogram.dtype, got.account.histogram.tolist()) == (np.int64, histogram.tolist())
    assert got.account.states is not None
    assert (got.account.states.dtype, got.account.states.tolist()) == (np.int64, states.tolist())
    assert got.packer is not None
    assert (got.packer.scheduler, got.packer.histogram, got.packer.states) == (SchedulerStats(1, 2), None, None)
