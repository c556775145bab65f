"""A collector on a remote host: the collector of any host, over memory of its process, which works when it is called.

What it writes goes back as plain arrays. Its rings hold no more than one reply; those of the run are on the learner's
host. It knows nothing of Ray: an actor is made of the class, in `cluster.py`.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from errno import EIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import offpolicy
from offpolicy.algos.registry import make_policy
from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore
from offpolicy.collect.collector import Collector
from offpolicy.collect.rollout_writer import RolloutWriter
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.nets.policy import flat_size
from offpolicy.processes.child import ChildContext
from offpolicy.processes.control_page import CollectorWord, ControlPage, HostWord, RankWord
from offpolicy.processes.reports import Reports, pack
from offpolicy.processes.shared_memory import WakeEvent
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.ring import Ring
from offpolicy.replay.rollout_ring import RolloutRing, RolloutStamp
from offpolicy.replay.rollout_source import NO_LIMIT
from offpolicy.timing.clock import MonotonicClock
from offpolicy.timing.phases import CollectorPhase
from offpolicy.training import run_memory
from offpolicy.training.collecting import open_collector
from offpolicy.training.run_memory import EPISODE_COLUMNS
from offpolicy.training.worker import WorkerSpec, start_worker
from offpolicy.types import CollectorTotals, Float32, Float64, SpaceSpec

REPLY_BYTES = 80_000  # of rows in a reply, besides one vector step: with the rest it stays below Ray's 100 kB inline
EPISODES = 1_024  # that may end within a call
CALL_NS = 250_000_000  # after which a call ends: a stop, a checkpoint and a new share wait for its end


class Start(NamedTuple):
    """What a remote collector begins with."""

    job: Mapping[str, Any]  # JSON data of a `WorkerSpec`
    number: int  # of the collector, its index on the learner's host
    first: int  # slot of the learner's ring that it writes first
    ahead: Float32  # [m, slot_width] open slots from there on, which the saved episodes go on from
    files: Mapping[str, bytes]  # of the checkpoint, by name
    counters: Mapping[str, float]  # where there is no checkpoint
    version: str  # of offpolicy on the learner's host
    path: str  # where modules of environments lie, too


class Reply(NamedTuple):
    """What a remote collector has done since its last reply."""

    first: int  # slot of `rows[0]`; with rollouts the vector step of the open one
    num_complete: int  # of the rows; those behind are open slots. 0 with rollouts
    rows: Float32  # slots [m, slot_width], or vector steps [m, N, W] of one rollout
    stamp: RolloutStamp | None  # of the rollout that is whole with the rows
    env_steps: int  # of this collector
    episodes: Float64  # [n, EPISODE_COLUMNS]
    totals: bytes  # newest report, if it is new: compressed, as `reports.pack` makes it
    messages: list[dict[str, Any]]  # for the supervisor
    restarts: int  # times that it has made its environments again
    queued_ns: int  # from the call's arrival until it was its turn
    busy_ns: int
    serialise_ns: int


@dataclass(frozen=True, slots=True)
class LocalContext(ChildContext):
    """The context of a collector that shares no memory with another process."""

    sizes: Mapping[str, int] = field(default_factory=dict)  # of blocks, by the first part of their names
    blocks: dict[str, memoryview] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)

    def block(self, name: str, at_least: int = 0) -> memoryview:
        """Returns the memory called `name`."""
        if name not in self.blocks:
            size = max(at_least, self.sizes.get(name.partition("-")[0], 0))
            self.blocks[name] = memoryview(bytearray(size))
        return self.blocks[name]

    def wake_event(self, name: str) -> WakeEvent:
        """Returns an event for which nothing waits."""
        event = WakeEvent.create()
        self.closing.callback(event.close)
        return event

    def send(self, kind: str, **fields: Any) -> None:
        """Keeps a message for the next reply."""
        self.messages.append({"kind": kind, **fields})


def block_sizes(cfg: RunConfig, spec: SpaceSpec) -> dict[str, int]:
    """Returns the bytes of the memory of one remote collector; its replay ring holds one reply and what is open."""
    layout, num_envs = run_memory.row_layout(spec), cfg.env.num_envs
    slots = REPLY_BYTES // layout.nbytes + (2 * cfg.algo.n_step + 8) * num_envs
    return {
        "control": ControlPage.nbytes(cfg.runner.world_size, cfg.num_rings),
        "collector_report": Reports.nbytes(),
        "episodes": Ring.nbytes(EPISODES + num_envs, EPISODE_COLUMNS, 8),
        "replay": ReplayRing.nbytes_for(slots, layout, num_envs, cfg.algo.n_step),
        "rollouts": RolloutRing.nbytes(run_memory.rollout_layout(cfg, spec), cfg.rollout.slots),
    }


class RemoteCollector:
    """One collector; `open` comes first. Its methods are called one after another, on one thread."""

    _collector: Collector
    called_ns = 0  # when the call came that is carried out
    _ended_ns = 0  # when the last one was done

    def open(self, start: Start) -> Reply:
        """Makes the environments and begins, as the collector's process does on the learner's host.

        Raises `ConfigError` for another version of offpolicy, and what the environments raise.
        """
        if start.version != offpolicy.__version__:
            raise ConfigError(
                f"runner.ray: got a host with offpolicy {offpolicy.__version__}, allowed {start.version}, the version"
                " of the learner's host"
            )
        sys.path.append(start.path)
        self._exits = contextlib.ExitStack()
        context = LocalContext("collector", start.number, start.job, {}, -1)
        job = WorkerSpec.of(context)
        self._context = context = replace(context, sizes=block_sizes(job.cfg, job.spec))
        self._job = job = replace(job, trace_dir=None)
        threads = job.plan.collector_threads
        self._ledger = start_worker(job, "collector", start.number, CollectorPhase, threads=threads, is_background=True)
        self._control, self._index = run_memory.control_page(context.block("control"), job.cfg), start.number
        self._mailbox = run_memory.weights_mailbox(context, flat_size(make_policy(job.cfg.algo, job.spec)))
        self._episodes = Ring(context.block(f"episodes-{start.number}"), EPISODE_COLUMNS, np.float64)
        self._reports = Reports[CollectorTotals](context.block(f"collector_report-{start.number}"))
        self._sent_episodes = self._sent_reports = 0
        if job.cfg.algo.learns_from_rollouts:
            self._rollouts, self._sent = run_memory.rollout_ring(context, job, start.number), 0
        else:
            self._ring, self._sent = run_memory.replay_ring(context, job, start.number), start.first
            self._ring.restore_slots(start.first, [start.ahead[:0]], start.ahead)
        with tempfile.TemporaryDirectory(prefix="offpolicy-") as directory:
            if start.files:
                with CheckpointStore(Path(directory) / CHECKPOINTS).begin(job.start_step) as draft:
                    for name, content in start.files.items():
                        (draft.path / name).write_bytes(content)
            here = replace(job, run_dir=directory)
            self._collector = open_collector(context, here, self._control, self._ledger, index=start.number)
        if not start.files:
            for name, value in start.counters.items():
                setattr(self._collector, name, value)
            context.messages.clear()  # that the episodes begin again: the link says so
        self._exits.push(context.closing)
        self._exits.enter_context(self._ledger.phase(CollectorPhase.LEARNER_WAIT))
        return self._reply(MonotonicClock.now_ns())

    def end(self) -> Reply:
        """Reports once more, and closes the environments."""
        start_ns = MonotonicClock.now_ns()
        self._ledger.begin_cooldown()
        self._collector.report()
        reply = self._reply(start_ns)
        self._exits.close()
        return reply

    def collect(  # noqa: PLR0913  # what is granted by one call
        self,
        target: int,
        version: int,
        report: int,
        env_steps: Sequence[int],
        unasked_ns: int,
        weights: Float32 | None,
    ) -> Reply:
        """Steps the environments up to `target` env steps, or takes so many vector steps of a rollout.

        Ends before that where a reply is full or the call takes long. `version` is that of the newest weights, flat;
        None where they are those of an earlier call. `report` is the number of the newest request for one, `env_steps`
        are those of every collector, and for `unasked_ns` this one had no open call.
        """
        start_ns = MonotonicClock.now_ns()
        link_ns = max(0, start_ns - self._ended_ns - unasked_ns)  # the learner had granted these steps
        self._ledger.move(CollectorPhase.LEARNER_WAIT, CollectorPhase.LINK_WAIT, link_ns)
        if weights is not None:
            self._mailbox.publish(weights, version)
        self._control.leader[RankWord.VERSION] = version
        self._control.host[HostWord.REPORT_REQUEST] = report
        for index, words in enumerate(self._control.collectors):
            if index != self._index:
                words[CollectorWord.ENV_STEPS] = env_steps[index]
        with self._ledger.phase(CollectorPhase.OTHER):
            step = self._step_rollout if self._job.cfg.algo.learns_from_rollouts else self._step_to
            step(target, start_ns + CALL_NS)
            if self._collector.must_report():
                self._collector.report()
            return self._reply(start_ns)

    def _step_to(self, env_steps: int, until_ns: int) -> None:
        """Steps up to so many transitions, or until it takes too long, or the rows fill a reply."""
        self._control.leader[RankWord.GRANTED] = env_steps
        most = REPLY_BYTES // self._ring.layout.nbytes - self._ring.num_envs
        while self._collector.take_turn() and MonotonicClock.now_ns() < until_ns:
            if self._ring.end - self._sent >= most or self._episodes.committed - self._sent_episodes >= EPISODES:
                break

    def _step_rollout(self, num_steps: int, until_ns: int) -> None:
        """Takes so many vector steps, or those up to the end of the rollout, or until it takes too long."""
        self._control.leader[RankWord.GRANTED] = NO_LIMIT
        writer, before = self._collector.writer, self._rollouts.committed
        assert isinstance(writer, RolloutWriter)
        for _ in range(num_steps):
            last = writer.step
            self._collector.take_turn()
            if self._rollouts.committed > before or MonotonicClock.now_ns() > until_ns:
                return
            if writer.step <= last:  # the rollout was broken off: it begins again
                self._sent = 0

    def _reply(self, start_ns: int) -> Reply:
        """Returns what is new after a call that was begun at `start_ns`."""
        done_ns, first = MonotonicClock.now_ns(), self._sent
        rows, num_complete, stamp = self._new_rows()
        sent_episodes, self._sent_episodes = self._sent_episodes, self._episodes.committed
        sent_reports, self._sent_reports = self._sent_reports, self._reports.version
        messages = self._context.messages.copy()
        self._context.messages.clear()
        is_reported = self._sent_reports > sent_reports
        report = zlib.compress(pack(self._reports.read()).tobytes(), 1) if is_reported else b""
        self._ended_ns = MonotonicClock.now_ns()
        return Reply(
            first,
            num_complete,
            rows,
            stamp,
            self._collector.env_steps,
            self._episodes.read_range(sent_episodes, self._sent_episodes),
            report,
            messages,
            self._control.collectors[self._index][CollectorWord.RESTARTS],
            start_ns - self.called_ns,
            done_ns - start_ns,
            self._ended_ns - done_ns,
        )

    def _new_rows(self) -> tuple[Float32, int, RolloutStamp | None]:
        """Returns `rows`, `num_complete` and `stamp` of a reply."""
        first = self._sent
        if not self._job.cfg.algo.learns_from_rollouts:
            self._sent = self._ring.committed
            rows = np.concatenate([*self._ring.spans(first, self._sent), self._ring.copy_open()])
            return rows, self._sent - first, None
        if self._rollouts.unread:
            rows = np.empty(self._rollouts.layout.shape, np.float32)
            stamp, self._sent = self._rollouts.take(rows), 0
            return rows[first:], 0, stamp
        assert isinstance(self._collector.writer, RolloutWriter)
        rows = self._collector.writer.open_rows[first:].copy()
        self._sent = first + len(rows)
        return rows, 0, None

    def snapshot(self) -> tuple[dict[str, bytes], int]:
        """Returns the files of the collector's part of a checkpoint by name, and what error the disk gave, else 0."""
        collector = self._collector
        with self._ledger.phase(CollectorPhase.SNAPSHOT), tempfile.TemporaryDirectory() as directory:
            collector.snapshot_dir = Path(directory) / "part"
            error = collector.take_snapshot(collector)
            if error is not None:
                return {}, error.errno or EIO
            return {path.name: path.read_bytes() for path in collector.snapshot_dir.iterdir()}, 0
