"""The start of a learner rank: fresh, from a checkpoint or from a teacher; and its part of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offpolicy.algos.adaptation import adopt_teacher
from offpolicy.algos.learner import Learner, LearnerState
from offpolicy.checkpoint import (
    CHECKPOINTS,
    BestPolicy,
    Checkpoint,
    CheckpointStore,
    Draft,
    RankStreams,
    SharedState,
    write_json,
)
from offpolicy.checkpoint.content import fingerprint
from offpolicy.config.run_files import read_spec
from offpolicy.distributed.world import World
from offpolicy.errors import CheckpointError
from offpolicy.processes.control_page import RankWord
from offpolicy.protocols import BatchSource
from offpolicy.replay.rate_limiter import LearningStart, first_learning_step
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_saver import CapturedRing, RowSaver
from offpolicy.training.rank import Rank
from offpolicy.training.tuning import Setting
from offpolicy.types import MetricTotals


@dataclass(frozen=True, slots=True)
class TrainingStart:
    """The state in which training starts, the same on every rank but for the checkpoint, which a host may not have."""

    learning_start: LearningStart
    updates: int
    last_eval_step: int
    metrics: MetricTotals
    checkpoint: Checkpoint | None
    teacher: str | None  # the teacher that the run started from, as its checkpoints say


def learner_tensors(checkpoint: Checkpoint | BestPolicy) -> dict[str, Tensor]:
    """Returns the saved learner's tensors by flat name, as copies; of the best policy only the policy's."""
    return {name: torch.from_numpy(array.copy()) for name, array in checkpoint.tensors("learner").items()}


def load_start(rank: Rank, world: World, learner: Learner) -> TrainingStart:
    """Fills the learner from checkpoint or teacher and returns where training starts; a collective.

    Rank 0 reads, and its networks and numbers count: another host may have no part of the checkpoint.
    """
    job = rank.job
    first_step = first_learning_step(rank.cfg, job.host.num_hosts)
    start, has_rows = LearningStart(first_step, 0), False
    checkpoint, teacher = None, None
    if job.checkpoint is not None:
        checkpoint = CheckpointStore(Path(job.run_dir) / CHECKPOINTS).at(job.checkpoint)
        state = checkpoint.read(SharedState, "state")
        start = LearningStart(*state.start)
        has_rows, teacher = has_replay(checkpoint), state.teacher
        if rank.rank == 0:
            try:
                learner.load_state(LearnerState(learner_tensors(checkpoint), dict(state.numbers)))
            except CheckpointError as error:
                raise CheckpointError(f"{checkpoint.path / 'learner.safetensors'}: {error}") from error
    elif job.cfg.teacher is not None and job.origin_step is not None:
        teacher = f"{job.cfg.teacher}, env step {job.origin_step}"
        if rank.rank == 0:
            path = Path(job.cfg.teacher)
            env_steps, tensors = _tensors_of(path, job.origin_step, rank)
            teacher = f"{job.cfg.teacher}, env step {env_steps}"
            adopt_teacher(learner.tensors(), job.spec, tensors, read_spec(path))
    elif job.origin_step is not None and rank.rank == 0:
        learner.adopt(_tensors_of(Path(job.cfg.init_from or ""), job.origin_step, rank)[1])
    metrics = learner.read_metrics()
    facts = (learner.num_updates, start.env_steps, start.updates, job.last_eval_step, has_rows)
    table = world.gather((*facts, *metrics.sums, *metrics.counts))
    updates, start_steps, start_updates, last_eval_step = map(int, table[0, :4])
    sums, counts = np.split(table[0, len(facts) :], 2)
    world.broadcast(learner.tensors().values())
    learner.num_updates = updates
    rank.words[RankWord.UPDATES] = updates
    start = LearningStart(start_steps, start_updates)
    if job.start_step and not rank.cfg.algo.learns_from_rollouts and not table[:, 4].all():
        # The rings of a host are empty: gather `learning_starts` new rows first, and owe nothing for those before.
        start = LearningStart(job.start_step + first_step, updates)
    totals = MetricTotals(metrics.names, sums, counts)
    return TrainingStart(start, updates, last_eval_step, totals, checkpoint, teacher)


def _tensors_of(run: Path, env_steps: int, rank: Rank) -> tuple[int, dict[str, Tensor]]:
    """Returns env step and learner of another run's checkpoint, of its newest one if it has removed that since.

    Raises `CheckpointError`.
    """
    store = CheckpointStore(run / CHECKPOINTS)
    try:
        return env_steps, learner_tensors(store.at(env_steps, reads_rows=False))
    except CheckpointError:
        newest = store.newest_valid(reads_rows=False)
        if newest is None or newest.env_steps == env_steps:
            raise
    tensors = learner_tensors(newest)
    text = f"{run} has removed its checkpoint of env step {env_steps:,} since: that of {newest.env_steps:,} is taken"
    rank.child.send("warning", text=text)
    return newest.env_steps, tensors


def has_replay(checkpoint: Checkpoint) -> bool:
    """True if the rows of the replay were saved, and are whole."""
    return not checkpoint.has_lost_rows and checkpoint.read(SharedState, "state").has_replay


@dataclass(frozen=True, slots=True)
class Save:
    """A host's part of a checkpoint as of one instant, to be written while training goes on."""

    rank: int
    progress: tuple[int, int, int]  # env steps, updates, and env steps of the last evaluation
    tensors: dict[str, NDArray[Any]] | None  # of the learner, on rank 0
    shared: SharedState
    streams: RankStreams
    rows: Sequence[CapturedRing] | None  # of the replay; None: they are not saved
    parts: list[Path]  # directories that the collectors and the other ranks of the host have written
    signals: int  # number of signals so far that have asked for a checkpoint, for which this one is the answer

    @property
    def env_steps(self) -> int:
        """Env steps of the checkpoint."""
        return self.progress[0]

    def write(self, draft: Draft, rows: RowSaver) -> None:
        """Writes it, but for the `parts`; the replay with `rows`. Raises `SaveError`."""
        draft.add_json(f"rank-{self.rank}", vars(self.streams))
        if self.tensors is not None:
            draft.add_tensors("learner", self.tensors)
        draft.add_json("state", vars(self.shared))
        if self.rows is not None:
            rows.write(self.rows, draft)


