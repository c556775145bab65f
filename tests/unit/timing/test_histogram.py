"""Percentiles of phases, read back from counts that two reports can be subtracted from each other."""

from __future__ import annotations

import numpy as np
import pytest

from offpolicy.timing.histogram import (
    BIN_MIDDLES_NS,
    ENOUGH,
    NUM_BINS,
    RECENT,
    SLICE,
    Counts,
    HistogramRecorder,
    bins_of,
    percentiles_of,
    spreads_of,
)
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase as Phase
from offpolicy.timing.windows import elapsed
from tests.fakes import FakeClock

MS = 1_000_000
ROWS = tuple(Phase)


def counts_of(durations_ms: list[float]) -> Counts:
    """The histogram of one phase that took so long in each iteration."""
    recorder, total_ns = HistogramRecorder(1), 0
    for duration_ms in durations_ms:
        total_ns += round(duration_ms * MS)
        recorder.add([total_ns])
    return recorder.counts()[0]


def test_two_delays_that_alternate_are_both_recovered() -> None:
    """A mean would say 13 ms, a time that no iteration took; a moving average something in between."""
    histogram = percentiles_of(counts_of([1.0] * 60 + [31.0] * 40))
    assert histogram is not None
    assert histogram.iterations == 100
    assert histogram.p50 == pytest.approx(1.0, rel=0.05)
    assert (histogram.p95, histogram.p99, histogram.max) == pytest.approx((31.0, 31.0, 31.0), rel=0.05)


def test_one_slow_iteration_in_a_hundred_is_the_maximum_alone() -> None:
    histogram = percentiles_of(counts_of([2.0] * 99 + [500.0]))
    assert histogram is not None
    assert (histogram.p50, histogram.p95, histogram.p99) == pytest.approx((2.0, 2.0, 2.0), rel=0.05)
    assert histogram.max == pytest.approx(500.0, rel=0.05)


@pytest.mark.parametrize("durations_ms", [[3.0], [3.0, 3.0]])
def test_percentiles_of_a_few_iterations_are_durations_that_came(durations_ms: list[float]) -> None:
    histogram = percentiles_of(counts_of(durations_ms))
    assert histogram is not None
    assert histogram[1:] == pytest.approx((3.0,) * 4, rel=0.033)


@pytest.mark.parametrize("exponent", range(3, 12))
@pytest.mark.parametrize("digit", [1, 1.9, 2.7, 4.4, 9.99])
def test_a_duration_is_read_back_to_three_per_cent(exponent: int, digit: float) -> None:
    ns = round(digit * 10**exponent)
    if 2**10 < ns < 2**38:
        assert BIN_MIDDLES_NS[bins_of(np.array([ns]))] == pytest.approx([ns], rel=0.033)


def test_the_bins_begin_where_they_should() -> None:
    durations = [0, 1, 1023, 1024, 1087, 1088, 2047, 2048, 2175, 2176, 2**38 - 1, 2**38, 2**45]
    last = NUM_BINS - 1
    assert bins_of(np.array(durations)).tolist() == [0, 0, 0, 1, 1, 2, 16, 17, 17, 18, last, last, last]


def test_iterations_are_counted_once_however_often_somebody_asks() -> None:
    recorder, total_ns, num_iterations = HistogramRecorder(1), 0, 2 * SLICE + 7
    for index in range(num_iterations):
        total_ns += (index % 2 + 1) * MS
        recorder.add([total_ns])
        if index % 500 == 0:
            recorder.counts()
    counts = recorder.counts()[0]
    ones, twos = bins_of(np.array([MS, 2 * MS]))
    assert (counts[ones], counts[twos], counts.sum()) == (SLICE + 4, SLICE + 3, num_iterations)


def test_the_totals_of_the_last_iteration_are_known() -> None:
    recorder = HistogramRecorder(2)
    assert (recorder.last_ns(0), recorder.last_ns(1)) == (0, 0)
    recorder.add([3, 4])
    recorder.add([5, 9])
    assert (recorder.last_ns(0), recorder.last_ns(1)) == (5, 9)
    recorder.counts()
    assert (recorder.last_ns(0), recorder.last_ns(1)) == (5, 9)


@pytest.mark.parametrize("num_iterations", [1, 2, SLICE, SLICE + 1, 2 * SLICE])
def test_time_that_moves_in_the_last_iteration_is_counted_where_it_went(num_iterations: int) -> None:
    recorder = HistogramRecorder(2)
    for index in range(1, num_iterations + 1):
        recorder.add([4 * MS * index, 0])
    recorder.move_last(0, 1, 3 * MS)
    recorder.add([4 * MS * num_iterations + 1 * MS, 3 * MS])  # 4 ms more of the first phase, none of the second
    counts = recorder.counts()
    four, one, three = bins_of(np.array([4 * MS, MS, 3 * MS]))
    assert (counts[0][four], counts[0][one], counts[1][three], counts[1][0]) == (num_iterations, 1, 1, num_iterations)


