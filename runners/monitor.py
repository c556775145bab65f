"""What the supervisor does ten times a second: read the shared counters, feed the logger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from offpolicy.collect.episodes import unpack_episodes
from offpolicy.config import RunConfig
from offpolicy.data.pace import Anchor, Pace
from offpolicy.ipc.control import Word
from offpolicy.ipc.reports import LearnerReports
from offpolicy.ipc.supervisor import Child
from offpolicy.logger.logger import OffPolicyLogger
from offpolicy.timing.clock import Every
from offpolicy.types import CollectorTotals, EvalResult, LearnerTotals, MetricTotals, Snapshot

from . import wiring

NUM_CHILDREN = 2  # a learner and a collector
LATE_S = 2.0  # a report not there by then is done without: its sender is in a long step


class Monitor:
    """Reads, never writes, what the children publish; asks for a report at every log interval."""

    def __init__(
        self, cfg: RunConfig, shared: wiring.SharedMemory, logger: OffPolicyLogger, elapsed_s: Callable[[], float]
    ) -> None:
        self._cfg, self._shared, self._logger, self._elapsed_s = cfg, shared, logger, elapsed_s
        self._due = Every(elapsed_s, cfg.log.every_s)
        self._asked_s: float | None = None
        self._seen = (0, 0)
        self._episode = 0
        self._hellos: dict[str, Mapping[str, Any]] = {}
        self._learner: LearnerReports | None = None
        self._pace: Pace = wiring.make_pace(cfg, Anchor(wiring.first_learning_step(cfg), 0))
        self.last_eval: EvalResult | None = None
        self._logged_eval: EvalResult | None = None
        self._num_logged = 0
        self.is_complete = False
        self.gpu: str | None = None
        self.saved_steps: list[int] = []

    def on_message(self, child: Child, message: Mapping[str, Any]) -> None:
        """Take a message of a child."""
        match message["kind"]:
            case "hello":
                self._hellos[child.role] = message
                if child.role == "learner":
                    self._meet_learner(child, message)
                if len(self._hellos) == NUM_CHILDREN:
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

    def _meet_learner(self, child: Child, message: Mapping[str, Any]) -> None:
        self._learner = self._shared.learner_reports(message["metrics"])
        self._pace = wiring.make_pace(self._cfg, Anchor(*message["start"]))
        self.gpu = message["gpu"]
        self._logger.message(f"learner: {message['device']}, {message['threads']} threads, pid {child.process.pid}")

    def _baseline(self) -> Snapshot:
        """What the counters held before this process: zero, or the checkpoint's."""
        learner, collector = self._hellos["learner"], self._hellos["collector"]
        metrics = MetricTotals(tuple(learner["metrics"]), np.array(learner["sums"]), np.array(learner["counts"]))
        counters = {name: collector[name] for name in wiring.COLLECTOR_COUNTERS}
        return Snapshot(
            wall_s=0.0,
            env_steps=collector["env_steps"],
            iteration=0,
            learners=(LearnerTotals(None, learner["updates"], 0, 0.0, metrics),),
            collectors=(CollectorTotals(None, **counters),),
            replay_rows=0,
            replay_capacity=self._shared.replay.capacity,
            update_debt=0.0,
        )

    def on_tick(self) -> None:
        """Drain the episodes, and log when a report asked for has come."""
        self.drain_episodes()
        if self._asked_s is None and self._due.is_due():
            self._shared.control.bump(Word.REPORT_REQUEST)
            self._asked_s = self._elapsed_s()
        if self._asked_s is not None and (self._has_answered() or self._elapsed_s() - self._asked_s > LATE_S):
            self._asked_s = None
            self._log()

    def snapshot(self) -> Snapshot:
        """The newest counters of everybody."""
        control = self._shared.control
        learner = self._learner.read() if self._learner else None
        collector = self._shared.collector_reports.read()
        env_steps, updates = control.get(Word.ENV_STEPS), control.get(Word.UPDATES)
        ring = self._shared.replay
        return Snapshot(
            wall_s=self._elapsed_s(),
            env_steps=env_steps,
            iteration=control.get(Word.ITERATIONS),
            learners=(learner,) if learner else (),
            collectors=(collector,) if collector else (),
            replay_rows=ring.committed - ring.oldest,
            replay_capacity=ring.capacity,
            update_debt=float(self._pace.debt(env_steps, updates)),
        )

    def log_rest(self) -> None:
        """At the end: the episodes and the counters that no record holds yet."""
        self.drain_episodes()
        snapshot = self.snapshot()
        has_begun = len(self._hellos) == NUM_CHILDREN and bool(snapshot.learners)
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
        ring = self._shared.episodes
        stop = ring.committed
        if ring.oldest > self._episode:
            self._logger.message(
                f"warning: {ring.oldest - self._episode} episodes were too many at once to be recorded"
            )
        if stop > self._episode:
            for episode in unpack_episodes(ring.read_range(self._episode, stop)):
                self._logger.log_episode(episode)
            self._episode = stop

    def _has_answered(self) -> bool:
        """Whether both sides reported: one side's window beside another one's would compare two times."""
        return all(now > seen for now, seen in zip(self._versions(), self._seen, strict=True))

    def _versions(self) -> tuple[int, int]:
        """How many reports learner and collector have published."""
        return (self._learner.version if self._learner else 0), self._shared.collector_reports.version

    def _log(self) -> None:
        """One record, or a line of status while there is nothing to learn from yet."""
        control = self._shared.control
        env_steps, updates = control.get(Word.ENV_STEPS), control.get(Word.UPDATES)
        if self._versions()[0] > self._seen[0]:
            self._seen = self._versions()
            self._logger.log_interval(self.snapshot())
            self._logged_eval = self.last_eval
            self._num_logged += 1
        elif updates == 0:
            first = self._pace.start
            is_early = 0 < env_steps < first
            self._logger.status(f"collecting steps before learning {env_steps}/{first}" if is_early else "starting")
