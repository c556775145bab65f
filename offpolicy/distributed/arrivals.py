"""Arrival of the ranks at a collective: the wait for the last one apart from the collective itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from offpolicy.processes.control_page import RankWord, Words
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase

WORDS = (RankWord.ARRIVED_EVEN, RankWord.ARRIVED_ODD)


class Arrivals:
    """Times the collectives of one rank: `rank_barrier` until the last rank has arrived, then `param_sync`.

    The ranks of one host share a clock. Each writes the instant of its arrival into shared memory before a collective,
    and reads those of the others after it. The words are used in turns: a rank that is ahead may have arrived at the
    next collective by then, but not at the one after it. With timing off all instants are 0.
    """

    def __init__(self, ledger: Ledger, ranks: Sequence[Words], index: int, *, is_one_host: bool) -> None:
        """`ranks` are the words of the ranks of this host, of which this one is `index`."""
        self._ledger, self._ranks, self._own, self._is_one_host = ledger, ranks, ranks[index], is_one_host
        self._count = 0

    @contextmanager
    def collective(self, barrier: Callable[[], None]) -> Iterator[None]:
        """Times the collective inside. `barrier` ends when every rank has called it; only several hosts need it."""
        with self._ledger.phase(LearnerPhase.PARAM_SYNC):
            if not self._is_one_host:
                barrier()
                self._ledger.charge_head(LearnerPhase.RANK_BARRIER, self._ledger.now_ns())
                yield
                return
            self._count += 1
            word = WORDS[self._count % 2]
            self._own[word] = self._ledger.switched_ns
            yield
            self._ledger.charge_head(LearnerPhase.RANK_BARRIER, max(words[word] for words in self._ranks))
