"""What the supervisor does ten times a second: read the shared counters, feed the logger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from offpolicy.collect.episodes import unpack_episodes
from offpolicy.config.schema import RunConfig
from offpolicy.logger.logger import OffPolicyLogger
from offpolicy.processes.control_page import HostWord, RankWord
from offpolicy.processes.reports import LearnerReports
from offpolicy.processes.supervisor import Child
from offpolicy.replay.rate_limiter import LearningStart, RateLimiter, first_learning_step, make_rate_limiter
from offpolicy.timing.clock import Every, MonotonicClock
from offpolicy.timing.trace_writer import TraceTrack
from offpolicy.training.run_memory import COLLECTOR_COUNTERS, RunMemory
from offpolicy.types import CollectorTotals, EvalResult, LearnerTotals, MetricTotals, Snapshot

# The counters of a trace.
LAG, DEBT, ROWS = "policy lag, versions", "update debt, updates", "replay rows"
TRACED_LEVELS = (LAG, DEBT, ROWS)
LATE_S = 2.0  # a report not there by then is done without: its sender is in a long step


class Monitor:
    """Reads, never writes, what the children publish; asks for a report at every log interval."""

    def __init__(
        self,
        cfg: RunConfig,
        shared: RunMemory,
        logger: OffPolicyLogger,
        elapsed_s: Callable[[], float],
        num_hosts: int,
        trace: TraceTrack | None = None,
    ) -> None:
        self._cfg, self._shared, self._logger, self._elapsed_s = cfg, shared, logger, elapsed_s
        self._trace = trace
        self.num_hosts = num_hosts
        self._due = Every(elapsed_s, cfg.log.every_s)
        self._asked_s: float | None = None
        self._seen = self._versions_of(None)
        self._episodes_read = [0] * len(shared.episodes)
        self._hellos: dict[str, Mapping[str, Any]] = {}
        self._learner: LearnerReports | None = None
        self._pace: RateLimiter = make_rate_limiter(
            cfg, LearningStart(first_learning_step(cfg, num_hosts), 0), num_hosts
        )
        self.last_eval: EvalResult | None = None
        self._logged_eval: EvalResult | None = None
        self._num_logged = 0
        self.is_complete = False
        self.stopped_by: int | None = None  # the rank that asked to stop
        self._agreed_steps: int | None = None  # by all ranks, at the end
        self.gpu: str | None = None
        self.saved_steps: list[int] = []

    def on_message(self, child: Child, message: Mapping[str, Any]) -> None:
        """Take a message of a child."""
        match message["kind"]:
            case "hello":
                self._hellos[child.name] = message
                if child.is_learner:
                    self._meet_learner(child, message)
                if self._has_everybody:
                    self._logger.start_from(self._baseline())
            case "eval":
                fields = {name: message[name] for name in EvalResult._fields}
                self.last_eval = EvalResult(**fields)
                self._logger.log_eval(self.last_eval)
            case "checkpoint":
                self.saved_steps.append(message["env_steps"])
            case "warning":
                self._logger.message(f"warning: {message['text']}")
            case "done":
                self.is_complete = bool(message["is_complete"])
                self.stopped_by = message["stopped_by"]
                self._agreed_steps = message["env_steps"]

    @property
    def _has_everybody(self) -> bool:
        """Whether every child has said hello."""
        return len(self._hellos) == self._cfg.runner.world_size + self._cfg.collect.num_collectors

    def _meet_learner(self, child: Child, message: Mapping[str, Any]) -> None:
        backend = f", {message['backend']}" if message["backend"] else ""
        self._logger.message(
            f"{child.name}: {message['device']}{backend}, {message['threads']} threads, pid {child.process.pid}"
        )
        if child.index == 0:
            self._learner = self._shared.learner_reports(message["metrics"])
            self._pace = make_rate_limiter(self._cfg, LearningStart(*message["start"]), self.num_hosts)
            self.gpu = message["gpu"]
            if message["flops"]:
                self._logger.set_flops(**message["flops"])
            self._logger.message(message["source"])

    def _baseline(self) -> Snapshot:
        """What the counters held before this process: zero, or the checkpoint's."""
        learner = self._hellos["learner 0"]
        collectors = [self._hellos[f"collector {i}"] for i in range(self._cfg.collect.num_collectors)]
        names, sums, counts = tuple(learner["metrics"]), np.array(learner["sums"]), np.array(learner["counts"])
        # Only rank 0 goes on with the sums of a checkpoint, which every rank tells; the others start from nothing.
        first = LearnerTotals(None, learner["updates"], 0, 0.0, MetricTotals(names, sums, counts))
        other = LearnerTotals(None, learner["updates"], 0, 0.0, MetricTotals(names, 0 * sums, 0 * counts))
        return Snapshot(
            wall_s=0.0,
            env_steps=self.num_hosts * sum(hello["env_steps"] for hello in collectors),
            iteration=0,
            learners=(first, *[other] * (self._shared.num_ranks - 1)),
            collectors=tuple(
                CollectorTotals(None, **{name: hello[name] for name in COLLECTOR_COUNTERS}) for hello in collectors
            ),
            replay_rows=0,
            replay_capacity=self._capacity,
            update_debt=None,
        )

    @property
    def _capacity(self) -> int:
        return sum(ring.capacity for ring in self._shared.rings)

    @property
    def _env_steps(self) -> int:
        """Transitions of all hosts. Those of others are told at the end; before, they do as many as ours."""
        if self.num_hosts > 1 and self._agreed_steps is not None:
            return self._agreed_steps
        return self.num_hosts * self._shared.control.env_steps

    @property
    def _updates(self) -> int:
        return self._shared.control.leader.get(RankWord.UPDATES)

    def on_tick(self) -> None:
        """Drain the episodes, and log when a report asked for has come."""
        self.drain_episodes()
        if self._trace is not None:
            self._trace_levels(self._trace)
        if self._asked_s is None and self._due.is_due():
            self._shared.control.host.bump(HostWord.REPORT_REQUEST)
            self._asked_s = self._elapsed_s()
        if self._asked_s is not None and (self._has_answered() or self._elapsed_s() - self._asked_s > LATE_S):
            self._asked_s = None
            self._log()

    def _trace_levels(self, trace: TraceTrack) -> None:
        now_ns = MonotonicClock.now_ns()
        if self._shared.rings:
            trace.count(ROWS, now_ns, self._replay_rows)
        debt = self._debt(self._env_steps)
        if debt is not None:
            trace.count(DEBT, now_ns, debt)

    @property
    def _replay_rows(self) -> int:
        return sum(ring.committed - ring.oldest for ring in self._shared.rings)

    def snapshot(self) -> Snapshot:
        """The newest counters of everybody."""
        collectors = [reports.read() for reports in self._shared.collector_reports]
        evaluator = self._shared.evaluator_reports
        env_steps = self._env_steps
        return Snapshot(
            wall_s=self._elapsed_s(),
            env_steps=env_steps,
            iteration=self._shared.control.leader.get(RankWord.ITERATIONS),
            learners=self._learner.read() if self._learner else (),
            collectors=tuple(totals for totals in collectors if totals is not None),
            replay_rows=self._replay_rows,
            replay_capacity=self._capacity,
            update_debt=self._debt(env_steps),
            evaluator=evaluator.read() if evaluator is not None else None,
        )

    def _debt(self, env_steps: int) -> float | None:
        if self._cfg.algo.learns_from_rollouts:
            return None
        return float(self._pace.debt(env_steps, self._updates))

    def log_rest(self) -> None:
        """At the end: the episodes and the counters that no record holds yet."""
        self.drain_episodes()
        snapshot = self.snapshot()
        has_begun = self._has_everybody and bool(snapshot.learners)
        if has_begun and not self._has_logged(snapshot):
            self._logger.log_interval(snapshot)

    def _has_logged(self, snapshot: Snapshot) -> bool:
        """Whether a record of this very state was written: same steps, same updates, no evaluation since."""
        last = self._logger.last_snapshot
        if last is None or self._num_logged == 0 or not last.learners or not snapshot.learners:
            return False
        is_same = (last.env_steps, last.learners[0].updates) == (snapshot.env_steps, snapshot.learners[0].updates)
        return is_same and self._logged_eval == self.last_eval

    def drain_episodes(self) -> None:
        """Log the episodes that ended since the last call."""
        for index, ring in enumerate(self._shared.episodes):
            read, stop = self._episodes_read[index], ring.committed
            if ring.oldest > read:
                self._logger.message(f"warning: {ring.oldest - read} episodes were too many at once to be recorded")
            if stop > read:
                for episode in unpack_episodes(ring.read_range(read, stop)):
                    self._logger.log_episode(episode)
                self._episodes_read[index] = stop

    def _has_answered(self) -> bool:
        """Whether all sides reported: one side's window beside another one's would compare two times."""
        return all(now > seen for now, seen in zip(self._versions_of(self._learner), self._seen, strict=True))

    def _versions_of(self, learner: LearnerReports | None) -> tuple[int, ...]:
        """How many reports the learners and each collector have published."""
        collectors = [reports.version for reports in self._shared.collector_reports]
        return (learner.version if learner else 0, *collectors)

    def _log(self) -> None:
        """One record, or a line of status while there is nothing to learn from yet."""
        versions, env_steps = self._versions_of(self._learner), self._env_steps
        if versions[0] > self._seen[0]:
            self._seen = versions
            record = self._logger.log_interval(self.snapshot())
            lag = record.get("perf/policy_lag")
            if self._trace is not None and isinstance(lag, float):
                self._trace.count(LAG, MonotonicClock.now_ns(), lag)
            self._logged_eval = self.last_eval
            self._num_logged += 1
        elif self._updates == 0:
            first = self._pace.start
            is_early = 0 < env_steps < first
            self._logger.status(f"collecting steps before learning {env_steps}/{first}" if is_early else "starting")
