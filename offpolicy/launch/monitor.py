"""The supervisor's view of a run, ten times a second: it reads the shared counters and feeds the logger."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from offpolicy.checkpoint import checkpoint_path
from offpolicy.logger.callbacks import Callbacks
from offpolicy.logger.logger import OffPolicyLogger
from offpolicy.logger.metrics import require_known
from offpolicy.machine import SystemMonitor
from offpolicy.output import counted
from offpolicy.processes.children import Child
from offpolicy.processes.control_page import CollectorWord, HostWord, RankWord
from offpolicy.replay.rate_limiter import LearningStart, RateLimiter, first_learning_step, make_rate_limiter
from offpolicy.timing.clock import Every, MonotonicClock
from offpolicy.timing.core_ledger import CoreLedger
from offpolicy.timing.trace_writer import open_track
from offpolicy.training.run_memory import COLLECTOR_COUNTERS, RunMemory
from offpolicy.training.worker import WorkerSpec
from offpolicy.types import (
    NO_ACCOUNT,
    NO_COUNTERS,
    CollectorTotals,
    CoreTotals,
    EpisodeRecord,
    EvalResult,
    LearnerTotals,
    MetricTotals,
    Snapshot,
)

# Names of a trace's counters.
LAG, DEBT, ROWS = "policy lag, versions", "update debt, updates", "replay rows"
STOPPING = "stopping, saving a checkpoint; Ctrl-C again ends now"
LATE_S = 2.0  # seconds after which a missing report is no longer waited for: its sender is in a long step


class Monitor:
    """Reads, never writes, what the children publish; requests reports and checkpoints when their time has come."""

    def __init__(
        self,
        job: WorkerSpec,
        shared: RunMemory,
        logger: OffPolicyLogger,
        elapsed_s: Callable[[], float],
        callbacks: Callbacks,
        cores: CoreLedger | None,
    ) -> None:
        cfg, self._num_hosts = job.cfg, job.host.num_hosts
        self._job, self._cfg, self._shared, self._logger, self._elapsed_s = job, cfg, shared, logger, elapsed_s
        self.callbacks, self._core_ledger = callbacks, cores
        self._trace = open_track(job.trace_dir, "supervisor", (LAG, DEBT, ROWS), "supervisor")
        self._cores: CoreTotals | None = None  # as read last
        self._system = SystemMonitor(None)
        self._due = Every(elapsed_s, cfg.log.every_s)
        every_min = cfg.checkpoint.every_min
        self._save_due = Every(elapsed_s, 60.0 * every_min) if every_min else None
        self._num_answered = 0  # signals that have asked for a checkpoint, and got it
        self._requested_s: float | None = None
        self._seen_versions = self._versions
        self._episodes_read = [0] * len(shared.episodes)
        self._hellos: dict[str, Mapping[str, Any]] = {}  # the first message of each process, by its name
        self._collectors = [f"collector {index}" for index in range(cfg.num_rings)]
        self._rate_limiter: RateLimiter = make_rate_limiter(
            cfg, LearningStart(first_learning_step(cfg, self._num_hosts), 0), self._num_hosts
        )
        self.last_eval = self._logged_eval = logger.last_eval  # after a resume that of the earlier start
        self._num_logged = 0
        self.is_complete = False
        self.early_stop = ""  # why the evaluations end the run before its budget is spent
        self.stopped_by: int | None = None  # rank that requested the stop
        self._agreed_steps: int | None = None  # env steps of all hosts, known at the end
        self.gpu: str | None = None
        self.saved_steps: list[int] = []

    def on_message(self, child: Child, message: Mapping[str, Any]) -> None:
        """Handles a message of a child."""
        match message["kind"]:
            case "hello":
                self._on_hello(child, message)
            case "eval":
                self.last_eval = EvalResult(**{name: message[name] for name in EvalResult._fields})
                self._logger.log_eval(self.last_eval)
                self.callbacks.post("on_evaluation", self.last_eval)
            case "eval_episode":
                self.callbacks.post("on_episode", {name: value for name, value in message.items() if name != "kind"})
            case "setting":
                update_s = {int(threads): seconds for threads, seconds in message["update_s"].items()}
                self._set_header(learner_threads=message["threads"], mode=message["mode"], tried_update_s=update_s)
                self._logger.view.message(message["text"])
            case "flops":
                self._set_header(
                    flops_per_update=message["per_update"],
                    flops_per_decision=message["per_decision"],
                    attainable_flops_per_sec=message["attainable_per_sec"],
                )
            case "checkpoint":
                self._on_checkpoint(message["env_steps"], message["signals"])
            case "activity":
                self._logger.view.activity(message["text"])
            case "note" | "warning" | "early_stop" as kind:
                self._logger.view.message(f"warning: {message['text']}" if kind == "warning" else message["text"])
                self.early_stop = message["text"] if kind == "early_stop" else self.early_stop
            case "done":
                self._read_cores()  # now: the learners' threads are gone when the last record is written
                self.is_complete = bool(message["is_complete"])
                self.stopped_by = message["stopped_by"]
                self._agreed_steps = message["env_steps"]

    def _on_checkpoint(self, env_steps: int, num_signals: int) -> None:
        """Notes a checkpoint; it is the one that the last of so many signals has asked for, if that has none yet."""
        self.saved_steps.append(env_steps)
        self.callbacks.post("on_checkpoint", checkpoint_path(self._logger.run_dir, env_steps))
        if num_signals > self._num_answered:
            self._num_answered = num_signals
            self._logger.view.message(f"checkpoint saved at env step {env_steps:,}: SIGUSR1 asked for it")

    def _on_hello(self, child: Child, message: Mapping[str, Any]) -> None:
        self._hellos[message.get("name", child.name)] = message  # the link sends those of all its collectors
        if message.get("collector"):  # of a learner that collects itself
            self._hellos["collector 0"] = message["collector"]
        if child.is_learner:
            self._on_learner_hello(child, message)
        if not self._missing:
            self._logger.start_from(self._baseline())

    def _set_header(self, **changed: Any) -> None:  # Any: fields of several types
        self._logger.set_header(replace(self._logger.header, **changed))

    @property
    def _missing(self) -> list[str]:
        """The learners and collectors that have sent no hello yet."""
        names = [*(f"learner {rank}" for rank in range(self._cfg.runner.world_size)), *self._collectors]
        return [name for name in names if name not in self._hellos]

    def _baseline(self) -> Snapshot:
        """Returns the counters before these processes: zero, or the checkpoint's."""
        learner, collectors = self._hellos["learner 0"], [self._hellos[name] for name in self._collectors]
        names, sums, counts = tuple(learner["metrics"]), np.array(learner["sums"]), np.array(learner["counts"])
        # Every rank sends the sums of the checkpoint, but only rank 0 continues them; the others start from zero.
        first = LearnerTotals(NO_ACCOUNT, learner["updates"], 0, 0.0, MetricTotals(names, sums, counts))
        other = replace(first, metrics=MetricTotals(names, 0 * sums, 0 * counts))
        return replace(
            NO_COUNTERS,
            env_steps=self._num_hosts * sum(hello["env_steps"] for hello in collectors),
            learners=(first, *[other] * (self._shared.num_ranks - 1)),
            collectors=tuple(
                CollectorTotals(NO_ACCOUNT, **{name: hello[name] for name in COLLECTOR_COUNTERS})
                for hello in collectors
            ),
            replay_capacity=self._capacity,
        )

    def _on_learner_hello(self, child: Child, message: Mapping[str, Any]) -> None:
        """Raises `UnknownMetricError` if a plug-in's update rule has other metrics: no record could hold them."""
        require_known(f"train/{name}" for name in message["metrics"])
        backend = f", {message['backend']}" if message["backend"] else ""
        products = f", products by {message['products']}" if message["products"] else ""
        self._logger.view.message(
            f"{child.name}: {message['device']}{backend}, {counted(message['threads'], 'thread')}{products},"
            f" pid {child.pid}"
        )
        if child.index == 0:
            self._set_header(learner_threads=message["threads"], mode=message["mode"])
            self._logger.set_device(message["device"], message["products"], message["kernels"])
            self._logger.view.message(f"updates: {message['kernels_text']}")
            if message["source_kind"] != "rollouts":
                self._logger.set_in_force("replay.source", message["source_kind"])
            self._system = SystemMonitor(message["device"])
            self._rate_limiter = make_rate_limiter(self._cfg, LearningStart(*message["start"]), self._num_hosts)
            self.gpu = message["gpu"]
            self._logger.view.message(message["source"])

    @property
    def _capacity(self) -> int:
        return sum(ring.max_transitions for ring in self._shared.rings)

    @property
    def _env_steps(self) -> int:
        """Transitions of all hosts. Those of the others are known at the end; before, they are taken to equal ours.

        Collectors that have not restored the checkpoint yet count as if they had.
        """
        if self._num_hosts > 1 and self._agreed_steps is not None:
            return self._agreed_steps
        return max(self._num_hosts * self._shared.control.env_steps, self._job.start_step)

    @property
    def _updates(self) -> int:
        return self._shared.control.leader[RankWord.UPDATES]

    def on_signal(self) -> None:
        """Says that the run is being stopped, at once: the learner may need seconds for its iteration and the save."""
        self._logger.stopping(STOPPING)

    def on_tick(self) -> None:
        """Logs the finished episodes, and a record when the requested reports have come."""
        self._logger.view.tick()
        self.drain_episodes()
        self._show_warnings()
        if self._trace is not None:
            now_ns, debt = MonotonicClock.now_ns(), self._debt(self._env_steps)
            if self._shared.rings:
                self._trace.count(ROWS, now_ns, self._replay_rows)
            if debt is not None:
                self._trace.count(DEBT, now_ns, debt)
        if self._save_due is not None and self._save_due.is_due():
            self._shared.control.host[HostWord.SAVE_REQUEST] += 1
        if self._requested_s is None and self._due.is_due():
            self._shared.control.host[HostWord.REPORT_REQUEST] += 1
            self._requested_s = self._elapsed_s()
        if self._requested_s is not None:
            # All sides must have reported: one side's window beside another one's would compare two times.
            versions = zip(self._versions, self._seen_versions, strict=True)
            is_late = self._elapsed_s() - self._requested_s > LATE_S
            if is_late or all(now > seen for now, seen in versions):
                self._requested_s = None
                self._log()

    @property
    def _replay_rows(self) -> int:
        return sum(ring.num_transitions for ring in self._shared.rings)

    def snapshot(self) -> Snapshot:
        """Returns the newest counters of all processes; of collectors, those before the first that has none yet."""
        collectors: list[CollectorTotals] = []
        for reports in self._shared.collector_reports:
            totals = reports.read()
            if not totals:  # windows are formed by place: a later one must not take this one's
                break
            collectors += totals
        evaluator = self._shared.evaluator_reports
        env_steps = self._env_steps
        return Snapshot(
            wall_s=self._elapsed_s(),
            env_steps=env_steps,
            iteration=self._shared.control.leader[RankWord.ITERATIONS],
            learners=self._shared.learner_reports.read(),
            collectors=tuple(collectors),
            replay_rows=self._replay_rows,
            replay_capacity=self._capacity,
            update_debt=self._debt(env_steps),
            evaluator=next(iter(evaluator.read()), None) if evaluator is not None else None,
            cores=self._cores,
            system=self._system.read(),
            restarts=sum(words[CollectorWord.RESTARTS] for words in self._shared.control.collectors),
            learner_restarts=self._job.restarts,
        )

    def _read_cores(self) -> None:
        if self._core_ledger is not None:
            with contextlib.suppress(OSError):  # the kernel took a core away: the last account stays until it is back
                self._cores = self._core_ledger.read()

    def _debt(self, env_steps: int) -> float | None:
        if self._cfg.algo.learns_from_rollouts:
            return None
        return float(self._rate_limiter.debt(env_steps, self._updates))

    def log_rest(self) -> None:
        """Logs the episodes and the counters that no record holds yet, at the end of a run."""
        self.drain_episodes()
        snapshot = self.snapshot()
        if not self._missing and snapshot.learners and not self._has_logged(snapshot):
            self.callbacks.post("on_record", self._logger.log_interval(snapshot))
        self.callbacks.settle()
        self._show_warnings()

    def _show_warnings(self) -> None:
        for warning in self.callbacks.take_warnings():
            self._logger.view.message(warning)

    def _has_logged(self, snapshot: Snapshot) -> bool:
        """True if a record of this very state was written: same steps, same updates, no evaluation since."""
        last = self._logger.last_snapshot
        has_record = self._num_logged > 0 or self._job.start_step > 0  # the one of the checkpoint
        if not has_record or not last.learners or not snapshot.learners:
            return False
        is_same = (last.env_steps, last.learners[0].updates) == (snapshot.env_steps, snapshot.learners[0].updates)
        return is_same and self._logged_eval == self.last_eval

    def drain_episodes(self) -> None:
        """Logs the episodes that ended since the last call."""
        for index, ring in enumerate(self._shared.episodes):
            read, stop = self._episodes_read[index], ring.committed
            if ring.oldest > read:
                lost = counted(ring.oldest - read, "episode")
                self._logger.view.message(f"warning: not recorded, as too many ended at once: {lost}")
            if stop > read:
                finished = [
                    EpisodeRecord(int(steps), int(env), ep_return, int(length), bool(is_end), bool(is_cut), success)
                    for steps, env, ep_return, length, is_end, is_cut, success in ring.read_range(read, stop).tolist()
                ]
                for episode in finished:
                    self._logger.log_episode(episode)
                self.callbacks.post("on_episode", *({**episode.known()} for episode in finished))
                self._episodes_read[index] = stop

    @property
    def _versions(self) -> tuple[int, ...]:
        """How many reports the learners and each collector have published."""
        collectors = [reports.version for reports in self._shared.collector_reports]
        return (self._shared.learner_reports.version, *collectors)

    def _log(self) -> None:
        """Writes one record, or a line of status while learning has not begun."""
        versions, env_steps = self._versions, self._env_steps
        if versions[0] > self._seen_versions[0] and not self._missing:
            self._seen_versions = versions
            self._read_cores()
            snapshot = self.snapshot()
            if self._num_logged == 0 and self._has_logged(snapshot):
                return
            record = self._logger.log_interval(snapshot)
            self.callbacks.post("on_record", record)
            lag = record.get("perf/policy_lag")
            if self._trace is not None and isinstance(lag, float):
                self._trace.count(LAG, MonotonicClock.now_ns(), lag)
            self._logged_eval = self.last_eval
            self._num_logged += 1
        elif self._updates == 0:
            first, missing = self._rate_limiter.start, self._missing
            status = "starting: waiting for the first update"
            if 0 < env_steps < first:
                status = f"collecting steps before learning {env_steps}/{first}"
            elif missing:
                status = f"starting: waiting for {', '.join(missing)} to load torch and make environments"
            self._logger.status(status)
