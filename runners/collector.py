"""The collector process, the same for every topology: assembled here, run by `offpolicy/collect/collector.py`."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from offpolicy.algos.registry import make_policy
from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore, SharedState, read_replay
from offpolicy.collect.collector import CollectorParts, CollectorReporter, Progress, collect, require_finite
from offpolicy.collect.episodes import EPISODE_COLUMNS, EpisodeTracker
from offpolicy.collect.policy import CollectorPolicy, Exploration
from offpolicy.collect.replay_writer import ReplayWriter, Writer
from offpolicy.collect.rollout_writer import RolloutWriter
from offpolicy.collect.snapshot import CollectorSnapshot
from offpolicy.envs.vector import make_vector
from offpolicy.errors import EnvFailure, EnvWorkerKilled, SaveError
from offpolicy.nets.policy import flat_size
from offpolicy.processes.child import ChildContext
from offpolicy.processes.control_page import CollectorWord, RankWord
from offpolicy.processes.deaths import Restarts
from offpolicy.processes.handshake import CollectorGate, steps_per_collector
from offpolicy.processes.reports import Reports
from offpolicy.replay.ring import Ring
from offpolicy.seeding import env_seed
from offpolicy.timing.clock import Stopwatch
from offpolicy.timing.phases import CollectorPhase
from offpolicy.training.run_memory import (
    COLLECTOR_COUNTERS,
    control_page,
    replay_ring,
    rollout_ring,
    waiting_for_rows,
    weights_mailbox,
)
from offpolicy.training.worker import SNAPSHOT_DIR, WorkerSpec, start_worker
from offpolicy.types import CollectorTotals


def main(child: ChildContext) -> None:
    """Collects until the supervisor lets it go."""
    job = WorkerSpec.of(child)
    threads = job.plan.collector_threads
    ledger = start_worker(job, "collector", child.index, CollectorPhase, threads=threads, is_background=True)
    collector = Collector(child, job)
    progress = collector.start()
    reporter = CollectorReporter(
        collector.control,
        child.index,
        Reports[CollectorTotals](child.block(f"collector_report-{child.index}")),
        collector.episodes,
        collector.tracker,
        start_steps=collector.steps_before,
        num_hosts=job.host.num_hosts,
    )
    parts = CollectorParts(
        env=collector.env,
        policy=collector.policy,
        writer=collector.writer,
        gate=CollectorGate(
            collector.control,
            child.index,
            child.wake_event(f"collector_wake-{child.index}"),
            [child.wake_event(wake_event) for wake_event in waiting_for_rows(job.cfg)],
        ),
        reporter=reporter,
        progress=progress,
        ledger=ledger,
        take_snapshot=lambda: collector.take_snapshot(progress),
        renew_env=lambda error: collector.renew_env(error, progress),
        warn=collector.warn,
        seed=job.cfg.seed,
        number=collector.number,
        max_bad_rows=job.cfg.env.max_bad_rows,
        rollouts=collector.writer if isinstance(collector.writer, RolloutWriter) else None,
    )
    child.closing.callback(collector.env.close)
    collect(parts)


class Collector:
    """The parts of one collector: environments, policy, writer and episode tracker, fresh or as a checkpoint has them.

    `number` counts the collectors of all hosts: it names the random streams and the environments.
    """

    def __init__(self, child: ChildContext, job: WorkerSpec) -> None:
        self._child, self._job, cfg = child, job, job.cfg
        self.control = control_page(child.block("control"), cfg)
        self._words = self.control.collectors[child.index]
        self.num_collectors = cfg.collect.num_collectors * job.host.num_hosts
        self.number = job.host.index * cfg.collect.num_collectors + child.index
        self._path = (self.number,) if self.number else ()  # of a random stream's name, tells collectors apart
        self._has_begun = False  # True: the time of a start is over, and each step has its own
        self.env = make_vector(cfg.env, on_progress=self._note_progress, num_threads=job.plan.env_threads)
        self.tracker = EpisodeTracker(self.env.num_envs, first_index=self.number * self.env.num_envs)
        self.episodes = Ring(child.block(f"episodes-{child.index}"), EPISODE_COLUMNS, np.float64)
        self.steps_before = steps_before(job)
        networks = make_policy(cfg.algo, job.spec)
        self.policy = CollectorPolicy(
            networks,
            weights_mailbox(child, flat_size(networks)),
            Exploration.of(cfg.algo, self.num_collectors),
            spec=job.spec,
            seed=cfg.seed,
            path=self._path,
        )
        self.writer: Writer
        if cfg.algo.learns_from_rollouts:
            self.writer = RolloutWriter(
                rollout_ring(child, job, child.index),
                may_drop=cfg.rollout.when_full == "drop",
                newest_version=lambda: self.control.leader[RankWord.VERSION],
            )
        else:
            ring = replay_ring(child, job, child.index)
            self.writer = ReplayWriter(ring, gamma=cfg.algo.gamma, n_step=cfg.algo.n_step)
        self._has_warned = False  # that the environments' state cannot be saved
        self._restarts = Restarts(cfg.runner.max_restarts, Stopwatch().elapsed_s)  # of the environments
        self._snapshot = CollectorSnapshot(f"collector-{child.index}", self.env, self.policy, self.writer, self.tracker)

    def start(self) -> Progress:
        """Resets the environments, or restores the checkpoint, and sends the counters; returns the progress."""
        job, seed = self._job, self._job.cfg.seed
        progress = Progress(obs=self.env.reset(env_seed(seed, "collector", self.number)))
        if job.start_step:
            why_not = self._resume(progress)
            if why_not is not None:
                # New episodes: those from the start of the run must not come again.
                progress.obs = self.env.reset(env_seed(seed, "collector", self.number, progress.env_steps))
                self.policy.reseed(seed, *self._path, progress.env_steps)
                lost = ", and unused rollouts are lost" if job.cfg.algo.learns_from_rollouts else ""
                self.warn(f"the continuation is not bitwise: {why_not}; episodes begin again{lost}")
        require_finite(progress.obs, seed)
        self.writer.begin()
        self._words[CollectorWord.ENV_STEPS] = progress.env_steps
        self._words[CollectorWord.HAS_BEGUN] = 1
        self._has_begun = True
        self._child.send("hello", **{counter: getattr(progress, counter) for counter in COLLECTOR_COUNTERS})
        return progress

    def renew_env(self, error: EnvFailure, progress: Progress) -> None:
        """Makes the environments again after one of them raised, and begins new episodes; again where that fails too.

        Raises the error where that is not wanted, or a worker was killed; `CrashLoopError` if it happens too often.
        """
        cfg, step = self._job.cfg, progress.env_steps
        while True:
            if cfg.env.on_error == "raise" or self._restarts.limit == 0 or isinstance(error, EnvWorkerKilled):
                raise error
            text = str(error).splitlines()[0]
            number = self._restarts.add(text)
            self.warn(f"{text}; {number}, by new environments; not bitwise from here on, as episodes begin again")
            self._words[CollectorWord.RESTARTS] += 1
            path = ("renewed", self.number, step, self._words[CollectorWord.RESTARTS])
            try:
                self.env.renew()
                progress.obs = self.env.reset(env_seed(cfg.seed, *path))
                break
            except EnvFailure as failure:
                error = failure
        self.writer.abandon(range(self.env.num_envs))
        self.tracker.ep_return[:], self.tracker.ep_length[:] = 0.0, 0
        require_finite(progress.obs, cfg.seed)

    def _note_progress(self) -> None:
        """Publishes that the next environment of a vector step has its turn: the time of a step is that of one."""
        if self._has_begun:
            self._words[CollectorWord.PROGRESS] += 1

    def warn(self, text: str) -> None:
        """Sends a warning to the supervisor."""
        self._child.send("warning", text=text)

    def take_snapshot(self, progress: Progress) -> OSError | None:
        """Saves this collector's part of a checkpoint, or leaves nothing, warns and returns what the disk refused."""
        directory = Path(self._job.run_dir) / f"{SNAPSHOT_DIR}-collector-{self._child.index}"
        try:
            why_not = self._snapshot.save(directory, progress)
        except SaveError as error:
            shutil.rmtree(directory, ignore_errors=True)
            self.warn(str(error))
            return error.__cause__ if isinstance(error.__cause__, OSError) else OSError(str(error))
        if why_not is not None and not self._has_warned and self._job.cfg.env.vectorization != "async":
            self._has_warned = True  # of `async` the documentation says so
            self.warn(f"a resume from this checkpoint is not bitwise, because {why_not}; episodes will begin again")
        return None

    def _resume(self, progress: Progress) -> str | None:
        """Restores replay rows, then environments and streams. Returns why the continuation is not exact, or None."""
        job, index = self._job, self._child.index
        progress.env_steps = steps_per_collector(job.start_step - self.number, self.num_collectors)
        if job.checkpoint is None:
            return "this host has no checkpoint of the step that the run goes on from"
        checkpoint = CheckpointStore(Path(job.run_dir) / CHECKPOINTS).at(job.checkpoint)
        if not job.cfg.algo.learns_from_rollouts:
            ring = replay_ring(self._child, job, index)
            if (saved := read_replay(checkpoint, index, ring.width)) is not None:
                ring.restore_slots(*saved)
        before = checkpoint.read(SharedState, "state").num_collectors
        if before != self.num_collectors:
            return f"{before} collectors before, {self.num_collectors} now"
        return self._snapshot.restore(checkpoint, progress)


def steps_before(job: WorkerSpec) -> list[int]:
    """Returns the env steps of each collector of this host in the checkpoint that the run goes on from."""
    num = job.cfg.collect.num_collectors
    if job.checkpoint is None:
        return [0] * num
    checkpoint = CheckpointStore(Path(job.run_dir) / CHECKPOINTS).at(job.checkpoint, reads_rows=False)
    names = [f"collector-{index}" for index in range(num)]
    return [checkpoint.json(name)["env_steps"] if checkpoint.has(name) else 0 for name in names]
