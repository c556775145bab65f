"""The collector processes of every runner."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from offpolicy.checkpoint import CheckpointStore
from offpolicy.collect.collector import CollectorParts, Progress, ReportDesk, collect
from offpolicy.collect.episodes import EPISODE_COLUMNS, EpisodeTracker
from offpolicy.collect.policy import CollectorPolicy
from offpolicy.collect.replay_writer import BadRowError, ReplayWriter, Writer
from offpolicy.collect.rollout_writer import RolloutWriter
from offpolicy.collect.snapshot import CollectorSnapshot
from offpolicy.config.schema import AlgoConfig
from offpolicy.envs.vector import make_vector
from offpolicy.errors import NumericsError, SaveError
from offpolicy.nets.policy import flat_size, make_policy
from offpolicy.processes.child import ChildContext
from offpolicy.processes.control_page import CollectorWord, ControlPage, RankWord
from offpolicy.processes.handshake import CollectorGate, steps_per_collector
from offpolicy.processes.mailbox import Mailbox
from offpolicy.replay.ring import Ring
from offpolicy.seeding import env_seed
from offpolicy.timing.clock import process_birth_ns
from offpolicy.timing.ledger import make_ledger, trace_names
from offpolicy.timing.phases import CollectorPhase
from offpolicy.timing.trace_writer import open_lane
from offpolicy.training.memory_sizes import row_layout
from offpolicy.training.resources import thread_budget
from offpolicy.training.run_memory import (
    COLLECTOR_COUNTERS,
    collector_reports,
    control_page,
    rollout_ring,
    waiting_for_rows,
)
from offpolicy.training.worker_spec import SNAPSHOT_DIR, WorkerSpec


def main(context: ChildContext) -> None:
    """Entry point of the process."""
    job = WorkerSpec.of(context)
    name = f"collector-{context.index}"
    lane = open_lane(job.trace_dir, name, trace_names(CollectorPhase), f"collector {context.index}")
    ledger = make_ledger(CollectorPhase, is_enabled=job.cfg.timing.enabled, opened_ns=process_birth_ns(), trace=lane)
    torch.set_num_threads(thread_budget(job.cfg)["collector"])
    # Woken by the learner's grant, this process must not take the learner's core before the learner lets go of it:
    # its step would be charged to the learner's sync_coordination.
    with contextlib.suppress(OSError):  # a sandbox may refuse it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    env = make_vector(job.cfg.env)
    number = _number(context, job)
    progress = Progress(obs=env.reset(env_seed(job.cfg.seed, "collector", number)))
    tracker = EpisodeTracker(env.num_envs, first_index=number * env.num_envs)
    policy = _policy(context, job)
    control = control_page(context.block("control"), job.cfg)
    writer = _writer(context, job, control)
    snapshot = CollectorSnapshot(name, env, policy, writer, tracker)
    if job.start_step:
        why_not = _resume(context, job, snapshot, progress)
        if why_not is not None:
            # New episodes, not those of the start of the run again.
            progress.obs = env.reset(env_seed(job.cfg.seed, "collector", number, progress.env_steps))
            policy.reseed(job.cfg.seed, *_path(number), progress.env_steps)
            lost = ", and rollouts that nobody has learnt from are lost" if job.cfg.algo.learns_from_rollouts else ""
            context.send("warning", text=f"the continuation is not bitwise: {why_not}; episodes start anew{lost}")
    control.collectors[context.index].set(CollectorWord.ENV_STEPS, progress.env_steps)
    context.send("hello", **{counter: getattr(progress, counter) for counter in COLLECTOR_COUNTERS})
    parts = CollectorParts(
        env=env,
        policy=policy,
        writer=writer,
        gate=CollectorGate(
            control,
            context.index,
            context.wake_event(f"collector_wake-{context.index}"),
            [context.wake_event(wake_event) for wake_event in waiting_for_rows(job.cfg)],
        ),
        desk=ReportDesk(
            control,
            context.index,
            collector_reports(context.block(f"collector_report-{context.index}")),
            Ring(context.block(f"episodes-{context.index}"), EPISODE_COLUMNS, np.float64),
            tracker,
            num_hosts=job.place.num_hosts,
        ),
        progress=progress,
        ledger=ledger,
        take_snapshot=lambda: _take_snapshot(context, snapshot, Path(job.run_dir) / f"{SNAPSHOT_DIR}-{name}", progress),
    )
    try:
        collect(parts)
    except BadRowError as error:
        raise _dumped(job, parts, error) from None
    finally:
        env.close()


def _number(context: ChildContext, job: WorkerSpec) -> int:
    """Where the collector stands among those of all hosts."""
    return job.place.host * job.cfg.collect.num_collectors + context.index


def _path(number: int) -> tuple[int, ...]:
    """What tells the random streams of one collector from another's."""
    return (number,) if number else ()


