"""Percentiles of phases, read back from counts that two reports can be subtracted from each other."""

from __future__ import annotations

import numpy as np
import pytest

from offpolicy.model.windows import percentiles_of
from offpolicy.timing.histogram import BIN_MIDDLES_NS, Counts, bins_of
from offpolicy.timing.ledger import SLICE, Ledger
from offpolicy.timing.phases import LearnerPhase as Phase
from tests.fakes import FakeClock

MS = 1_000_000
ROWS = tuple(Phase)


def counts_of(durations_ms: list[float], asked_every: int = 1000) -> Counts:
    """The histogram of one phase that took so long in each iteration."""
    clock = FakeClock()
    ledger = Ledger(Phase, clock)
    ledger.end_warmup()
    for index, duration_ms in enumerate(durations_ms):
        with ledger.phase(Phase.TRAIN):
            clock.advance(round(duration_ms * MS))
        ledger.close()
        if index % asked_every == 0:
            ledger.account()
    histogram = ledger.account().histogram
    assert histogram is not None
    counts: Counts = histogram[ROWS.index(Phase.TRAIN)]
    return counts


def test_two_delays_that_alternate_are_both_recovered() -> None:
    """A mean would say 13 ms, a time that no iteration took; a moving average something in between."""
    for slow, expected in ((40, (1.0, 31.0, 31.0, 31.0)), (1, (1.0, 1.0, 1.0, 31.0))):
        spread = percentiles_of(counts_of([1.0] * (100 - slow) + [31.0] * slow))
        assert spread is not None
        assert spread == pytest.approx((100, *expected), rel=0.05)


def test_a_duration_is_read_back_to_three_per_cent() -> None:
    ns = np.geomspace(2**10, 2**38 - 1, 5000).astype(np.int64)
    assert BIN_MIDDLES_NS[bins_of(ns)] == pytest.approx(ns, rel=0.033)


def test_iterations_are_counted_once_however_often_an_account_is_taken() -> None:
    counts = counts_of([1.0, 2.0] * (SLICE + 3), asked_every=50)
    ones, twos = bins_of(np.array([MS, 2 * MS]))
    assert (counts[ones], counts[twos], counts.sum()) == (SLICE + 3, SLICE + 3, 2 * SLICE + 6)


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