@dataclass(slots=True)
class RankState:
    """A learner rank's part of a checkpoint: its networks, its random streams, and the replay of its host."""

    rank: Rank
    world: World
    learner: Learner
    source: BatchSource
    source_identity: list[Any]  # JSON: what must be equal for the random state of one batch source to fit another
    rings: Sequence[ReplayRing]  # none where the algorithm learns from rollouts
    start: TrainingStart
    setting: Setting | None = None  # that the trial of threads and mode has chosen
    fingerprint: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.fingerprint = fingerprint(self.rank.job.cfg, self.rank.job.spec)

    def write_streams(self, directory: Path) -> None:
        """Writes the state of this rank alone."""
        write_json(directory, f"rank-{self.rank.rank}", vars(self._streams()))

    def _streams(self) -> RankStreams:
        """Returns the random streams of this rank and what its normaliser has seen."""
        return RankStreams(
            source=self.source_identity,
            fresh_from=list(self.source.first_unseen_row),
            sampler=self.source.random_state(),
            updates=self.learner.generator.get_state().numpy().tobytes().hex(),
            setting=self.setting,
            kernels=self.learner.kernels,
        )

    def capture(
        self, progress: tuple[int, int, int], rows: Sequence[CapturedRing] | None, parts: list[Path], signals: int
    ) -> Save:
        """Copies what all ranks share, on rank 0 with the networks, and this rank's streams. Else as in `Save`."""
        state, job = self.learner.state(), self.rank.job
        tensors = {name: tensor.numpy() for name, tensor in state.tensors.items()} if self.rank.rank == 0 else None
        shared = SharedState(
            numbers=state.numbers,
            env_steps=progress[0],
            num_collectors=job.cfg.num_rings * job.host.num_hosts,
            num_ranks=self.world.num_ranks,
            start=astuple(self.start.learning_start),
            replay_first=[ring.oldest for ring in self.rings],
            replay_end=[ring.committed for ring in self.rings],
            replay_written=[ring.num_written for ring in self.rings],
            last_eval_step=progress[2],
            teacher=self.start.teacher,
            fingerprint=self.fingerprint,
            has_replay=rows is not None,
        )
        return Save(self.rank.rank, progress, tensors, shared, self._streams(), rows, parts, signals)

    def resume_streams(self) -> None:
        """Continues the random streams of the checkpoint on all ranks, or on none: they must draw as many batches."""
        checkpoint = self.start.checkpoint
        why_not = self.why_not_exact()
        has_rows = checkpoint is not None and has_replay(checkpoint)
        if checkpoint is not None and has_rows:
            self.source.first_unseen_row[:] = checkpoint.read(SharedState, "state").replay_end
        if self.world.any(bool(why_not)) or checkpoint is None:
            if why_not:
                self.rank.warn(f"the continuation is not bitwise: {why_not}")
            return
        streams = checkpoint.read(RankStreams, f"rank-{self.rank.rank}")
        self.setting = None if streams.setting is None else Setting(*streams.setting)
        # Without the rows, batches that were asked for are of none. Each rank would see at another moment whether there
        # are rows again at those places, and ranks must draw as many batches.
        sampler = streams.sampler if has_rows else {**streams.sampler, "requests": []}
        self.source.set_random_state(sampler)
        self.learner.generator.set_state(torch.frombuffer(bytearray.fromhex(streams.updates), dtype=torch.uint8))
        if has_rows:
            self.source.first_unseen_row[:] = streams.fresh_from

    def why_not_exact(self) -> str:
        """Returns why this rank cannot continue the random streams of the checkpoint; '' if it can."""
        checkpoint, name = self.start.checkpoint, f"rank-{self.rank.rank}"
        if checkpoint is None or not checkpoint.has(name):
            return f"learner rank {self.rank.rank} was not there when the checkpoint was saved"
        if checkpoint.has_lost_rows:
            return "rows of the replay are damaged, and new ones are collected first"
        before, now = checkpoint.read(SharedState, "state").num_ranks, self.world.num_ranks
        if before != now:
            return f"{before} learner ranks before, {now} now"
        source = checkpoint.read(RankStreams, name).source
        if source == self.source_identity:
            return ""
        is_of_kind = source[:2] == self.source_identity[:2]
        what = "other demonstrations, or were packed otherwise," if is_of_kind else str(source)
        return f"the batches came from {what} before"
