"""The learner ranks of a run as one world: they agree once per iteration and take every decision together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from offpolicy.distributed.process_group import RankGroup
from offpolicy.protocols import StepGate, World
from offpolicy.types import Float64


class Ranks(World, Protocol):
    """The world as checkpointer, reporter and evaluator see it: they run on every rank, in the same iteration."""

    rank: int
    num_ranks: int
    is_reporting: bool  # True if this iteration ends with a report
    stopped_by: int | None  # the rank that asked to stop

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

    def __init__(self, gate: StepGate, wants_report: Callable[[], bool]) -> None:
        self._gate, self._wants_report = gate, wants_report
        self.env_steps = gate.env_steps
        self.is_reporting = False
        self.stopped_by: int | None = None

    def agree(self, *, is_stopping: bool) -> bool:
        """Reads the number of env steps and the wish for a report; returns `is_stopping`."""
        self.env_steps = self._gate.env_steps
        self.is_reporting = self._wants_report()
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

    Only a host's leader counts its collectors; only rank 0 decides when to report. A rank that wants to stop stops all.
    """

    def __init__(self, group: RankGroup, gate: StepGate, wants_report: Callable[[], bool], *, is_leader: bool) -> None:
        self._group, self._gate, self._wants_report, self._is_leader = group, gate, wants_report, is_leader
        self.rank, self.num_ranks = group.rank, group.num_ranks
        self.env_steps = 0
        self.is_reporting = False
        self.stopped_by: int | None = None

    def agree(self, *, is_stopping: bool) -> bool:
        """Waits for every rank and agrees on env steps, report and stop; returns True if any rank stops."""
        table = self.gather((self._own_steps, self.rank == 0 and self._wants_report(), is_stopping))
        self.env_steps = int(table[:, 0].sum())
        self.is_reporting = bool(table[0, 1])
        stopping = np.flatnonzero(table[:, 2])
        self.stopped_by = int(stopping[0]) if len(stopping) else None
        return self.stopped_by is not None

    def gather(self, values: Sequence[float] | Float64) -> Float64:
        """Returns the values [n] of all ranks as [R, n]; a collective."""
        table: Float64 = self._group.gather(torch.from_numpy(np.array(values, dtype=np.float64))).numpy()
        return table

    def recount(self) -> None:
        """Agrees on the env steps of all hosts again."""
        self.env_steps = int(self.gather((self._own_steps,)).sum())

    @property
    def _own_steps(self) -> int:
        """Env steps of this host, or 0 on ranks other than its leader."""
        return self._gate.env_steps if self._is_leader else 0
