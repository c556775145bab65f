"""A collector, a learner and a supervisor on one fake clock: what the real ones do to ledgers and counters, exactly.

Processes are generators that yield how long they are busy (nanoseconds) or what they wait for (a condition); the clock
jumps from event to event.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np

from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.types import CollectorTotals, LearnerTotals, MetricTotals, Snapshot
from tests.fakes import FakeClock

MS = 1_000_000
S = 1000 * MS
LATE_NS = 2 * S  # a report not there by then is done without, as in `offpolicy.launch.monitor`
NO_METRICS = MetricTotals((), np.zeros(0), np.zeros(0))
Process = Generator[int | Callable[[], bool], None, None]


@dataclass
class Pipeline:
    """Both sides of a run; times in nanoseconds, counts in env steps."""

    num_envs: int
    step_ns: Callable[[int], int]  # duration of vector step number i
    update_ns: int
    lead: int  # env steps that the collector may be ahead of those learnt from: 0 in turns
    publish_ns: int = 0
    most_updates: int = 64  # of an iteration, as in `offpolicy.replay.rate_limiter`
    report_every_ns: int = S
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.steps = self.vector_steps = self.updates = self.iterations = self.requests = 0
        self.collector_ledger, self.learner_ledger = (
            Ledger(CollectorPhase, self.clock),
            Ledger(LearnerPhase, self.clock),
        )
        self.collector_reports: list[CollectorTotals] = []
        self.learner_reports: list[LearnerTotals] = []
        self.records: list[tuple[int, Snapshot]] = []  # when, what
        self.step_ends_ns: list[int] = []

    def run(self, until_s: float) -> list[Snapshot]:
        """The snapshots of which the supervisor made records."""
        waiting: list[tuple[Process, int | Callable[[], bool]]] = [
            (process, 0) for process in (self._collect(), self._learn(), self._supervise())
        ]
        while self.clock.now_ns() < until_s * S:
            now = self.clock.now_ns()
            index = next((i for i, (_, due) in enumerate(waiting) if (due() if callable(due) else due <= now)), None)
            if index is None:
                self.clock.advance(min(due for _, due in waiting if not callable(due)) - now)
                continue
            process, _ = waiting.pop(index)
            asked = next(process)
            waiting.append((process, asked if callable(asked) else now + asked))
        return [snapshot for _, snapshot in self.records]

    def _collect(self) -> Process:
        phase, answered = self.collector_ledger.phase, 0
        self.collector_ledger.end_warmup()
        while True:
            with phase(CollectorPhase.LEARNER_WAIT):
                yield lambda: self.steps + self.num_envs <= self.updates + self.num_envs + self.lead
            with phase(CollectorPhase.ENV_STEP):
                yield self.step_ns(self.vector_steps)
            self.steps += self.num_envs
            self.vector_steps += 1
            self.step_ends_ns.append(self.clock.now_ns())
            self.collector_ledger.close()
            if self.requests != answered:
                answered = self.requests
                self.collector_reports.append(self._collector_totals())

    def _learn(self) -> Process:
        phase, answered = self.learner_ledger.phase, 0
        self.learner_ledger.end_warmup()
        while True:
            with phase(LearnerPhase.COLLECTOR_WAIT):
                yield lambda: self.steps > self.updates
            due = min(self.steps - self.updates, self.most_updates)
            with phase(LearnerPhase.TRAIN):
                yield due * self.update_ns
            with phase(LearnerPhase.WEIGHT_PUBLISH):
                yield self.publish_ns
            self.updates += due
            self.iterations += 1
            self.learner_ledger.close()
            if self.requests != answered:
                answered = self.requests
                self.learner_reports.append(self._learner_totals())

    def _supervise(self) -> Process:
        """Asks for reports, and makes a record when all have answered, or it is late and the learner has."""
        seen = (0, 0)
        while True:
            yield self.report_every_ns
            self.requests += 1
            deadline = self.clock.now_ns() + LATE_NS
            while any(now <= before for now, before in zip(self._versions(), seen, strict=True)):
                if self.clock.now_ns() >= deadline:
                    break
                yield 100 * MS
            if self._versions()[0] > seen[0]:
                seen = self._versions()
                self.records.append((self.clock.now_ns(), self.snapshot()))

    def _versions(self) -> tuple[int, int]:
        return len(self.learner_reports), len(self.collector_reports)

    def snapshot(self) -> Snapshot:
        """What the supervisor knows."""
        learners, collectors = tuple(self.learner_reports[-1:]), tuple(self.collector_reports[-1:])
        wall_s = self.clock.now_ns() / S
        return Snapshot(wall_s, self.steps, self.iterations, learners, collectors, 0, 1, None)

    def _collector_totals(self) -> CollectorTotals:
        return CollectorTotals(
            self.collector_ledger.account(), self.steps, self.vector_steps, 0.0, policy_steps=self.vector_steps
        )

    def _learner_totals(self) -> LearnerTotals:
        return LearnerTotals(self.learner_ledger.account(), self.updates, 0, 0.0, NO_METRICS)
