"""Percentiles of phases, read back from counts that two reports can be subtracted from each other."""

from __future__ import annotations

import numpy as np
import pytest

from offpolicy.model.windows import percentiles_of
from offpolicy.timing.histogram import (
    BIN_MIDDLES_NS,
    SLICE,
    Counts,
    HistogramRecorder,
    bins_of,
)
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase as Phase
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
    for slow, expected in ((40, (1.0, 31.0, 31.0, 31.0)), (1, (1.0, 1.0, 1.0, 31.0))):
        spread = percentiles_of(counts_of([1.0] * (100 - slow) + [31.0] * slow))
        assert spread is not None
        assert spread == pytest.approx((100, *expected), rel=0.05)


def test_a_duration_is_read_back_to_three_per_cent() -> None:
    ns = np.geomspace(2**10, 2**38 - 1, 5000).astype(np.int64)
    assert BIN_MIDDLES_NS[bins_of(ns)] == pytest.approx(ns, rel=0.033)


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
