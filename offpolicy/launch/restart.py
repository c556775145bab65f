"""Learners that died and begin again: from which checkpoint, and whether the other processes stay (ADR 28)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from offpolicy.checkpoint import Checkpoint, SharedState, run_store
from offpolicy.checkpoint.replay_rows import has_replay
from offpolicy.collect.evaluations import read_scores
from offpolicy.config.schema import RunConfig
from offpolicy.errors import CheckpointError
from offpolicy.training.worker import WorkerSpec


def keeps_others(cfg: RunConfig) -> bool:
    """True if learners begin again beside the collectors, which keep their episodes and the replay.

    `alternate` promises the bits of a run that never stopped, so all processes go back to the checkpoint; so they do
    with rollouts, which are learnt from once: without their env steps the new networks would learn from fewer.
    """
    return not cfg.takes_turns and not cfg.algo.learns_from_rollouts


def newest_checkpoint(job: WorkerSpec) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """Returns the checkpoint from which learners begin again, None before the first, and why not from a newer one.

    Where the others stay, the rows of the replay are not read: they are in memory, and gigabytes would keep the
    supervisor from its other work. Raises `CheckpointError` where there are checkpoints, but none to be used.
    """
    store = run_store(Path(job.run_dir))
    checkpoint = store.newest_valid(reads_rows=not keeps_others(job.cfg))
    if checkpoint is None and store.rejected:
        raise CheckpointError("\n".join(store.rejected))
    return checkpoint, tuple(store.rejected)


def started_again(job: WorkerSpec, checkpoint: Checkpoint | None, learner_restarts: int) -> WorkerSpec:
    """Returns what processes are given that begin again from `checkpoint`, or from the beginning of the run.

    Learners among others that stay find the rows of the checkpoint in memory, unless the run itself began from it and
    it has none.
    """
    step = checkpoint.env_steps if checkpoint is not None else None
    began_there = step is not None and step == job.checkpoint
    has_rows = checkpoint is None or not began_there or has_replay(checkpoint)
    return replace(
        job,
        start_step=step or 0,
        checkpoint=step,
        last_eval_step=_last_evaluation(job, checkpoint),
        learner_restarts=learner_restarts,
        keeps_rows=keeps_others(job.cfg) and has_rows,
    )


def _last_evaluation(job: WorkerSpec, checkpoint: Checkpoint | None) -> int:
    """Returns the env steps of the last evaluation that is not made again.

    Where the others stay env steps go on, and all that is recorded stays, but for an evaluation at the goal: the final
    policy is another one.
    """
    saved = 0 if checkpoint is None else SharedState.of(checkpoint).last_eval_step
    recorded = [score.env_steps for score in read_scores(Path(job.run_dir))] if keeps_others(job.cfg) else []
    return max([saved, *(steps for steps in recorded if steps < job.cfg.total_timesteps)])
