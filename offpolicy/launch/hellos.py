"""The first message of each process of a run: who is still missing, and the counters that the run begins with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from offpolicy.training.run_memory import COLLECTOR_COUNTERS
from offpolicy.types import NO_ACCOUNT, CollectorTotals, LearnerTotals, MetricTotals, Snapshot


class Hellos:
    """The hellos of the learners and collectors of one host, by the name of the process."""

    def __init__(self, num_learners: int, num_collectors: int) -> None:
        self._collectors = [f"collector {index}" for index in range(num_collectors)]
        self._names = [*(f"learner {rank}" for rank in range(num_learners)), *self._collectors]
        self._messages: dict[str, Mapping[str, Any]] = {}

    def add(self, name: str, message: Mapping[str, Any]) -> None:
        """Keeps the hello of a process."""
        self._messages[name] = message

    @property
    def are_complete(self) -> bool:
        """True if every learner and collector has sent its hello."""
        return not self._missing

    @property
    def waiting_for(self) -> str:
        """What the run waits for at its start."""
        if self._missing:
            return f"starting: waiting for {', '.join(self._missing)} to load torch and make environments"
        return "starting: waiting for the first update"

    @property
    def _missing(self) -> list[str]:
        return [name for name in self._names if name not in self._messages]

    def baseline(self, num_hosts: int, num_ranks: int, replay_capacity: int) -> Snapshot:
        """Returns the counters before these processes: zero, or the checkpoint's. `num_ranks`: of all hosts."""
        learner, collectors = self._messages["learner 0"], [self._messages[name] for name in self._collectors]
        names, sums, counts = tuple(learner["metrics"]), np.array(learner["sums"]), np.array(learner["counts"])
        # Every rank sends the sums of the checkpoint, but only rank 0 continues them; the others start from zero.
        first = LearnerTotals(NO_ACCOUNT, learner["updates"], 0, 0.0, MetricTotals(names, sums, counts))
        other = LearnerTotals(NO_ACCOUNT, learner["updates"], 0, 0.0, MetricTotals(names, 0 * sums, 0 * counts))
        return Snapshot(
            wall_s=0.0,
            env_steps=num_hosts * sum(hello["env_steps"] for hello in collectors),
            iteration=0,
            learners=(first, *[other] * (num_ranks - 1)),
            collectors=tuple(
                CollectorTotals(NO_ACCOUNT, **{name: hello[name] for name in COLLECTOR_COUNTERS})
                for hello in collectors
            ),
            replay_rows=0,
            replay_capacity=replay_capacity,
            update_debt=None,
        )
