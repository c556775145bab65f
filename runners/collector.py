"""The collector process, the same for every topology: assembled here, run by `offpolicy/collect/collector.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from offpolicy.algos.registry import make_policy
from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore, SharedState, read_replay
from offpolicy.collect.collector import Collector
from offpolicy.collect.policy import CollectorPolicy
from offpolicy.collect.replay_writer import ReplayWriter, Writer
from offpolicy.collect.rollout_writer import RolloutWriter
from offpolicy.collect.snapshot import restore_snapshot, take_snapshot
from offpolicy.envs.vector import make_vector
from offpolicy.nets.policy import flat_size
from offpolicy.processes.child import ChildContext
from offpolicy.processes.control_page import CollectorWord, RankWord
from offpolicy.processes.handshake import steps_per_collector
from offpolicy.processes.reports import Reports
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.ring import Ring
from offpolicy.timing.phases import CollectorPhase
from offpolicy.training.run_memory import (
    COLLECTOR_COUNTERS,
    EPISODE_COLUMNS,
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
    job, index = WorkerSpec.of(child), child.index
    cfg, threads = job.cfg, job.plan.collector_threads
    ledger = start_worker(job, "collector", index, CollectorPhase, threads=threads, is_background=True)
    control = control_page(child.block("control"), cfg)
    words = control.collectors[index]

    def note_progress() -> None:
        """Publishes that the next environment of a vector step has its turn: the time of a step is that of one."""
        if words[CollectorWord.HAS_BEGUN]:  # before, the time of a start is the limit
            words[CollectorWord.PROGRESS] += 1

    env = make_vector(cfg.env, on_progress=note_progress, num_threads=job.plan.env_threads)
    child.closing.callback(env.close)
    num_collectors = cfg.collect.num_collectors * job.host.num_hosts
    number = job.host.index * cfg.collect.num_collectors + index
    networks = make_policy(cfg.algo, job.spec)
    mailbox = weights_mailbox(child, flat_size(networks))
    ring: ReplayRing | None = None
    writer: Writer
    if cfg.algo.learns_from_rollouts:
        writer = RolloutWriter(
            rollout_ring(child, job, index),
            may_drop=cfg.rollout.when_full == "drop",
            newest_version=lambda: control.leader[RankWord.VERSION],
        )
    else:
        ring = replay_ring(child, job, index)
        writer = ReplayWriter(ring, gamma=cfg.algo.gamma, n_step=cfg.algo.n_step)
    collector = Collector(
        cfg=cfg,
        index=index,
        number=number,
        num_hosts=job.host.num_hosts,
        env=env,
        policy=CollectorPolicy(networks, mailbox, cfg, job.spec, number=number, num_collectors=num_collectors),
        writer=writer,
        control=control,
        wake_event=child.wake_event(f"collector_wake-{index}"),
        to_wake=[child.wake_event(name) for name in waiting_for_rows(cfg)],
        reports=Reports[CollectorTotals](child.block(f"collector_report-{index}")),
        episodes=Ring(child.block(f"episodes-{index}"), EPISODE_COLUMNS, np.float64),
        ledger=ledger,
        send=child.send,
        snapshot_dir=Path(job.run_dir) / f"{SNAPSHOT_DIR}-collector-{index}",
        take_snapshot=take_snapshot,
        start_steps=steps_per_collector(job.start_step, num_collectors),
    )
    collector.reset_all("collector", number)
    if job.start_step and (why_not := _resume(collector, job, ring, num_collectors)) is not None:
        # New episodes: those from the start of the run must not come again.
        collector.reset_all("collector", number, collector.env_steps)
        collector.policy.reseed(collector.env_steps)
        lost = ", and unused rollouts are lost" if cfg.algo.learns_from_rollouts else ""
        collector.warn(f"the continuation is not bitwise: {why_not}; episodes begin again{lost}")
    writer.begin()
    words[CollectorWord.ENV_STEPS], words[CollectorWord.HAS_BEGUN] = collector.env_steps, 1
    child.send("hello", **{counter: getattr(collector, counter) for counter in COLLECTOR_COUNTERS})
    collector.run()


def _resume(collector: Collector, job: WorkerSpec, ring: ReplayRing | None, num_collectors: int) -> str | None:
    """Restores replay rows, then environments and streams. Returns why the continuation is not exact, or None."""
    collector.env_steps = steps_per_collector(job.start_step - collector.number, num_collectors)
    if job.checkpoint is None:
        return "this host has no checkpoint of the step that the run goes on from"
    checkpoint = CheckpointStore(Path(job.run_dir) / CHECKPOINTS).at(job.checkpoint)
    if ring is not None and (saved := read_replay(checkpoint, collector.index, ring.width)) is not None:
        ring.restore_slots(*saved)
    before = checkpoint.read(SharedState, "state").num_collectors
    if before != num_collectors:
        return f"{before} collectors before, {num_collectors} now"
    return restore_snapshot(collector, checkpoint)
