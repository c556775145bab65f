"""The collector of a host, assembled: for a process of its kind, or for a learner that collects itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from offpolicy.algos.registry import make_policy
from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore, SharedState, read_replay
from offpolicy.collect.collector import Collector
from offpolicy.collect.device_collector import DeviceCollector, DevicePolicy
from offpolicy.collect.device_writer import DeviceWriter
from offpolicy.collect.policy import CollectorPolicy
from offpolicy.collect.replay_writer import ReplayWriter, Writer
from offpolicy.collect.rollout_writer import RolloutWriter
from offpolicy.collect.snapshot import restore_snapshot, take_snapshot
from offpolicy.envs.vector import make_vector
from offpolicy.nets.policy import Policy, flat_size
from offpolicy.processes.child import ChildContext
from offpolicy.processes.control_page import CollectorWord, ControlPage, RankWord
from offpolicy.processes.handshake import steps_per_collector
from offpolicy.processes.reports import Reports
from offpolicy.replay.device_ring import DeviceRing
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.ring import Ring
from offpolicy.timing.ledger import Ledger
from offpolicy.training.run_memory import (
    COLLECTOR_COUNTERS,
    EPISODE_COLUMNS,
    replay_ring,
    rollout_ring,
    waiting_for_rows,
    weights_mailbox,
)
from offpolicy.training.worker import SNAPSHOT_DIR, WorkerSpec
from offpolicy.types import CollectorTotals


def counters_of(collector: Collector) -> dict[str, float]:
    """Returns the counters of a collector that go on from its checkpoint, for its first message."""
    return {name: getattr(collector, name) for name in COLLECTOR_COUNTERS}


def open_collector(  # noqa: PLR0913  # what tells the two kinds of process apart
    child: ChildContext,
    job: WorkerSpec,
    control: ControlPage,
    ledger: Ledger,
    *,
    index: int,
    learner_policy: Policy | None = None,
    ring: ReplayRing | None = None,
) -> Collector:
    """Returns collector `index` of this host, at the start of episodes or where the checkpoint left it.

    Without a `learner_policy` the weights come from the mailbox. With one, which is that of the learner in this
    process, `ring` is the learner's too.
    """
    cfg, words = job.cfg, control.collectors[index]
    progress = control.leader if learner_policy else words  # of this process

    def note_progress() -> None:
        """Publishes that the next environment of a vector step has its turn: the time of a step is that of one."""
        if words[CollectorWord.HAS_BEGUN]:  # before, the time of a start is the limit
            progress[CollectorWord.PROGRESS] += 1

    device = ring.store.device if isinstance(ring, DeviceRing) else None
    env = make_vector(cfg.env, on_progress=note_progress, num_threads=job.plan.env_threads, to=device)
    child.closing.callback(env.close)
    num_collectors = cfg.num_rings * job.host.num_hosts
    number = job.host.index * cfg.num_rings + index
    networks = learner_policy or make_policy(cfg.algo, job.spec)
    mailbox = None if learner_policy else weights_mailbox(child, flat_size(networks))
    writer: Writer
    if cfg.algo.learns_from_rollouts:
        writer = RolloutWriter(
            rollout_ring(child, job, index),
            may_drop=cfg.rollout.when_full == "drop",
            newest_version=lambda: control.leader[RankWord.VERSION],
        )
    elif isinstance(ring, DeviceRing):
        writer = DeviceWriter(ring, gamma=cfg.algo.gamma, n_step=cfg.algo.n_step)
    else:
        ring = ring or replay_ring(child, job, index)
        writer = ReplayWriter(ring, gamma=cfg.algo.gamma, n_step=cfg.algo.n_step)
    policy_kind, kind = (CollectorPolicy, Collector) if device is None else (DevicePolicy, DeviceCollector)
    collector = kind(
        cfg=cfg,
        index=index,
        number=number,
        num_hosts=job.host.num_hosts,
        env=env,
        policy=policy_kind(networks, mailbox, cfg, job.spec, number=number, num_collectors=num_collectors),
        writer=writer,
        control=control,
        wake_event=child.wake_event(f"collector_wake-{index}"),
        to_wake=[] if learner_policy else [child.wake_event(name) for name in waiting_for_rows(cfg)],
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
    return collector


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
