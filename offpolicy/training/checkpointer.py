"""Saving checkpoints of learners, collectors and replay as of one instant."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from offpolicy import fault
from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore, Draft
from offpolicy.errors import PeerSaveError, SaveError
from offpolicy.processes.control_page import CollectorWord
from offpolicy.training.health import HealthCheck
from offpolicy.training.resume import RankState
from offpolicy.training.worker import SNAPSHOT_DIR


class Checkpointer:
    """Saves every `checkpoint.every` env steps and at the end; all ranks do, in the same iteration.

    Each rank writes its random streams and each collector its part; the leader of each host joins them with the host's
    replay in one checkpoint. Rank 0, whose checkpoint holds the networks, commits last: where its checkpoint exists,
    those of the other hosts do.
    """

    def __init__(self, state: RankState, health: HealthCheck, last_eval_step: Callable[[], int]) -> None:
        self._state, self._health, self._last_eval_step = state, health, last_eval_step
        self._rank, self._learner, self._collectives = state.rank, state.learner, state.ranks.collectives
        self._cfg, self._run_dir = state.rank.cfg.checkpoint, Path(state.rank.job.run_dir)
        self._store = CheckpointStore(self._run_dir / CHECKPOINTS, self._cfg.keep)
        self.last_step = state.rank.job.start_step

    def is_due(self) -> bool:
        """True if a multiple of `checkpoint.every` env steps was passed."""
        every = self._cfg.every
        return every > 0 and self._collectives.env_steps // every > self.last_step // every

    def run(self) -> None:
        """Saves; a full disk does not end the training."""
        env_steps = self._collectives.env_steps
        try:
            with self._activity():
                self._save()
        except SaveError as error:
            if self._rank.is_leader:
                self._rank.warn(f"checkpoint at {env_steps} not saved: {error}")
        self.last_step = env_steps

    def run_last(self, *, is_complete: bool) -> None:
        """Saves the end, whatever ended the run. Raises `SaveError`."""
        with self._activity():
            self._save()

    def _activity(self) -> AbstractContextManager[None]:
        return self._rank.activity("saving a checkpoint: learning waits")

    def _save(self) -> None:
        """Raises `SaveError` or `NumericsError`, on every rank."""
        self._learner.settle()
        self._health.require_now()
        is_leader, is_first = self._rank.is_leader, self._rank.rank == 0
        has_collectors = not is_leader or self._rank.gate.request_snapshot()
        try:
            self._collectives.recount()  # a collector may have finished a step since the ranks agreed
            if self._collectives.any(not has_collectors) and self._collectives.env_steps <= self.last_step:
                return  # the collectors never started: there is nothing newer than the checkpoint they started from
            self._in_turn(self._write_streams, is_mine=not is_leader)
            self._in_turn(lambda: self._commit(has_collectors), is_mine=is_leader and not is_first)
            self._in_turn(lambda: self._commit(has_collectors), is_mine=is_first)
        finally:
            if is_leader:
                self._rank.gate.release_snapshot()
        if is_leader:
            self._store.retire(self._collectives.env_steps)  # now that every host has it
            for text in self._store.warnings:
                self._rank.warn(text)
            self._store.warnings.clear()
            self._rank.child.send("checkpoint", env_steps=self._collectives.env_steps)

    def _in_turn(self, save: Callable[[], None], *, is_mine: bool) -> None:
        """Lets some ranks save while the others wait. Raises `SaveError` on every rank if one of them cannot."""
        failure: SaveError | None = None
        if is_mine:
            try:
                save()
            except SaveError as error:
                failure = error
        if self._collectives.any(failure is not None):
            raise failure or PeerSaveError("another learner rank could not save its part")

    def _write_streams(self) -> None:
        """Writes this rank's streams to the directory from which the leader of its host takes them."""
        directory = self._run_dir / f"{SNAPSHOT_DIR}-rank-{self._rank.rank}"
        shutil.rmtree(directory, ignore_errors=True)  # left by a save that failed
        try:
            fault.hit("snapshot.mkdir")
            directory.mkdir()
        except OSError as error:
            raise SaveError(f"{directory}: {error.strerror}") from error
        self._state.write_streams(directory)

    def _commit(self, has_collectors: bool) -> None:
        with self._store.begin(self._collectives.env_steps, retires=False) as draft:
            self._adopt(draft, has_collectors)
            self._state.write_streams(draft.path)
            self._state.fill(draft, self._last_eval_step(), has_replay=self._cfg.replay)

    def _adopt(self, draft: Draft, has_collectors: bool) -> None:
        """Moves what the other ranks of this host, and the collectors if all are there, have written into the draft."""
        cfg, first, names = self._rank.cfg, self._rank.rank, list[str]()
        if has_collectors:
            names = [f"collector-{index}" for index in range(cfg.collect.num_collectors)]
            for name, words in zip(names, self._rank.control.collectors, strict=True):
                if refused := words.get(CollectorWord.SNAPSHOT_ERRNO):
                    raise SaveError(f"{name} could not save its part: {os.strerror(refused)}")
        names += [f"rank-{first + index}" for index in range(1, cfg.runner.world_size)]
        for name in names:
            source = self._run_dir / f"{SNAPSHOT_DIR}-{name}"
            try:
                for path in sorted(source.iterdir()):
                    fault.hit("snapshot.adopt")
                    os.rename(path, draft.path / path.name)
                source.rmdir()
            except OSError as error:
                raise SaveError(f"{source}: {error}") from error
