"""Offsets of clocks on several hosts, from exchanges alone: the truth lies within the stated error."""

from __future__ import annotations

import numpy as np
import pytest

from offpolicy.distributed.clock_offsets import ClockOffsets

MS = 1_000_000
SHIFTS_NS = np.array([0, -7_000 * MS, 3 * MS])  # of the clocks of three hosts


def exchanges(rng: np.random.Generator, start_ns: int, count: int, late_ns: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Arrivals and ends [6, count] of two ranks per host, by their own clocks; host 1 comes later than the others."""
    start = start_ns + 5 * MS * np.arange(count)
    arrived = start + rng.integers(0, MS // 5, (6, count))
    arrived[2:4] += late_ns
    ended = arrived.max(axis=0) + rng.integers(MS // 20, MS // 4, (6, count))
    shift = np.repeat(SHIFTS_NS, 2)[:, np.newaxis]
    return arrived + shift, ended + shift


def test_one_host_needs_no_offsets() -> None:
    assert not ClockOffsets(4, ranks_per_host=4).are_needed
    assert ClockOffsets(4, ranks_per_host=2).are_needed


@pytest.mark.parametrize("seed", range(5))
def test_the_truth_lies_within_the_stated_error_which_is_a_round_trip(seed: int) -> None:
    offsets = ClockOffsets(6, ranks_per_host=2)
    offsets.observe(*exchanges(np.random.default_rng(seed), 10**12, 64))
    errors = np.abs(offsets.by_rank_ns - np.repeat(SHIFTS_NS, 2))
    assert errors.max() <= offsets.error_ns < MS // 4
    assert offsets.by_rank_ns[:2].tolist() == [0, 0]


def test_a_host_that_is_late_every_time_does_not_hide_in_its_offset() -> None:
    rng, offsets = np.random.default_rng(0), ClockOffsets(6, ranks_per_host=2)
    offsets.observe(*exchanges(rng, 10**12, 64))
    for minute in range(10):
        offsets.observe(*exchanges(rng, 10**12 + minute * 1000 * MS, 20, late_ns=20 * MS))
    errors = np.abs(offsets.by_rank_ns - np.repeat(SHIFTS_NS, 2))
    assert errors.max() <= offsets.error_ns < MS


def test_bounds_widen_by_the_drift_of_clocks() -> None:
    rng, offsets = np.random.default_rng(0), ClockOffsets(6, ranks_per_host=2)
    offsets.observe(*exchanges(rng, 10**12, 64))
    before_ns = offsets.error_ns
    offsets.observe(*exchanges(rng, 10**12 + 100_000 * MS, 1, late_ns=50 * MS))
    assert offsets.error_ns == pytest.approx(before_ns + 5 * MS, rel=0.1)  # 50 us per second


def test_a_clock_that_was_set_forward_is_measured_anew() -> None:
    rng, offsets = np.random.default_rng(0), ClockOffsets(6, ranks_per_host=2)
    offsets.observe(*exchanges(rng, 10**12, 64))
    arrived, ended = exchanges(rng, 10**12 + 1000 * MS, 64)
    arrived[4:] += 900 * MS
    ended[4:] += 900 * MS
    offsets.observe(arrived, ended)
    assert abs(offsets.by_rank_ns[4] - SHIFTS_NS[2] - 900 * MS) <= offsets.error_ns < MS


def test_without_an_exchange_nothing_is_learnt() -> None:
    offsets = ClockOffsets(2, ranks_per_host=1)
    offsets.observe(np.zeros((2, 0), np.int64), np.zeros((2, 0), np.int64))
    assert (offsets.by_rank_ns.tolist(), offsets.error_ns) == ([0, 0], 0)