def test_time_that_moves_after_the_last_iteration_was_counted_leaves_the_next_one_alone() -> None:
    recorder = HistogramRecorder(2)
    recorder.add([4 * MS, 0])
    recorder.counts()
    recorder.move_last(0, 1, 3 * MS)
    recorder.add([5 * MS, 3 * MS])
    four, zero = bins_of(np.array([4 * MS, 0]))
    assert (recorder.counts()[0][four], recorder.counts()[1][zero]) == (2, 2)


def test_nothing_counted_has_no_percentiles() -> None:
    assert percentiles_of(np.zeros(NUM_BINS, dtype=np.int64)) is None


def test_a_ledger_counts_every_phase_and_the_whole_of_every_iteration() -> None:
    clock = FakeClock()
    ledger = Ledger(Phase, clock)
    clock.advance(70 * MS)
    ledger.end_warmup()
    for train_ms in (5, 5, 20):
        with ledger.phase(Phase.TRAIN):
            clock.advance(train_ms * MS)
        clock.advance(MS)
        ledger.close()
    counts = ledger.account().histogram
    assert counts is not None
    assert counts.sum(axis=1).tolist() == [3] * (len(ROWS) + 1)
    train, whole = percentiles_of(counts[ROWS.index(Phase.TRAIN)]), percentiles_of(counts[-1])
    assert train is not None and whole is not None  # noqa: PT018
    assert (train.p50, train.max) == pytest.approx((5.0, 20.0), rel=0.033)
    assert (whole.p50, whole.max) == pytest.approx((6.0, 21.0), rel=0.033)


def test_a_window_holds_the_iterations_between_two_reports() -> None:
    clock = FakeClock()
    ledger = Ledger(Phase, clock)
    ledger.end_warmup()
    accounts = []
    for train_ms in (90, 4):
        with ledger.phase(Phase.TRAIN):
            clock.advance(train_ms * MS)
        ledger.close()
        accounts.append(ledger.account())
    window = elapsed(*accounts)
    assert window is not None
    assert window.histogram is not None
    histogram = percentiles_of(window.histogram[ROWS.index(Phase.TRAIN)])
    assert histogram is not None
    assert (histogram.iterations, histogram.max) == (1, pytest.approx(4.0, rel=0.033))


def test_a_phase_that_never_opened_has_no_percentiles() -> None:
    """Its iterations are all in the lowest bin, as are those of a phase shorter than that."""
    recorder = HistogramRecorder(2)
    recorder.add([0, 300])
    assert list(spreads_of(recorder.counts(), {"never": 0, "short": 300, "whole": 300})) == ["short", "whole"]
    assert spreads_of(HistogramRecorder(1).counts(), {"nothing counted": 5, "whole": 5}) == {}
    assert spreads_of(None, {"a": 5}) == {}


def test_slow_iterations_are_those_beyond_the_p99_of_the_ones_before() -> None:
    recorder, total_ns = HistogramRecorder(2), [0, 0]
    for index in range(4 * ENOUGH):
        total_ns[0] += 5 * MS
        total_ns[1] += 20 * MS if index % 150 == 149 else MS
        recorder.add(total_ns)
    num_slow, slow_ns = recorder.slow()
    expected = [index for index in range(4 * ENOUGH) if index % 150 == 149 and index >= 2 * SLICE]
    assert num_slow == len(expected)
    assert slow_ns == [5 * MS * len(expected), 20 * MS * len(expected)]


def test_what_comes_more_often_than_once_in_a_hundred_iterations_is_not_slow() -> None:
    recorder, total_ns = HistogramRecorder(1), 0
    for index in range(4 * ENOUGH):
        total_ns += 20 * MS if index % 50 == 49 else 5 * MS
        recorder.add([total_ns])
    assert recorder.slow() == (0, [0])


def test_what_was_long_ago_does_not_decide_for_ever_what_is_slow() -> None:
    """Iterations of 8 ms are slow again, once those of 10 ms are long enough ago."""
    recorder, total_ns = HistogramRecorder(1), [0]

    def num_slow(count: int, ms: int) -> int:
        before, _ = recorder.slow()
        for _ in range(count):
            total_ns[0] += ms * MS
            recorder.add(total_ns)
        return recorder.slow()[0] - before

    num_slow(10_000, 10)
    assert (num_slow(1000, 5), num_slow(1, 8)) == (0, 0)
    assert (num_slow(40_000, 5), num_slow(1, 8)) == (0, 1)


def test_a_slow_iteration_is_found_right_after_older_ones_were_halved() -> None:
    recorder, count = HistogramRecorder(1), 2 * RECENT + 2 * SLICE
    for index in range(1, count + 1):
        recorder.add([5 * MS * index])
    assert recorder.slow() == (0, [0])
    recorder.add([5 * MS * count + 50 * MS])
    assert recorder.slow() == (1, [50 * MS])


def test_of_several_outliers_the_longest_is_taken_and_once() -> None:
    recorder, total_ns = HistogramRecorder(1), 0
    for ms in (*(5,) * (ENOUGH + 2 * SLICE), 90, *(5,) * (2 * SLICE), 60, 5):
        total_ns += ms * MS
        recorder.add([total_ns])
    outlier = recorder.take_outlier()
    assert outlier is not None
    assert outlier[0] == 90 * MS
    assert recorder.take_outlier() is None
