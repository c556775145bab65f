"""Saving checkpoints of learners, collectors and replay as of one instant."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from offpolicy import fault
from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore, make_part
from offpolicy.errors import PeerSaveError, SaveError
from offpolicy.processes.child import name_threads
from offpolicy.processes.control_page import CollectorWord, HostWord
from offpolicy.replay.row_saver import RowSaver
from offpolicy.training.reporter import check_health, health_facts
from offpolicy.training.resume import RankState, Save
from offpolicy.training.worker import SNAPSHOT_DIR


class Checkpointer:
    """Saves every `checkpoint.every` env steps, when the supervisor asks, and at the end; all ranks do, together.

    Each rank writes its random streams and each collector its part; the leader of each host joins them with the host's
    replay in one checkpoint. On one host the loop waits only until that is copied: a thread writes it beside training.
    With several, rank 0, whose checkpoint holds the networks, commits last: where its checkpoint exists, those of the
    other hosts do.
    """

    def __init__(self, state: RankState, last_eval_step: Callable[[], int]) -> None:
        self._state, self._last_eval_step = state, last_eval_step
        self._rank, self._learner, self._world = state.rank, state.learner, state.world
        self._cfg, self._run_dir = state.rank.cfg.checkpoint, Path(state.rank.job.run_dir)
        self._store = CheckpointStore(self._run_dir / CHECKPOINTS, self._cfg.keep)
        self._rows = RowSaver(state.rings)
        self._rows.continue_after(state.start.checkpoint)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saver")
        self._writing: tuple[Save, Future[None]] | None = None
        self._is_requested = self._must_save = self._has_failed = False
        self._saved: tuple[int, int, int] | None = None  # progress of the newest checkpoint that this process has saved
        self.last_step = self._saved_step = state.rank.job.start_step  # of the last save, also of one that failed
        # Env steps of checkpoints of this host that another one lacks: an earlier start may have left them.
        has_peers = self._rank.is_leader and not self._rank.is_one_host
        self._unshared = {step for step in self._store.steps() if step > self._saved_step} if has_peers else set[int]()

    def is_due(self) -> bool:
        """True if a multiple of `checkpoint.every` env steps was passed, or a save is requested, or must be waited for.

        `run_last` saves the end of the budget. A request waits while another save is written; with several ranks it
        does not, since only the leader knows.
        """
        every, world, env_steps = self._cfg.every, self._state.world, self._world.env_steps
        if self._writing is not None and self._writing[1].done():
            self._end_writing()
        self._is_requested |= world.is_saving
        is_free = self._writing is None or world.num_ranks > 1
        is_last = env_steps >= self._rank.cfg.total_timesteps
        has_passed = every > 0 and not is_last and env_steps // every > self.last_step // every
        self._must_save = has_passed or (self._is_requested and is_free)
        rows = None if self._writing is None else self._writing[0].rows
        return self._must_save or (rows is not None and self._rows.must_be_written_soon(rows))

    def run(self) -> None:
        """Saves; a full disk does not end the training."""
        self._end_writing()
        if not self._must_save:
            return
        self._is_requested = False
        try:
            save = self._capture()
            if not self._rank.is_one_host:
                self._commit_in_turn(save)
            elif save is not None:
                self._writing = save, self._thread.submit(self._write_beside, save)
            if save is None and self._rank.is_leader and self._saved is not None:
                self._send(self._saved_step, self._num_signals)  # there is nothing new in it: it is saved already
        except SaveError as error:
            self._warn_unsaved(self._world.env_steps, error)
        self.last_step = self._world.env_steps

    def run_last(self, *, is_complete: bool) -> None:
        """Saves the end, whatever ended the run, unless it is saved already. Raises `SaveError`."""
        with self._rank.activity("saving a checkpoint: learning waits"):
            self._end_writing()
            self._commit_in_turn(self._capture())

    def close(self) -> None:
        """Waits for what is being written; the thread ends."""
        try:
            self._end_writing()
        finally:
            self._thread.shutdown()

    def _capture(self) -> Save | None:
        """Copies this host's part while everything stands still; None on ranks that lead no host.

        None everywhere if there is nothing new: it is saved already, or the collectors never started. Raises
        `SaveError`, `NumericsError` or `DesyncError`, on every rank.
        """
        check_health(self._rank, self._world, self._world.gather(health_facts(self._world, self._learner)))
        is_leader, found = self._rank.is_leader, list[Save]()
        has_collectors = not is_leader or self._rank.gate.request_snapshot()
        try:
            self._world.recount()  # a collector may have finished a step since the ranks agreed
            is_lacking = self._world.any(not has_collectors)
            has_new = self._world.env_steps > self._saved_step if is_lacking else self._progress != self._saved
            is_new = self._world.any(is_leader and has_new)
            if is_leader and not (is_new and has_collectors):  # what they have written is for no checkpoint
                for index in range(self._rank.cfg.num_rings):
                    shutil.rmtree(self._run_dir / f"{SNAPSHOT_DIR}-collector-{index}", ignore_errors=True)
            if not is_new:
                return None
            own = self._run_dir / f"{SNAPSHOT_DIR}-rank-{self._rank.rank}"  # from where the leader of its host takes it
            self._in_turn(lambda: self._state.write_streams(make_part(own)), is_mine=not is_leader)
            self._in_turn(lambda: found.append(self._copy(has_collectors)), is_mine=is_leader)
        finally:
            if is_leader:
                self._rank.gate.release_snapshot()
        return found[0] if found else None

    @property
    def _progress(self) -> tuple[int, int, int]:
        """Env steps, updates, and env steps of the last evaluation: equal ones make the same checkpoint."""
        return self._world.env_steps, self._learner.num_updates, self._last_eval_step()

    def _copy(self, has_collectors: bool) -> Save:
        """Copies this host's part. Raises `SaveError` naming a collector that could not write its own."""
        names = list[str]()
        if has_collectors:
            for index, words in enumerate(self._rank.control.collectors):
                names.append(f"collector-{index}")
                if refused := words[CollectorWord.SNAPSHOT_ERRNO]:
                    raise SaveError(f"collector-{index} could not save its part: {os.strerror(refused)}")
        names += [f"rank-{self._rank.rank + index}" for index in range(1, self._rank.cfg.runner.world_size)]
        parts = [self._run_dir / f"{SNAPSHOT_DIR}-{name}" for name in names]
        rows = self._rows.capture() if self._cfg.replay and self._state.rings else None
        return self._state.capture(self._progress, rows, parts, self._num_signals)

    def _commit_in_turn(self, save: Save | None) -> None:
        """Commits while the loop waits, on rank 0 last. Raises `SaveError`."""
        is_first = self._rank.rank == 0
        self._in_turn(lambda: self._commit(save), is_mine=self._rank.is_leader and not is_first)
        self._in_turn(lambda: self._commit(save), is_mine=is_first)
        if save is not None:
            self._unshared.clear()
            self._store.retire(save.env_steps)  # now that every host has it
            self._report(save)

    def _commit(self, save: Save | None) -> None:
        if save is not None:
            self._write(save)
            for env_steps in self._unshared - {save.env_steps}:
                self._store.discard(env_steps)  # the new one has links to its rows
            self._unshared = {save.env_steps} - {self._saved_step}  # it may have replaced one that all hosts have

    def _write(self, save: Save) -> None:
        """Writes the checkpoint; the next one takes over its rows. Raises `SaveError`."""
        try:
            with self._store.begin(save.env_steps, retires=False) as draft:
                for part in save.parts:
                    try:
                        for path in sorted(part.iterdir()):
                            fault.hit("snapshot.adopt")
                            os.rename(path, draft.path / path.name)
                        part.rmdir()
                    except OSError as error:
                        raise SaveError(f"{part}: {error}") from error
                save.write(draft, self._rows)
        except SaveError:
            self._rows.forget_lost_base()
            raise
        self._rows.continue_after(draft.saved)

    def _write_beside(self, save: Save) -> None:
        """Runs in the thread beside training."""
        name_threads()
        self._write(save)
        self._store.retire(save.env_steps)

    def _end_writing(self) -> None:
        """Waits for what is being written, if anything, and reports it."""
        if self._writing is None:
            return
        (save, written), self._writing = self._writing, None
        try:
            written.result()
        except SaveError as error:
            self._warn_unsaved(save.env_steps, error)
        else:
            self._report(save)

    def _report(self, save: Save) -> None:
        self._saved, self._saved_step = save.progress, save.env_steps
        if self._has_failed:
            self._has_failed = False
            self._rank.note(f"checkpoint at {save.env_steps} saved: the disk takes them again")
        for text in self._store.warnings:
            self._rank.warn(text)
        self._store.warnings.clear()
        self._send(save.env_steps, save.signals)

    def _send(self, env_steps: int, signals: int) -> None:
        self._rank.child.send("checkpoint", env_steps=env_steps, signals=signals)

    @property
    def _num_signals(self) -> int:
        return self._rank.control.host[HostWord.SAVE_SIGNALS]

    def _warn_unsaved(self, env_steps: int, error: SaveError) -> None:
        """Warns of the first of several saves that fail one after the other."""
        if self._rank.is_leader and not self._has_failed:
            self._has_failed = True
            self._rank.warn(f"checkpoint at {env_steps} not saved: {error}")

    def _in_turn(self, save: Callable[[], None], *, is_mine: bool) -> None:
        """Lets some ranks save while the others wait. Raises `SaveError` on every rank if one of them cannot."""
        failure: SaveError | None = None
        if is_mine:
            try:
                save()
            except SaveError as error:
                failure = error
        if self._world.any(failure is not None):
            raise failure or PeerSaveError("another learner rank could not save its part")
