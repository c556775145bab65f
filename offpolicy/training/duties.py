"""A learner's duties besides training: publishing weights, saving, reporting; `judges.py` has evaluating.

Every rank runs every duty, in the same iteration: whether one is due follows from numbers that all ranks share. What
only one of them does (rank 0 evaluates, the leader of each host saves) ends with a vote, so that all go the same way.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from offpolicy.algos.base_learner import BaseLearner
from offpolicy.checkpoint import CheckpointStore, Draft, write_json
from offpolicy.errors import PeerSaveError, SaveError
from offpolicy.nets.policy import flat_size, flatten_into
from offpolicy.processes.control_page import RankWord
from offpolicy.processes.mailbox import Mailbox
from offpolicy.timing.trace_writer import Mark
from offpolicy.training.rank_context import RankContext
from offpolicy.training.run_memory import learner_reports
from offpolicy.training.worker_spec import SNAPSHOT_DIR
from offpolicy.types import Float64, LearnerTotals

if TYPE_CHECKING:
    from offpolicy.training.learner import Session


class WeightPublisher:
    """Hands the actor's weights, with the normaliser's statistics, to the collectors of the host; the leader's duty."""

    def __init__(self, learner: BaseLearner, mailbox: Mailbox, seat: RankContext) -> None:
        self._learner, self._mailbox, self._seat = learner, mailbox, seat
        self.flat = np.zeros(flat_size(learner.policy), dtype=np.float32)
        self.version = 0  # of what was published last

    def publish(self) -> None:
        """Make the present weights the newest."""
        if self._seat.is_leader:
            flatten_into(self._learner.policy, self.flat)
            # Noted before: a collector may take them before this thread goes on.
            self._seat.ledger.mark(Mark.PUBLISHED, self._mailbox.version + 1)
            self.version = self._mailbox.publish(self.flat)
            self._seat.words.set(RankWord.VERSION, self.version)


class Checkpointer:
    """Saves everything every `checkpoint.every` env steps and at the end.

    Each rank writes its random streams and each collector its share; the leader of each host joins them with the host's
    replay in one checkpoint. Rank 0, whose checkpoint holds the networks, commits last: where its checkpoint exists,
    those of the other hosts do.
    """

    def __init__(self, session: Session, last_step: int) -> None:
        self._session = session
        cfg = session.job.cfg.checkpoint
        self._every, self._saves_replay = cfg.every, cfg.replay
        self._run_dir = Path(session.job.run_dir)
        self._store = CheckpointStore(self._run_dir / "checkpoints", cfg.keep)
        self.last_step = last_step

    def run_if_due(self) -> None:
        """Save if a multiple of `checkpoint.every` env steps was passed; a full disk is reported, training goes on."""
        env_steps = self._session.env_steps
        if self._every and env_steps // self._every > self.last_step // self._every:
            try:
                self._save()
            except SaveError as error:
                if self._session.seat.is_leader:
                    self._session.context.send("warning", text=f"checkpoint at {env_steps} not saved: {error}")
            self.last_step = env_steps

    def run_last(self, *, is_complete: bool) -> None:
        """Save the end, whatever ended the run. Raises `SaveError`."""
        self._save()

    def _save(self) -> None:
        """One checkpoint of learners, collectors and replay as of one instant. Raises `SaveError`, `NumericsError`."""
        session = self._session
        session.learner.settle()
        session.require_health(session.gather_waiting(session.health(is_settled=True)))
        seat, is_first = session.seat, session.seat.rank == 0
        has_collectors = not seat.is_leader or session.gate.request_snapshot()
        try:
            session.recount()  # a collector may have finished a step since the ranks met; the snapshot holds it
            if session.vote(not has_collectors) and session.env_steps <= self.last_step:
                return  # the collectors never started: there is nothing newer than what they would have gone on from
            self._in_turn(self._leave_share, is_mine=not seat.is_leader)
            self._in_turn(lambda: self._commit(has_collectors), is_mine=seat.is_leader and not is_first)
            self._in_turn(lambda: self._commit(has_collectors), is_mine=is_first)
        finally:
            if seat.is_leader:
                session.gate.release_snapshot()
        if seat.is_leader:
            self._store.retire(session.env_steps)  # now that every host has it
            for text in self._store.warnings:
                session.context.send("warning", text=text)
            self._store.warnings.clear()
            session.context.send("checkpoint", env_steps=session.env_steps)

    def _in_turn(self, save: Callable[[], None], *, is_mine: bool) -> None:
        """Let some ranks save while the others wait. Raises `SaveError` on every rank if one of them cannot."""
        failure: SaveError | None = None
        if is_mine:
            try:
                save()
            except SaveError as error:
                failure = error
        if self._session.vote(failure is not None):
            raise failure or PeerSaveError("another learner rank could not save its part")

    def _leave_share(self) -> None:
        directory = self._run_dir / f"{SNAPSHOT_DIR}-rank-{self._session.seat.rank}"
        shutil.rmtree(directory, ignore_errors=True)  # of a save that came to nothing
        try:
            directory.mkdir()
        except OSError as error:
            raise SaveError(f"{directory}: {error.strerror}") from error
        self._write_streams(directory)

    def _write_streams(self, directory: Path) -> None:
        write_json(directory, f"rank-{self._session.seat.rank}", self._session.streams_json())

    def _commit(self, has_collectors: bool) -> None:
        session = self._session
        with self._store.begin(session.env_steps, retires=False) as draft:
            if has_collectors:
                self._adopt(draft)
            self._write_streams(draft.path)
            self._fill(draft)

    def _adopt(self, draft: Draft) -> None:
        """Move what collectors and ranks have left into the draft."""
        cfg, seat = self._session.job.cfg, self._session.seat
        names = [f"collector-{index}" for index in range(cfg.collect.num_collectors)]
        names += [f"rank-{seat.rank + index}" for index in range(1, cfg.runner.world_size)]
        for name in names:
            source = self._run_dir / f"{SNAPSHOT_DIR}-{name}"
            try:
                for path in sorted(source.iterdir()):
                    os.rename(path, draft.path / path.name)
                source.rmdir()
            except OSError as error:
                raise SaveError(f"{source}: {error}") from error

    def _fill(self, draft: Draft) -> None:
        session = self._session
        state = session.learner.state()
        if session.seat.rank == 0:
            draft.add_tensors("learner", {name: tensor.numpy() for name, tensor in state.tensors.items()})
        draft.add_json("state", session.state_json(state))
        if self._saves_replay:
            for index, ring in enumerate(session.rings):
                draft.add_rows(f"replay-{index}", *ring.spans(ring.oldest, ring.committed))


