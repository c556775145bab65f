"""The learner ranks of a run as one world: they agree once per iteration and take every decision together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from offpolicy.distributed.arrivals import ArrivalLog
from offpolicy.distributed.rank_group import RankGroup
from offpolicy.protocols import StepGate, World
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase
from offpolicy.types import ArrivalTotals, Float64

CLOCK_EXCHANGES = 64  # exchanges from which the offsets of clocks are bounded first; each takes a round trip


class Ranks(World, Protocol):
    """The world as checkpointer, reporter and evaluator see it: they run on every rank, in the same iteration."""

    rank: int
    num_ranks: int
    is_reporting: bool  # True if this iteration ends with a report
    is_saving: bool  # True if a checkpoint has been asked for since the last iteration, by the clock or a user
    stopped_by: int | None  # the rank that asked to stop
    late_waits_ns: Sequence[int]  # [R] waits that the last `gather` has found: an account read before it lacks them

    def arrivals(self) -> ArrivalTotals:
        """Returns how often, and by how much, this rank was late at exchanges with the others."""
        ...

    def gather(self, values: Sequence[float] | Float64) -> Float64:
        """Returns the values [n] of all ranks as [R, n]; a collective."""
        ...

    def recount(self) -> None:
        """Agrees on `env_steps` again, while all collectors stand still for a snapshot; a collective."""
        ...


class SoloWorld:
    """A world of one rank."""

    rank = 0
    num_ranks = 1

    def __init__(self, gate: StepGate, wants_report: Callable[[], bool], wants_save: Callable[[], bool]) -> None:
        self._gate, self._wants_report, self._wants_save = gate, wants_report, wants_save
        self.env_steps = gate.env_steps
        self.is_reporting = self.is_saving = False
        self.stopped_by: int | None = None
        self.late_waits_ns: Sequence[int] = (0,)

    def arrivals(self) -> ArrivalTotals:
        """Returns zeros: there is nobody to wait for."""
        return ArrivalTotals()

    def agree(self, *, is_stopping: bool) -> bool:
        """Reads the number of env steps and the wishes for a report and a save; returns `is_stopping`."""
        self.env_steps = self._gate.env_steps
        self.is_reporting, self.is_saving = self._wants_report(), self._wants_save()
        self.stopped_by = 0 if is_stopping else None
        return is_stopping

    def gather(self, values: Sequence[float] | Float64) -> Float64:
        """Returns the values [n] as [1, n]."""
        return np.array([values], dtype=np.float64)

    def recount(self) -> None:
        """Reads the number of env steps again."""
        self.env_steps = self._gate.env_steps


class RankWorld:
    """A world of several ranks. One small collective per iteration carries everything that they must agree on.

    Only a host's leader counts its collectors and knows if a user of its host wants a checkpoint now; only rank 0
    decides when to report, and when the clock wants a checkpoint. A rank that wants to stop stops all.
    Whatever is gathered carries the instants at which the ranks arrived at this and the exchanges before it.
    """

    def __init__(  # noqa: PLR0913  # what joins a rank to the others
        self,
        group: RankGroup,
        gate: StepGate,
        wants_report: Callable[[], bool],
        wants_save: Callable[[], bool],
        arrivals: ArrivalLog,
        ledger: Ledger,
        *,
        is_leader: bool,
    ) -> None:
        self._group, self._gate, self._is_leader = group, gate, is_leader
        self._wants_report, self._wants_save = wants_report, wants_save
        self._arrivals, self._ledger = arrivals, ledger
        self.rank, self.num_ranks = group.rank, group.num_ranks
        self.env_steps = 0
        self.is_reporting = self.is_saving = False
        self.stopped_by: int | None = None
        self.late_waits_ns: Sequence[int] = (0,) * group.num_ranks

    def arrivals(self) -> ArrivalTotals:
        """Returns how often, and by how much, this rank was late at exchanges with the others."""
        return self._arrivals.totals()

    def agree(self, *, is_stopping: bool) -> bool:
        """Waits for every rank and agrees on env steps, report, checkpoint and stop; True if any rank stops."""
        wants_save = self._is_leader and self._wants_save()
        table = self.gather((self._own_steps, self.rank == 0 and self._wants_report(), is_stopping, wants_save))
        self._arrivals.end_iteration()
        self.env_steps = int(table[:, 0].sum())
        self.is_reporting = bool(table[0, 1])
        self.is_saving = bool(table[:, 3].any())
        stopping = np.flatnonzero(table[:, 2])
        self.stopped_by = int(stopping[0]) if len(stopping) else None
        return self.stopped_by is not None

    def gather(self, values: Sequence[float] | Float64) -> Float64:
        """Returns the values [n] of all ranks as [R, n]; a collective."""
        with self._ledger.phase(LearnerPhase.PARAM_SYNC):
            arrived_ns = self._ledger.switched_ns
            own = np.concatenate((values, self._arrivals.stamps(arrived_ns)), dtype=np.float64)
            table: Float64 = self._group.gather(torch.from_numpy(own)).numpy()
            values_of_all, stamps = np.split(table, [len(values)], axis=1)
            self.late_waits_ns = self._arrivals.settle(stamps)
        self._arrivals.end_gathering(arrived_ns, self._ledger.switched_ns)
        return values_of_all

    def recount(self) -> None:
        """Agrees on the env steps of all hosts again."""
        self.env_steps = int(self.gather((self._own_steps,)).sum())

    def compare_clocks(self) -> None:
        """Bounds the offsets of the hosts' clocks by exchanges of nothing, one right after the other; a collective."""
        for _ in range(CLOCK_EXCHANGES):
            with self._arrivals.exchange():
                self._group.gather(torch.zeros(1))
        self.gather(())

    @property
    def _own_steps(self) -> int:
        """Env steps of this host, or 0 on ranks other than its leader."""
        return self._gate.env_steps if self._is_leader else 0
