"""Collectives of several ranks: the wait for the last one apart from the collective, to the nanosecond."""

from __future__ import annotations

from contextlib import ExitStack

from offpolicy.distributed.arrivals import Arrivals
from offpolicy.processes.control_page import ControlPage
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase as Phase
from tests.fakes import FakeClock


class Ranks:
    """Two ranks of a host in one process: their arrivals, and the clock that they share."""

    def __init__(self, *, is_one_host: bool = True) -> None:
        self.clock, page = FakeClock(1000), ControlPage(memoryview(bytearray(ControlPage.nbytes(2, 0))), 2, 0)
        self.ledgers = [Ledger(Phase, self.clock) for _ in range(2)]
        self.arrivals = [Arrivals(self.ledgers[i], page.ranks, i, is_one_host=is_one_host) for i in range(2)]
        for ledger in self.ledgers:
            ledger.end_warmup()

    def taken_ns(self, rank: int) -> dict[str, int]:
        """The phases of a rank that have taken any time."""
        account = self.ledgers[rank].account()
        assert sum(account.phases_ns.values()) == account.wall_ns
        return {phase: ns for phase, ns in account.phases_ns.items() if ns}


def test_a_rank_waits_until_the_last_one_has_arrived_and_then_exchanges() -> None:
    ranks = Ranks()
    with ranks.ledgers[0].phase(Phase.TRAIN):
        ranks.clock.advance(3)
        with ranks.arrivals[0].collective(lambda: None):
            ranks.clock.advance(40)
            with ranks.arrivals[1].collective(lambda: None):
                ranks.clock.advance(10)
    assert ranks.taken_ns(0) == {"train": 3, "rank_barrier": 40, "param_sync": 10}
    assert ranks.taken_ns(1) == {"other": 43, "param_sync": 10}


def test_a_rank_that_is_ahead_and_waits_at_the_next_collective_does_not_count_for_this_one() -> None:
    ranks = Ranks()
    with ExitStack() as ahead, ranks.arrivals[0].collective(lambda: None):
        ranks.clock.advance(5)
        with ranks.arrivals[1].collective(lambda: None):
            ranks.clock.advance(2)
        ahead.enter_context(ranks.arrivals[1].collective(lambda: None))
        ranks.clock.advance(7)
    assert ranks.taken_ns(0) == {"rank_barrier": 5, "param_sync": 9}


def test_ranks_without_a_common_clock_wait_in_a_barrier() -> None:
    ranks = Ranks(is_one_host=False)
    with ranks.ledgers[0].phase(Phase.RANK_BARRIER), ranks.arrivals[0].collective(lambda: ranks.clock.advance(40)):
        ranks.clock.advance(10)
    assert ranks.taken_ns(0) == {"rank_barrier": 40, "param_sync": 10}
