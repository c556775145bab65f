"""The learner ranks of a run as one world: they agree once per iteration and take every decision together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median_low
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offpolicy.distributed.process_group import ProcessGroup
from offpolicy.processes.handshake import LearnerGate
from offpolicy.protocols import Exchange
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LEARNER_OWN_WORK
from offpolicy.types import LateTotals

CAPPED = 0.1  # share of an iteration's work that counts as lateness at most, so that a rare pause makes no straggler


class World:
    """The learner ranks of all hosts, as one of them sees them; alone, its collectives are the identity.

    One small collective per iteration carries all that they must agree on. Only a host's leader counts its collectors
    and knows if a user wants a checkpoint now; only rank 0 decides when to report. A rank that wants to stop stops all.
    """

    def __init__(
        self,
        gate: LearnerGate,
        requests: Callable[[], tuple[bool, bool]],
        ledger: Ledger,
        exchange: Exchange,
        group: ProcessGroup | None = None,
        *,
        is_leader: bool = True,
    ) -> None:
        """`requests` returns whether a report and a checkpoint were asked for since the last call."""
        self._gate, self._requests, self._ledger, self._group = gate, requests, ledger, group
        self.exchange = exchange  # within an update
        self.rank, self.num_ranks, self._is_leader = 0 if group is None else group.rank, exchange.num_ranks, is_leader
        self.backend = "" if group is None else group.backend
        # Of all hosts, as every rank knows them: the number that decisions go by. Ranks have not agreed on any yet.
        self.env_steps = gate.env_steps if group is None else 0
        self.is_reporting = False  # True if this iteration ends with a report
        self.is_saving = False  # True if a checkpoint was asked for since the last iteration, by the clock or a user
        self.stopped_by: int | None = None  # the rank that asked to stop
        self.late = LateTotals()  # of this rank
        self._worked_ns = 0  # all work of this rank until it last agreed

    def agree(self, *, is_stopping: bool) -> bool:
        """Waits for every rank and agrees on env steps, report, checkpoint and stop; True if any rank stops."""
        wants_report, wants_save = self._requests()
        if self._group is None:
            self.env_steps, self.is_reporting, self.is_saving = self._gate.env_steps, wants_report, wants_save
            self.stopped_by = 0 if is_stopping else None
            return is_stopping
        worked_ns = self._ledger.total_ns(LEARNER_OWN_WORK)
        work_ns, self._worked_ns = max(worked_ns - self._worked_ns, 0), worked_ns  # it restarts when the warm-up ends
        wants_report, wants_save = wants_report and self.rank == 0, wants_save and self._is_leader
        table = self.gather((self._own_steps, wants_report, is_stopping, wants_save, work_ns))
        self.env_steps = int(table[:, 0].sum())
        self.is_reporting, self.is_saving = bool(table[0, 1]), bool(table[:, 3].any())
        stopping = np.flatnonzero(table[:, 2])
        self.stopped_by = int(stopping[0]) if len(stopping) else None
        self.late = with_iteration(self.late, table[:, 4].tolist(), self.rank)
        return self.stopped_by is not None

    def gather(self, values: Sequence[float] | NDArray[Any]) -> NDArray[Any]:  # Any: bytes or float64, as they are
        """Returns the values [n] of all ranks as [R, n]; plain numbers as float64."""
        own = values if isinstance(values, np.ndarray) else np.array(values, dtype=np.float64)
        return own[np.newaxis] if self._group is None else self._group.gather(torch.from_numpy(own)).numpy()

    def any(self, flag: bool) -> bool:
        """True if any rank raises the flag: all ranks decide alike."""
        return bool(self.gather((flag,)).any())

    def total(self, value: float) -> float:
        """Returns the sum of a number over all ranks."""
        return float(self.gather((value,)).sum())

    def recount(self) -> None:
        """Agrees on `env_steps` again, while all collectors stand still for a snapshot."""
        self.env_steps = int(self.total(self._own_steps))

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Replaces every tensor, in place, by that of rank 0."""
        if self._group is not None:
            for tensor in tensors:
                self._group.broadcast(tensor)

    @property
    def _own_steps(self) -> int:
        """Env steps of this host, or 0 on ranks other than its leader."""
        return self._gate.env_steps if self._is_leader else 0


def with_iteration(late: LateTotals, work_ns: Sequence[float], rank: int) -> LateTotals:
    """Returns the totals of a rank after one iteration more, in which each rank has worked for `work_ns`.

    A rank is late by as much as it has worked longer than the median rank, of two the faster.
    """
    late_ns = round(max(work_ns[rank] - median_low(work_ns), 0))
    capped_ns = min(late_ns, round(CAPPED * work_ns[rank]))
    return LateTotals(
        late.iterations + 1, late.late + (late_ns > 0), late.late_ns + late_ns, late.capped_ns + capped_ns
    )
