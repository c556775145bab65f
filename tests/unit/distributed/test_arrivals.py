"""Exchanges of several ranks: the wait for the last one apart from the exchange, to the nanosecond."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from offpolicy.distributed.arrivals import ArrivalLog, waits_of
from offpolicy.distributed.clock_offsets import ClockOffsets
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase as Phase
from tests.fakes import FakeClock


class Rank:
    """One of R ranks on a host, with a clock that all of them share."""

    def __init__(self, rank: int, clock: FakeClock, num_ranks: int = 2) -> None:
        self.ledger = Ledger(Phase, clock)
        self.ledger.end_warmup()
        self.log = ArrivalLog(rank, self.ledger, ClockOffsets(num_ranks, ranks_per_host=num_ranks))

    def phases_ns(self) -> dict[str, int]:
        """The phases that have taken any time."""
        account = self.ledger.account()
        assert sum(account.phases_ns.values()) == account.wall_ns
        return {phase: ns for phase, ns in account.phases_ns.items() if ns}


def settle(rank: Rank, gathered_ns: int, others: list[list[int]], stopped_ns: int | None = None) -> list[int]:
    """Rank 0 gathers its stamps with those of the others."""
    stamps = np.array([rank.log.stamps(gathered_ns), *others], dtype=np.float64)
    late_waits_ns = rank.log.settle(stamps)
    rank.log.end_gathering(gathered_ns, gathered_ns if stopped_ns is None else stopped_ns)
    return late_waits_ns


def test_a_rank_waits_until_the_last_one_has_arrived_and_then_exchanges() -> None:
    assert waits_of([10, 40, 25], [60, 61, 62]) == [30, 0, 15]


@given(st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 10**9)), min_size=1, max_size=6))
def test_a_wait_lies_within_the_exchange_whatever_the_clocks_say(spans: list[tuple[int, int]]) -> None:
    arrived, ended = [at for at, _ in spans], [at + took for at, took in spans]
    assert all(0 <= ns <= took for ns, (_, took) in zip(waits_of(arrived, ended), spans, strict=True))


def exchange(rank: Rank, clock: FakeClock, took_ns: int) -> int:
    """An exchange inside an update; returns when the rank arrived."""
    with rank.ledger.phase(Phase.TRAIN):
        clock.advance(3)
        arrived_ns = clock.now_ns()
        with rank.log.exchange():
            clock.advance(took_ns)
    return arrived_ns


def test_what_an_exchange_waited_moves_to_the_barrier_at_the_next_gathering() -> None:
    clock = FakeClock(1000)
    rank = Rank(0, clock)
    at = exchange(rank, clock, 50)
    assert rank.phases_ns() == {"train": 3, "param_sync": 50}
    rank.ledger.close()
    late_waits_ns = settle(rank, clock.now_ns(), [[clock.now_ns(), 3, at + 40, at + 50]])
    assert rank.phases_ns() == {"train": 3, "rank_barrier": 40, "param_sync": 10}
    assert late_waits_ns == [40, 0]


def test_a_gathering_waits_itself() -> None:
    clock = FakeClock(1000)
    rank = Rank(0, clock)
    with rank.ledger.phase(Phase.RANK_BARRIER), rank.ledger.phase(Phase.PARAM_SYNC):
        clock.advance(50)
    assert settle(rank, 1000, [[1040, 0]], 1050) == [0, 0]
    assert rank.phases_ns() == {"rank_barrier": 40, "param_sync": 10}


def worked(rank: Rank, clock: FakeClock, ns: int, others: Sequence[int]) -> None:
    """An iteration in which this rank has worked for so long, and published for longer than that."""
    with rank.ledger.phase(Phase.TRAIN):
        clock.advance(ns)
    with rank.ledger.phase(Phase.WEIGHT_PUBLISH):
        clock.advance(10 * ns)
    settle(rank, clock.now_ns(), [[clock.now_ns(), other_ns] for other_ns in others])
    rank.log.end_iteration()


def test_a_rank_is_late_by_what_it_works_longer_than_the_median_rank() -> None:
    clock = FakeClock(1000)
    rank = Rank(0, clock, num_ranks=3)
    worked(rank, clock, 1000, (980, 990))
    worked(rank, clock, 1000, (1010, 990))  # it is the median rank
    worked(rank, clock, 1000, (300, 300))  # of a pause a tenth of the work counts
    assert rank.log.totals() == (3, 2, 10 + 700, 10 + 100, 0)
