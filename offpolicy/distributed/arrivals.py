"""Arrival of the ranks at their exchanges: the wait for the last one apart from the exchange itself, without a barrier.

An exchange lasts from a rank's arrival to its own end, and all of it is `param_sync` at first. Each rank notes when it
arrived; the notes travel with the next vector that the ranks gather anyway. Then every rank knows when the last one
arrived, and its own time until then moves to `rank_barrier`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median_low

import numpy as np

from offpolicy.distributed.clock_offsets import ClockOffsets
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LEARNER_OWN_WORK, LearnerPhase
from offpolicy.types import ArrivalTotals, Float64

NUM_OWN = 2  # numbers in front of the exchanges: the arrival at the gathering, and the work of the iteration
STAMPS = 2  # numbers of one exchange: a rank's arrival and its end
CAPPED = 0.1  # share of an iteration's work that counts as lateness at most, so that a rare pause makes no straggler


def waits_of(arrived_ns: Sequence[int], ended_ns: Sequence[int]) -> list[int]:
    """Returns by rank the wait at an exchange at which it arrived at `arrived_ns` and which it left at `ended_ns`.

    It is the time until the last rank arrived, within the rank's own time in the exchange, even where clocks differ.
    Plain Python: there are few numbers, several times per iteration.
    """
    last_ns = max(arrived_ns)
    return [min(last_ns - at, max(end - at, 0)) for at, end in zip(arrived_ns, ended_ns, strict=True)]


class ArrivalLog:
    """The exchanges of one rank since the last gathering, and how late it was in each iteration.

    With timing off all instants are 0: the vectors are the same, and no clock is read.
    """

    def __init__(self, rank: int, ledger: Ledger, offsets: ClockOffsets) -> None:
        ledger.trace_when_split(LearnerPhase.PARAM_SYNC)
        self._rank, self._ledger, self._offsets = rank, ledger, offsets
        self._pending: list[tuple[int, int]] = []  # arrival and end of each exchange, by this rank's clock
        self._iteration_ns = self._worked_ns = 0  # all work of this rank until the iteration began, until now
        self._work_of_ranks_ns: Sequence[int] = ()  # [R] in this iteration, until the last gathering
        self._waited_ns = 0  # at the last gathering
        self._totals = ArrivalTotals()

    def totals(self) -> ArrivalTotals:
        """Returns the cumulative counts of this rank."""
        return self._totals._replace(clock_error_ns=self._offsets.error_ns)

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Opens `param_sync` for an exchange, and notes it."""
        with self._ledger.phase(LearnerPhase.PARAM_SYNC):
            arrived_ns = self._ledger.switched_ns
            yield
        self._pending.append((arrived_ns, self._ledger.switched_ns))

    def add(self, took_ns: int) -> None:
        """Notes an exchange on the device, which has just ended there and took so long, waits for ranks included."""
        self._pending.append(self._ledger.insert(LearnerPhase.PARAM_SYNC, took_ns))

    def stamps(self, arrived_ns: int) -> list[int]:
        """Returns what to gather: the arrival at this gathering, the work of the iteration, the exchanges so far."""
        self._worked_ns = self._ledger.total_ns(LEARNER_OWN_WORK)
        work_ns = max(self._worked_ns - self._iteration_ns, 0)  # the account restarts when the warm-up ends
        return [arrived_ns, work_ns, *(instant for exchange in self._pending for instant in exchange)]

    def settle(self, stamps: Float64) -> list[int]:
        """Divides this rank's exchanges, given the stamps of all ranks [R, 2 + 2 K], right after gathering them.

        Returns by rank the wait at the K exchanges, which accounts sent with that gathering did not know yet.
        """
        instants = stamps.astype(np.int64)
        self._work_of_ranks_ns = instants[:, 1].tolist()
        if self._offsets.are_needed:
            self._offsets.observe(instants[:, NUM_OWN::STAMPS], instants[:, NUM_OWN + 1 :: STAMPS])
            instants -= self._offsets.by_rank_ns[:, np.newaxis]
        gathered_ns, _, *noted = zip(*instants.tolist(), strict=True)  # a tuple over the ranks for each number
        waits = [waits_of(arrived, ended) for arrived, ended in zip(noted[::STAMPS], noted[1::STAMPS], strict=True)]
        for (start_ns, stop_ns), waited_ns in zip(self._pending, waits, strict=True):
            self._split(start_ns, stop_ns, waited_ns[self._rank])
        self._pending.clear()
        self._waited_ns = max(gathered_ns) - gathered_ns[self._rank]
        return [sum(each) for each in zip(*waits, strict=True)] or [0] * len(gathered_ns)

    def end_gathering(self, arrived_ns: int, stopped_ns: int) -> None:
        """Divides the gathering itself, once `param_sync` is closed."""
        self._split(arrived_ns, stopped_ns, self._waited_ns)

    def _split(self, start_ns: int, stop_ns: int, waited_ns: int) -> None:
        head_ns = min(waited_ns, stop_ns - start_ns)
        self._ledger.split(LearnerPhase.PARAM_SYNC, LearnerPhase.RANK_BARRIER, start_ns, stop_ns, head_ns)

    def end_iteration(self) -> None:
        """Counts by how much this rank has worked longer than the median rank, the lower of two, in the iteration."""
        work_ns, before = self._work_of_ranks_ns, self._totals
        own_ns, self._iteration_ns = work_ns[self._rank], self._worked_ns
        late_ns = max(own_ns - median_low(work_ns), 0)
        self._totals = before._replace(
            iterations=before.iterations + 1,
            late=before.late + (late_ns > 0),
            late_ns=before.late_ns + late_ns,
            capped_ns=before.capped_ns + min(late_ns, round(CAPPED * own_ns)),
        )
