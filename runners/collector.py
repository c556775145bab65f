"""The collector process, the same for every topology: assembled here, run by `offpolicy/collect/collector.py`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from offpolicy import fault
from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore
from offpolicy.collect.collector import CollectorParts, CollectorReporter, Progress, collect
from offpolicy.collect.episode_hook import HookConfig
from offpolicy.collect.episodes import EPISODE_COLUMNS, EpisodeTracker
from offpolicy.collect.policy import CollectorPolicy, Exploration
from offpolicy.collect.replay_writer import BadRowError, ReplayWriter, Writer
from offpolicy.collect.rollout_writer import RolloutWriter
from offpolicy.collect.snapshot import CollectorSnapshot
from offpolicy.collect.training_hook import TrainingHook
from offpolicy.config.sections import AlgoConfig
from offpolicy.envs.vector import make_vector
from offpolicy.errors import NumericsError, SaveError
from offpolicy.nets.policy import flat_size, make_policy
from offpolicy.processes.child import ChildContext
from offpolicy.processes.control_page import CollectorWord, ControlPage, RankWord
from offpolicy.processes.handshake import CollectorGate, steps_per_collector
from offpolicy.processes.reports import CollectorReports
from offpolicy.replay.ring import Ring
from offpolicy.seeding import env_seed
from offpolicy.timing.phases import CollectorPhase
from offpolicy.training.run_memory import (
    COLLECTOR_COUNTERS,
    COLLECTOR_PHASES,
    control_page,
    rollout_ring,
    row_layout,
    thread_delays,
    waiting_for_rows,
    weights_mailbox,
)
from offpolicy.training.worker import SNAPSHOT_DIR, WorkerSpec, start_worker


def main(child: ChildContext) -> None:
    """Collects until the supervisor lets it go."""
    job = WorkerSpec.of(child)
    threads, delays = job.plan.collector_threads, thread_delays(child, job.cfg, f"collector-{child.index}")
    ledger = start_worker(
        job, "collector", child.index, CollectorPhase, threads=threads, is_background=True, delays=delays
    )
    collector = Collector(child, job)
    progress = collector.start()
    reporter = CollectorReporter(
        collector.control,
        child.index,
        CollectorReports(child.block(f"collector_report-{child.index}"), COLLECTOR_PHASES),
        Ring(child.block(f"episodes-{child.index}"), EPISODE_COLUMNS, np.float64),
        collector.tracker,
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
        rollouts=collector.writer if isinstance(collector.writer, RolloutWriter) else None,
        hook=collector.make_hook(),
    )
    try:
        if parts.hook is not None:
            parts.hook.open()
        collect(parts)
    except BadRowError as error:
        raise collector.dumped(error, progress) from None
    finally:
        if parts.hook is not None:
            parts.hook.close()
        collector.env.close()


class Collector:
    """The parts of one collector: environments, policy, writer and episode tracker, fresh or as a checkpoint has them.

    `number` counts the collectors of all hosts: it names the random streams and the environments.
    """

    def __init__(self, child: ChildContext, job: WorkerSpec) -> None:
        self._child, self._job = child, job
        self.num_collectors = job.cfg.collect.num_collectors * job.host.num_hosts
        self.number = job.host.index * job.cfg.collect.num_collectors + child.index
        self.env = make_vector(job.cfg.env)
        self.tracker = EpisodeTracker(self.env.num_envs, first_index=self.number * self.env.num_envs)
        self.control = control_page(child.block("control"), job.cfg)
        self.policy = self._make_policy()
        self.writer = self._make_writer(self.control)
        self._snapshot = CollectorSnapshot(f"collector-{child.index}", self.env, self.policy, self.writer, self.tracker)

    @property
    def _path(self) -> tuple[int, ...]:
        """The part of a random stream's name that tells one collector from another."""
        return (self.number,) if self.number else ()

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
                lost = (
                    ", and rollouts that nobody has learnt from are lost" if job.cfg.algo.learns_from_rollouts else ""
                )
                text = f"the continuation is not bitwise: {why_not}; episodes start anew{lost}"
                self._child.send("warning", text=text)
        self.control.collectors[self._child.index].set(CollectorWord.ENV_STEPS, progress.env_steps)
        self._child.send("hello", **{counter: getattr(progress, counter) for counter in COLLECTOR_COUNTERS})
        return progress

    def take_snapshot(self, progress: Progress) -> OSError | None:
        """Saves this collector's part of a checkpoint, or leaves nothing, warns and returns what the disk refused."""
        directory = Path(self._job.run_dir) / f"{SNAPSHOT_DIR}-collector-{self._child.index}"
        try:
            self._snapshot.save(directory, progress)
        except SaveError as error:
            shutil.rmtree(directory, ignore_errors=True)
            self._child.send("warning", text=str(error))
            return error.__cause__ if isinstance(error.__cause__, OSError) else OSError(str(error))
        return None

    def dumped(self, error: BadRowError, progress: Progress) -> NumericsError:
        """Writes the bad transition beside the run's records; returns the error that says where."""
        env_steps, step = progress.env_steps, int(self.tracker.ep_length[error.env_index])
        seed, path = self._job.cfg.seed, Path(self._job.run_dir) / f"bad-row-{env_steps}.json"
        facts = {"env_index": error.env_index, "env_steps": env_steps, "episode_step": step, "seed": seed}
        fault.hit("bad_row.write")
        path.write_text(json.dumps({**facts, **error.row}))
        return NumericsError(f"{error} at env step {env_steps}, episode step {step}, seed {seed}; see {path}")

    def make_hook(self) -> TrainingHook | None:
        """Returns what calls `collect.hook`, once the episodes are begun or restored; None without one."""
        cfg, words = self._job.cfg, self.control.collectors[self._child.index]
        if cfg.collect.hook is None:
            return None

        def should_stop() -> bool:
            words.bump(CollectorWord.PROGRESS)  # waiting for the hook is no hang: it has its own timeout
            return self.control.is_stopping

        hook = HookConfig(cfg.collect.hook, cfg.collect.post_queue, cfg.env.step_timeout_s, "collect.hook")
        is_whole = self.tracker.ep_length == 0
        return TrainingHook(hook, is_whole, should_stop, lambda text: self._child.send("warning", text=text))

    def _make_policy(self) -> CollectorPolicy:
        job, algo = self._job, self._job.cfg.algo
        networks = make_policy(algo, job.spec)
        warmup_steps = steps_per_collector(algo.learning_starts, self.num_collectors)
        return CollectorPolicy(
            networks,
            weights_mailbox(self._child, flat_size(networks)),
            Exploration(
                warmup_steps=0 if algo.learns_from_rollouts else warmup_steps,
                noise_at=noise_schedule(algo, self.num_collectors),
            ),
            action_dim=job.spec.action_dim,
            seed=job.cfg.seed,
            path=self._path,
        )

    def _make_writer(self, control: ControlPage) -> Writer:
        child, job, algo = self._child, self._job, self._job.cfg.algo
        if algo.learns_from_rollouts:
            return RolloutWriter(
                rollout_ring(child, job, child.index),
                may_drop=job.cfg.rollout.when_full == "drop",
                newest_version=lambda: control.leader.get(RankWord.VERSION),
            )
        layout = row_layout(job.spec)
        ring = Ring(child.block(f"replay-{child.index}"), layout.width, np.float32)
        return ReplayWriter(ring, layout, gamma=algo.gamma, n_step=algo.n_step, num_envs=job.cfg.env.num_envs)

    def _resume(self, progress: Progress) -> str | None:
        """Restores replay rows, then environments and streams. Returns why the continuation is not exact, or None."""
        job, index = self._job, self._child.index
        progress.env_steps = steps_per_collector(job.start_step - self.number, self.num_collectors)
        if job.checkpoint is None:
            return "this host has no checkpoint of the step that the run goes on from"
        checkpoint = CheckpointStore(Path(job.run_dir) / CHECKPOINTS).at(job.checkpoint)
        state, name = checkpoint.json("state"), f"replay-{index}"
        if checkpoint.has(name):
            width = row_layout(job.spec).width
            ring = Ring(self._child.block(name), width, np.float32)
            ring.restore(state["replay_first"][index], checkpoint.rows(name, width))
        if state["num_collectors"] != self.num_collectors:
            return f"{state['num_collectors']} collectors before, {self.num_collectors} now"
        return self._snapshot.restore(checkpoint, progress)


def noise_schedule(algo: AlgoConfig, num_collectors: int) -> Callable[[int], float] | None:
    """Returns the exploration noise by a collector's own transitions; None where it is one number.

    All collectors do as many transitions, so those of the others are known. What they have really done would depend on
    the moment of asking, and a resumed run would act differently.
    """
    ramp = algo.ramps.get("exploration_noise")
    return None if ramp is None else lambda own_steps: ramp.at(own_steps * num_collectors)