def _num_collectors(job: WorkerSpec) -> int:
    return job.cfg.collect.num_collectors * job.place.num_hosts


def _policy(context: ChildContext, job: WorkerSpec) -> CollectorPolicy:
    algo = job.cfg.algo
    networks = make_policy(algo, job.spec)
    policy = CollectorPolicy(
        networks,
        Mailbox(context.block("weights"), 4 * flat_size(networks)),
        action_dim=job.spec.action_dim,
        warmup_steps=0
        if algo.learns_from_rollouts
        else steps_per_collector(algo.learning_starts, _num_collectors(job)),
        seed=job.cfg.seed,
        path=_path(_number(context, job)),
    )
    policy.noise_at = _noise_at(algo, _num_collectors(job))
    return policy


def _noise_at(algo: AlgoConfig, num_collectors: int) -> Callable[[int], float] | None:
    """The exploration noise by a collector's own transitions: all collectors do as many, so theirs are known too.

    What the others have really done would depend on the moment of asking, and a resumed run would act differently.
    """
    ramp = algo.ramps.get("exploration_noise")
    return None if ramp is None else lambda own_steps: ramp.at(own_steps * num_collectors)


def _writer(context: ChildContext, job: WorkerSpec, control: ControlPage) -> Writer:
    if job.cfg.algo.learns_from_rollouts:
        return RolloutWriter(
            rollout_ring(context, job, context.index),
            may_drop=job.cfg.rollout.when_full == "drop",
            newest_version=lambda: control.leader.get(RankWord.VERSION),
        )
    layout = row_layout(job.spec)
    ring = Ring(context.block(f"replay-{context.index}"), layout.width, np.float32)
    algo = job.cfg.algo
    return ReplayWriter(ring, layout, gamma=algo.gamma, n_step=algo.n_step, num_envs=job.cfg.env.num_envs)


def _resume(context: ChildContext, job: WorkerSpec, snapshot: CollectorSnapshot, progress: Progress) -> str | None:
    """Continue from the checkpoint: replay rows first, then environments and streams. Returns why it is not exact."""
    num_collectors = _num_collectors(job)
    progress.env_steps = steps_per_collector(job.start_step - _number(context, job), num_collectors)
    if job.checkpoint is None:
        return "this host has no checkpoint of the step that the run goes on from"
    checkpoint = CheckpointStore(Path(job.run_dir) / "checkpoints").at(job.checkpoint)
    state = checkpoint.json("state")
    name = f"replay-{context.index}"
    if checkpoint.has(name):
        width = row_layout(job.spec).width
        ring = Ring(context.block(name), width, np.float32)
        ring.restore(state["replay_first"][context.index], checkpoint.rows(name, width))
    if state["num_collectors"] != num_collectors:
        return f"{state['num_collectors']} collectors before, {num_collectors} now"
    return snapshot.restore(checkpoint, progress)


def _take_snapshot(context: ChildContext, snapshot: CollectorSnapshot, directory: Path, progress: Progress) -> None:
    """Save, or say why not and leave nothing: the learner, finding nothing, gives up this checkpoint, not the run."""
    try:
        snapshot.save(directory, progress)
    except SaveError as error:
        shutil.rmtree(directory, ignore_errors=True)
        context.send("warning", text=str(error))


def _dumped(job: WorkerSpec, parts: CollectorParts, error: BadRowError) -> NumericsError:
    """Write the bad transition beside the run's records and say where."""
    env_steps, step = parts.progress.env_steps, int(parts.desk.tracker.ep_length[error.env_index])
    path = Path(job.run_dir) / f"bad-row-{env_steps}.json"
    facts = {"env_index": error.env_index, "env_steps": env_steps, "episode_step": step, "seed": job.cfg.seed}
    path.write_text(json.dumps({**facts, **error.row}))
    return NumericsError(f"{error} at env step {env_steps}, episode step {step}, seed {job.cfg.seed}; see {path}")