class Reporter:
    """Publishes the cumulative report of all ranks when rank 0's supervisor asks; reads the metrics only then."""

    def __init__(self, session: Session) -> None:
        self._session = session
        seat, metrics = session.seat, session.start_metrics
        names = list(metrics.names)
        self._reports = learner_reports(session.context.block("learner_report"), names, seat.num_ranks)
        self._matrix: Float64 = np.zeros((seat.num_ranks, len(self._reports.vector(self._totals()))))
        session.context.send(
            "hello",
            metrics=names,
            sums=metrics.sums.tolist(),
            counts=metrics.counts.tolist(),
            updates=session.learner.num_updates,
            device=str(seat.device),
            gpu=torch.cuda.get_device_name(seat.device) if seat.device.type == "cuda" else None,
            threads=torch.get_num_threads(),
            attainable=session.attainable,
            start=astuple(session.anchor),
            source=session.feed.describe(),
            backend=session.team.backend,
        )

    def run_if_due(self) -> None:
        """Keep the progress words fresh, and report if it was agreed: one collective for everything of every rank."""
        session = self._session
        words = session.seat.words
        words.bump(RankWord.PROGRESS)
        words.bump(RankWord.ITERATIONS)
        session.profiler.step()
        words.set(RankWord.UPDATES, session.learner.num_updates)
        if session.world.is_reporting:
            health = session.health(is_settled=False)
            table = session.gather_waiting(np.concatenate((health, self._reports.vector(self._totals()))))
            session.require_health(table[:, : len(health)])
            self._publish(table[:, len(health) :])

    def run_last(self, *, is_complete: bool) -> None:
        """The last report closes the account."""
        session = self._session
        session.seat.words.set(RankWord.UPDATES, session.learner.num_updates)
        stopped_by = session.world.stopped_by
        session.context.send("done", is_complete=is_complete, env_steps=session.env_steps, stopped_by=stopped_by)
        self._publish(session.gather_waiting(self._reports.vector(self._totals())))

    def publish_own(self) -> None:
        """Report this rank's own counters, whatever became of the others."""
        matrix = self._matrix.copy()
        matrix[self._session.seat.rank] = self._reports.vector(self._totals())
        self._publish(matrix)

    def _publish(self, matrix: Float64) -> None:
        self._matrix = matrix
        if self._session.seat.is_leader:
            self._reports.publish(matrix)

    def _totals(self) -> LearnerTotals:
        session = self._session
        return LearnerTotals(
            metrics=session.learner.read_metrics(),
            updates=session.learner.num_updates,
            samples=session.feed.samples,
            sample_age_sum=session.feed.sample_age_sum,
            account=session.ledger.account(),
            packer=session.feed.packer_account(),
            rollouts=session.feed.rollouts,
            device=session.seat.lane.totals(),
        )
