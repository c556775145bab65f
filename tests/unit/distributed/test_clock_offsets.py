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


@pytest.mark.parametrize("seed", range(2))
def test_the_truth_lies_within_the_stated_error_which_is_a_round_trip(seed: int) -> None:
    offsets = ClockOffsets(6, ranks_per_host=2)
    offsets.observe(*exchanges(np.random.default_rng(seed), 10**12, 64))
    errors = np.abs(offsets.by_rank_ns - np.repeat(SHIFTS_NS, 2))
    assert errors.max() <= offsets.error_ns < MS // 4
    assert offsets.by_rank_ns[:2].tolist() == [0, 0]
