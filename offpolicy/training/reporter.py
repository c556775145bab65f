"""Reporting the cumulative counters of all ranks to the supervisor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from offpolicy.processes.child import name_threads
from offpolicy.processes.control_page import RankWord
from offpolicy.timing.profiler import Profiler
from offpolicy.training.health import NUM_FACTS, HealthCheck
from offpolicy.training.resume import RankState
from offpolicy.training.run_memory import learner_reports
from offpolicy.types import Float64, LearnerTotals


class Reporter:
    """Publishes the report of all ranks when rank 0's supervisor asks; the metrics are read only then."""

    def __init__(self, state: RankState, health: HealthCheck, profiler: Profiler) -> None:
        self._rank, self._learner, self._source = state.rank, state.learner, state.source
        self._world, self._health, self._profiler = state.world, health, profiler
        self._warmup_updates = 0  # updates of the first iteration and before it: the account begins behind them
        rank, names = state.rank, list(state.start.metrics.names)
        self._reports = learner_reports(rank.child.block("learner_report"), names, rank.num_ranks)
        self._matrix: Float64 = np.zeros((rank.num_ranks, len(self._own_vector())))

    def run_if_due(self) -> None:
        """Updates the progress words, and reports if all ranks have agreed to: one collective for all numbers."""
        words = self._rank.words
        words[RankWord.PROGRESS] += 1
        words[RankWord.ITERATIONS] += 1
        self._profiler.step()
        num_updates = self._learner.num_updates
        words[RankWord.UPDATES] = num_updates
        self._warmup_updates = self._warmup_updates or num_updates
        if self._world.is_reporting:
            name_threads()  # those started since; the supervisor tells threads apart by name
            table = self._world.gather(np.concatenate((self._health.facts(), self._own_vector())))
            self._health.require(table[:, :NUM_FACTS])
            self._publish(table[:, NUM_FACTS:])

    def run_last(self, *, is_complete: bool) -> None:
        """Reports once more: the last report closes the account."""
        self._rank.words[RankWord.UPDATES] = self._learner.num_updates
        env_steps, stopped_by = self._world.env_steps, self._world.stopped_by
        self._rank.child.send("done", is_complete=is_complete, env_steps=env_steps, stopped_by=stopped_by)
        self._publish(self._world.gather(self._own_vector()))

    def publish_own(self) -> None:
        """Reports this rank's own counters, without asking the other ranks."""
        matrix = self._matrix.copy()
        matrix[self._rank.rank] = self._own_vector()
        self._publish(matrix)

    def _publish(self, matrix: Float64) -> None:
        self._matrix = matrix
        if self._rank.is_leader:
            self._reports.publish(matrix)

    def _own_vector(self) -> Float64:
        """Returns the counters of this rank as one vector."""
        learner, source, ledger = self._learner, self._source, self._rank.ledger
        account = ledger.account()
        if ledger.is_in_iteration:
            # Its time is in the account but for the end of this phase. Without it, long iterations were divided by a
            # number that is one too small at first, and one too large in the last record.
            account = replace(account, iterations=account.iterations + 1)
        totals = LearnerTotals(
            metrics=learner.read_metrics(),
            updates=learner.num_updates,
            warmup_updates=self._warmup_updates,
            samples=source.samples,
            # The source knows the rings of this host; those of the others grow at the same pace.
            sample_age_sum=source.sample_age_sum * self._rank.job.host.num_hosts,
            account=account,
            packer=source.packer_account(),
            rollouts=source.rollouts,
            device=self._rank.device_timer.totals(),
            late=self._world.late,
        )
        return self._reports.vector(totals)
