"""A learner's duties besides training: publishing weights, evaluating, saving, reporting."""

from __future__ import annotations

import os
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from offpolicy.algos.learner import Learner
from offpolicy.checkpoint import CheckpointStore, Draft
from offpolicy.collect.evaluation import evaluate
from offpolicy.errors import SaveError
from offpolicy.ipc.control import ControlPage, Word
from offpolicy.ipc.mailbox import Mailbox
from offpolicy.ipc.reports import LearnerReports
from offpolicy.nets.policy import flat_size, flatten_into, load_flat, make_policy
from offpolicy.types import EvalResult, LearnerTotals

from . import wiring

if TYPE_CHECKING:
    from .learner import Session


class WeightPublisher:
    """Hands the actor's weights, with the normaliser's statistics, to the collectors."""

    def __init__(self, learner: Learner, mailbox: Mailbox, control: ControlPage) -> None:
        self._learner, self._mailbox, self._control = learner, mailbox, control
        self.flat = np.zeros(flat_size(learner.policy), dtype=np.float32)

    def publish(self) -> None:
        """Make the present weights the newest."""
        flatten_into(self._learner.policy, self.flat)
        self._control.set(Word.VERSION, self._mailbox.publish(self.flat))


class Evaluator:
    """Evaluates the published weights every `eval.every` env steps and at the end."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._policy = make_policy(session.job.cfg.algo, session.job.spec).eval()
        self.last: EvalResult | None = None
        self.last_step = 0

    def run_if_due(self) -> None:
        """Evaluate if a multiple of `eval.every` env steps was passed since the last time."""
        every, env_steps = self._session.job.cfg.eval.every, self._session.env_steps
        if every and env_steps // every > self.last_step // every:
            self._evaluate(env_steps)

    def run_last(self, *, is_complete: bool) -> None:
        """The final evaluation; left out when the run was asked to stop, and when it was done just now."""
        env_steps = self._session.env_steps
        if is_complete and (self.last is None or self.last.env_steps != env_steps):
            self._evaluate(env_steps)

    def _evaluate(self, env_steps: int) -> None:
        self.last_step = env_steps
        cfg = self._session.job.cfg
        if cfg.eval.episodes == 0:
            return
        load_flat(self._policy, self._session.publisher.flat)
        result = evaluate(
            self._policy,
            cfg.env,
            episodes=cfg.eval.episodes,
            seed=cfg.seed,
            env_steps=env_steps,
            should_stop=self._session.is_stopping,
        )
        if result is not None:
            self.last = result
            self._session.context.send("eval", **result._asdict())


class Checkpointer:
    """Saves everything every `checkpoint.every` env steps and at the end."""

    def __init__(self, session: Session) -> None:
        self._session = session
        cfg = session.job.cfg.checkpoint
        self._every, self._saves_replay = cfg.every, cfg.replay
        self._store = CheckpointStore(Path(session.job.run_dir) / "checkpoints", cfg.keep)
        self.last_step = 0

    def run_if_due(self) -> None:
        """Save if a multiple of `checkpoint.every` env steps was passed; a full disk is reported, training goes on."""
        env_steps = self._session.env_steps
        if self._every and env_steps // self._every > self.last_step // self._every:
            try:
                self._save()
            except SaveError as error:
                self._session.context.send("warning", text=f"checkpoint at {env_steps} not saved: {error}")
            self.last_step = env_steps

    def run_last(self, *, is_complete: bool) -> None:
        """Save the end, whatever ended the run. Raises `SaveError`."""
        self._save()

    def _save(self) -> None:
        """One checkpoint of learner, collector and replay as of one instant. Raises `SaveError`, `NumericsError`."""
        self._session.check_finite()
        has_collector = self._session.gate.request_snapshot()
        if not has_collector and self._session.env_steps <= self.last_step:
            return  # the collector never started: there is nothing newer than the checkpoint it would have gone on from
        try:
            with self._store.begin(self._session.env_steps) as draft:
                if has_collector:
                    self._adopt_snapshot(draft)
                self._fill(draft)
        finally:
            self._session.gate.release_snapshot()
        for text in self._store.warnings:
            self._session.context.send("warning", text=text)
        self._store.warnings.clear()
        self._session.context.send("checkpoint", env_steps=self._session.env_steps)

    def _adopt_snapshot(self, draft: Draft) -> None:
        source = Path(self._session.job.run_dir) / wiring.SNAPSHOT_DIR
        try:
            for path in sorted(source.iterdir()):
                os.rename(path, draft.path / path.name)
            source.rmdir()
        except OSError as error:
            raise SaveError(f"{source}: {error}") from error

    def _fill(self, draft: Draft) -> None:
        state = self._session.learner.state()
        draft.add_tensors("learner", {name: tensor.numpy() for name, tensor in state.tensors.items()})
        draft.add_json("state", self._session.state_json(state))
        if self._saves_replay:
            ring = self._session.ring
            draft.add_rows("replay", *ring.spans(ring.oldest, ring.committed))


class Reporter:
    """Publishes the cumulative report whenever the supervisor asks for one; reads the metrics only then."""

    def __init__(self, session: Session) -> None:
        self._session = session
        metrics = session.learner.read_metrics()
        names = list(metrics.names)
        self._reports: LearnerReports = wiring.learner_reports(session.context.block("learner_report"), names)
        self._answered = 0
        session.context.send(
            "hello",
            metrics=names,
            sums=metrics.sums.tolist(),
            counts=metrics.counts.tolist(),
            updates=session.learner.num_updates,
            device=str(session.device),
            gpu=torch.cuda.get_device_name(session.device) if session.device.type == "cuda" else None,
            threads=torch.get_num_threads(),
            start=astuple(session.anchor),
        )

    def run_if_due(self) -> None:
        """Keep the progress words fresh, and report if asked."""
        control = self._session.control
        control.bump(Word.LEARNER_PROGRESS)
        control.bump(Word.ITERATIONS)
        control.set(Word.UPDATES, self._session.learner.num_updates)
        wanted = control.get(Word.REPORT_REQUEST)
        if wanted != self._answered:
            self._answered = wanted
            self._session.check_finite()
            self.publish()

    def run_last(self, *, is_complete: bool) -> None:
        """The last report closes the account."""
        self._session.control.set(Word.UPDATES, self._session.learner.num_updates)
        self._session.context.send("done", is_complete=is_complete, env_steps=self._session.env_steps)
        self.publish()

    def publish(self) -> None:
        """Publish the cumulative report."""
        session = self._session
        self._reports.publish(
            LearnerTotals(
                metrics=session.learner.read_metrics(),
                updates=session.learner.num_updates,
                samples=session.sampler.samples,
                sample_age_sum=session.sampler.age_sum,
                account=session.ledger.account(),
            )
        )
