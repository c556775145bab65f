"""The statistics of several ranks in one record, and warnings of a slow one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from offpolicy.distributed.world import with_iteration
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.stragglers import StragglerWatch, rank_keys, straggler
from offpolicy.logger.timing_keys import Window
from offpolicy.timing.phases import LearnerPhase, PackerPhase
from offpolicy.types import NO_COUNTERS, Account, LateTotals, LearnerTotals, MetricTotals, Snapshot
from tests.unit.logger.conftest import record_between, verdict_of

MS = 1_000_000
NO_METRICS = MetricTotals((), np.zeros(0), np.zeros(0))


def account(iterations: int, **mean_ms: float) -> Account:
    phases_ns = {str(phase): round(iterations * mean_ms.get(phase, 0.0) * MS) for phase in LearnerPhase}
    return Account(sum(phases_ns.values()), 0, iterations, phases_ns, 0)


def rank(iterations: int, metrics: MetricTotals = NO_METRICS, **mean_ms: float) -> LearnerTotals:
    return LearnerTotals(account(iterations, **mean_ms), iterations, 0, 0.0, metrics)


def record_of(header: RunHeader, *ranks: LearnerTotals, before: tuple[LearnerTotals, ...] = ()) -> Record:
    def snapshot(learners: tuple[LearnerTotals, ...]) -> Snapshot:
        return Snapshot(0.0, 0, 0, learners, (), 0, 1, 0.0)

    since, now = snapshot(before), snapshot(ranks)
    return record_between(since, now, header, straggler(Window(since, now)))


def late_rank(iterations: int, late_ms: float, share: float, capped_ms: float | None = None) -> LearnerTotals:
    """A rank with iterations of 50 ms, 40 of them work, each of which is an iteration."""
    late_ns, capped_ns = (round(ms * MS * iterations) for ms in (late_ms, late_ms if capped_ms is None else capped_ms))
    late = LateTotals(iterations, round(share * iterations), late_ns, capped_ns)
    return dataclasses.replace(rank(iterations, train=40.0, param_sync=10.0), late=late)


FAST, SLOW = {"train": 6.0, "rank_barrier": 40.0}, {"train": 46.0, "rank_barrier": 0.1}


def test_phases_of_ranks_are_reduced_to_least_mean_and_most(header: RunHeader) -> None:
    record = record_of(header, rank(50, **FAST), rank(50, **SLOW))
    assert [record[f"rank/rank_barrier_{name}_ms"] for name in ("min", "mean", "max")] == pytest.approx(
        [0.1, 20.05, 40.0]
    )
    assert [record[f"rank/train_{name}_ms"] for name in ("min", "mean", "max")] == pytest.approx([6.0, 26.0, 46.0])
    assert record["rank/num"] == 2


@pytest.mark.parametrize("late", [0, 1, 2])
def test_the_straggler_is_late_in_most_iterations_by_more_than_the_margin(header: RunHeader, late: int) -> None:
    ranks = [late_rank(50, 0.2, 0.5) for _ in range(3)]
    ranks[late] = late_rank(50, 2.2, 0.94)
    record = record_of(header, *ranks)
    assert record["rank/straggler"] == late
    assert record["rank/late_ms"] == pytest.approx(2.0)  # beyond the median rank
    assert record["rank/late_share"] == pytest.approx(0.94)


@pytest.mark.parametrize(
    ("late_ms", "share", "is_named"),
    # The margin is 2 % of 40 ms; of 50 iterations, 12.5 of which differ, 92 % are three deviations beyond a half.
    [(0.9, 0.94, True), (0.7, 0.94, False), (9.0, 0.5, False), (9.0, 0.9, False), (9.0, 0.94, True)],
)
def test_a_rank_within_the_margin_is_not_named(header: RunHeader, late_ms: float, share: float, is_named: bool) -> None:
    paused = record_of(header, late_rank(50, 0.0, 0.1), late_rank(50, late_ms, share, capped_ms=0.5))
    assert "rank/straggler" not in paused  # only in a few long iterations
    record = record_of(header, late_rank(50, 0.0, 0.1), late_rank(50, late_ms, share))
    assert ("rank/straggler" in record) is is_named
    assert record["rank/late_ms"] == pytest.approx(late_ms)


def with_packer(learner: LearnerTotals, slots: int) -> LearnerTotals:
    phases_ns = {str(phase): slots * MS * index for index, phase in enumerate(PackerPhase)}
    return dataclasses.replace(learner, packer=Account(sum(phases_ns.values()), 0, slots, phases_ns, 0))


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("slots", [None, 100])
def test_every_runner_has_the_same_keys(
    header: RunHeader, make_snapshot: Any, num_ranks: int, slots: int | None
) -> None:
    snapshot = make_snapshot(50)
    learner = snapshot.learners[0] if slots is None else with_packer(snapshot.learners[0], slots)
    several = dataclasses.replace(snapshot, learners=(learner,) * num_ranks)
    keys = set(record_between(NO_COUNTERS, several, header))
    assert keys == set(record_between(NO_COUNTERS, snapshot, header))
    assert len([key for key in keys if key.startswith("rank/")]) == 3 * len(LearnerPhase) + 3


def test_the_packer_is_timed_per_packed_batch(header: RunHeader) -> None:
    before, after = with_packer(rank(10, train=1.0), 30), with_packer(rank(20, train=1.0), 50)
    record = record_of(header, after, before=(before,))
    assert [record[f"prefetch/{phase}_ms"] for phase in PackerPhase] == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("late", [0, 1])
def test_the_verdict_names_the_rank_that_rank_0_waits_for(header: RunHeader, make_snapshot: Any, late: int) -> None:
    waiting = dataclasses.replace(late_rank(50, 0.0, 0.0), account=account(50, **FAST))
    ranks = [waiting, waiting]
    ranks[late] = late_rank(50, 40.0, 1.0)
    snapshot = dataclasses.replace(make_snapshot(50), learners=tuple(ranks))
    verdict = verdict_of(NO_COUNTERS, snapshot, header, late=straggler(Window(NO_COUNTERS, snapshot)))
    assert verdict is not None
    assert verdict.label == ("learner(rank_barrier 87%)" if late else "learner(train 80%)")
    assert ("rank 1 arrives 40.0 ms late, in 100% of the iterations" in verdict.reason) is bool(late)


ITERATIONS, WORK_MS = 200, 8.0  # of a record of two seconds


def simulated_record(rng: np.random.Generator, slower: Sequence[float]) -> Record:
    """The record of ranks that take so many times the usual work, with noise of 4 % and rare long pauses."""
    num_ranks, work_ms = len(slower), np.zeros(len(slower))
    late = [LateTotals()] * num_ranks
    for _ in range(ITERATIONS):
        pauses_ms = rng.exponential(15.0, num_ranks) * (rng.random(num_ranks) < 0.01)
        took_ms = WORK_MS * np.array(slower) * rng.normal(1.0, 0.04, num_ranks) + pauses_ms
        late = [with_iteration(each, (MS * took_ms).tolist(), index) for index, each in enumerate(late)]
        work_ms += took_ms
    learners = tuple(
        dataclasses.replace(rank(ITERATIONS, train=ms / ITERATIONS, param_sync=0.5), late=each)
        for ms, each in zip(work_ms, late, strict=True)
    )
    window = Window(NO_COUNTERS, Snapshot(0.0, 0, 0, learners, (), 0, 1, 0.0))
    return dict(rank_keys(window, straggler(window)))


@pytest.mark.parametrize("num_ranks", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (4, 8))])
def test_of_equal_ranks_none_is_named_in_forty_records(num_ranks: int) -> None:
    rng = np.random.default_rng(num_ranks)
    records = [simulated_record(rng, (1.0,) * num_ranks) for _ in range(40)]
    assert [record for record in records if "rank/straggler" in record] == []


@pytest.mark.parametrize("num_ranks", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (4, 8))])
def test_a_rank_slower_by_five_per_cent_is_named_in_38_of_forty_records(num_ranks: int) -> None:
    rng, slow = np.random.default_rng(num_ranks), num_ranks - 1
    slower = tuple(1.05 if index == slow else 1.0 for index in range(num_ranks))
    records = [simulated_record(rng, slower) for _ in range(40)]
    assert sum(record.get("rank/straggler") == slow for record in records) >= 38


def named_by_second(*spells: tuple[float, int]) -> list[int | None]:
    """The straggler at the end of each second, of spells (share of the iterations in which rank 1 is late, seconds)."""
    watch, named = StragglerWatch(), list[int | None]()
    shares = [share for share, seconds in spells for _ in range(seconds)]
    before = NO_COUNTERS
    for second in range(len(shares) + 1):
        iterations, share = 60 * second, sum(shares[:second]) / max(second, 1)
        ranks = (late_rank(iterations, 0.0, 0.0), late_rank(iterations, 3.0 * share, share))
        snapshot = Snapshot(float(second), iterations, iterations, ranks, (), 0, 1, 0.0)
        late = watch.straggler(Window(before, snapshot))
        named.append(None if late is None else late.rank)
        before = snapshot
    return named[1:]


def test_a_rank_that_stays_late_is_named_until_it_is_hardly_late_any_more() -> None:
    named = named_by_second((0.9, 20), (0.65, 15), (0.5, 20))
    assert set(named[1:35]) == {1}  # in the disturbed spell, too, in which no rank would be newly named
    assert set(named[-10:]) == {None}


# A scripted watch: the own time of every rank in ms, one window every two seconds.
EVEN, LATE = (10.0, 10.0, 10.0), (10.0, 15.1, 10.0)


def warnings_of(*spells: tuple[tuple[float, ...], int]) -> list[str]:
    watch, warnings, wall_s = StragglerWatch(), list[str](), 100.0
    for own_ms, num_windows in spells:
        ranks = tuple(rank(10, train=ms, rank_barrier=20.0 - ms) for ms in own_ms)
        for _ in range(num_windows):
            warnings += watch.warnings(Window(NO_COUNTERS, Snapshot(wall_s, 0, 0, ranks, (), 0, 1, 0.0)))
            wall_s += 2.0
    return warnings


def test_a_rank_that_is_slow_for_a_minute_is_named_once() -> None:
    assert warnings_of((LATE, 30)) == []  # 58 s
    assert len(warnings_of(((20.0, 10.0), 40))) == 1  # of two ranks, too
    assert warnings_of((LATE, 30), (EVEN, 1), (LATE, 30)) == []  # the minute begins again
    assert warnings_of((EVEN, 5), (LATE, 200)) == [
        "warning: learner rank 1 has been slow for 60 s:"
        " 15.1 ms of own work per iteration, the median rank takes 10.0 ms"
    ]
