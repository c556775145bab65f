"""What every learner process is made of, besides its batch source."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offpolicy.algos.adaptation import adopt_teacher
from offpolicy.algos.base_learner import LearnerState
from offpolicy.algos.registry import make_learner
from offpolicy.checkpoint import CHECKPOINTS, Checkpoint, CheckpointStore
from offpolicy.checkpoint.fingerprint import fingerprint
from offpolicy.config.run_files import read_spec
from offpolicy.distributed.gradient_exchange import checksum
from offpolicy.errors import DesyncError, EnvFailure, NumericsError
from offpolicy.loop import Parts, train
from offpolicy.nets.policy import flat_size
from offpolicy.processes.control_page import RankWord
from offpolicy.processes.mailbox import Mailbox
from offpolicy.replay.prefetch_source import PrefetchSource
from offpolicy.replay.rate_limiter import LearningStart, first_learning_step
from offpolicy.replay.replay_source import Feed
from offpolicy.seeding import torch_seed
from offpolicy.timing.phases import LearnerPhase
from offpolicy.timing.profiler import NoProfiler, Profiler
from offpolicy.training.attainable import attainable
from offpolicy.training.duties import Checkpointer, Reporter, WeightPublisher
from offpolicy.training.feeds import AUTO, demo_share, make_feed
from offpolicy.training.judges import Evaluator
from offpolicy.training.rank_context import RankContext
from offpolicy.training.resume import learner_tensors
from offpolicy.training.run_memory import replay_rings
from offpolicy.training.team import Team
from offpolicy.types import Float64, MetricTotals


class Session:
    """One learner rank: its learner, its batches and its periodic duties."""

    def __init__(self, seat: RankContext, team: Team, source: str = AUTO) -> None:
        """`source` is the kind of batch source where `replay.source` is auto."""
        cfg = seat.cfg
        self.seat, self.team, self.world = seat, team, team.world
        self.context, self.job, self.ledger, self.gate = seat.context, seat.job, seat.ledger, seat.gate
        path = (seat.rank, *seat.start_path) if seat.rank or seat.start_path else ()
        seed = torch_seed(cfg.seed, "learner", *path)
        self.learner = make_learner(cfg.algo, self.job.spec, seat.device, seed, team.exchange, team.average_every)
        self.rings = replay_rings(self.context, self.job)
        checkpoint = self._checkpoint()
        self.teacher = self._teacher(checkpoint)
        self.anchor, last_eval_step = self._set_out(checkpoint)
        self.demos = demo_share(self)
        self.feed: Feed[Any] = make_feed(self, source)  # Any: `Batches` or `Rollouts`, as the learner takes them
        if self.job.start_step:
            self._resume_streams(checkpoint)
        mailbox = Mailbox(self.context.block("weights"), 4 * flat_size(self.learner.policy))
        self.publisher = WeightPublisher(self.learner, mailbox, seat)
        self.evaluator = Evaluator(self, last_step=last_eval_step)
        self.checkpointer = Checkpointer(self, last_step=self.job.start_step)
        self.profiler = _profiler(self)
        with self.ledger.phase(LearnerPhase.WEIGHT_PUBLISH):
            self.publisher.publish()
        self.attainable = attainable(seat)
        self.reporter = Reporter(self)

    @property
    def env_steps(self) -> int:
        """Transitions collected so far on all hosts, as all ranks know it."""
        return self.world.env_steps

    def run(self) -> None:
        """Train. The environment's failure in an evaluation costs the run, not what it has learnt."""
        lane = self.seat.lane
        parts = Parts(
            source=lane.around_source(self.feed),
            learner=lane.around_learner(self.learner),
            fence=lane.around_fence(self.seat.fence),
            publisher=self.publisher,
            evaluator=self.evaluator,
            checkpointer=self.checkpointer,
            reporter=self.reporter,
            world=self.world,
            stop=self.seat.control,
            ledger=self.ledger,
        )
        with contextlib.closing(self.feed), contextlib.closing(self.evaluator):
            try:
                train(parts)
            except EnvFailure:
                with self.ledger.phase(LearnerPhase.CHECKPOINT):
                    self.checkpointer.run_last(is_complete=False)
                raise
            finally:
                self.profiler.close()
                with contextlib.suppress(RuntimeError):  # of a broken device: it must not hide what broke it
                    self.reporter.publish_own()

    def meet(self) -> bool:
        """Whether any host asks to stop, in the middle of a duty; meeting shows that this rank makes progress."""
        with self.ledger.phase(LearnerPhase.RANK_BARRIER):
            return self.world.meet(is_stopping=self.seat.is_stopping())

    def gather_waiting(self, values: Sequence[float] | Float64) -> Float64:
        """The values [n] of all ranks as [R, n], in the middle of a duty; waiting for them is the barrier's time."""
        with self.ledger.phase(LearnerPhase.RANK_BARRIER):
            return self.world.gather(values)

    def recount(self) -> None:
        """Agree on the env steps anew, while all collectors stand still."""
        with self.ledger.phase(LearnerPhase.RANK_BARRIER):
            self.world.recount()

    def total(self, value: float) -> float:
        """The sum of a number over all ranks."""
        return float(self.gather_waiting((value,)).sum())

    def vote(self, flag: bool) -> bool:
        """Whether any rank raises the flag: all take the same way."""
        return bool(self.gather_waiting((flag,)).any())

    def health(self, *, is_settled: bool) -> tuple[float, float, float]:
        """Whether a loss was not finite, whether it was this rank's, and the checksum of what ranks share.

        `is_settled` tells that the networks were averaged just now; between two averagings ranks may differ.
        """
        has_diverged = self.learner.has_diverged()
        must_be_equal = self.world.num_ranks > 1 and (is_settled or not self.team.average_every)
        digest = checksum(list(self.learner.shared_tensors().values())) if must_be_equal else 0.0
        return float(has_diverged), float(has_diverged and self.learner.is_origin()), digest

    def require_health(self, table: Float64) -> None:
        """Judge the `health` of all ranks [R, 3], on each of them. Raises `NumericsError`, `DesyncError`."""
        if table[:, 0].any():
            step_sizes = "algo.lr" if self.job.cfg.algo.learns_from_rollouts else "algo.actor_lr or algo.critic_lr"
            origins = np.flatnonzero(table[:, 1]).tolist()
            where = f" on {_ranks(origins)}" if self.world.num_ranks > 1 else ""
            raise NumericsError(
                f"a loss became NaN or Inf{where} before env step {self.env_steps}; the parameters were kept from then"
                f" on. Lower {step_sizes}, set algo.max_grad_norm, or check the reward's scale"
            )
        others = np.flatnonzero(table[:, 2] != table[0, 2]).tolist()
        if others:
            raise DesyncError(
                f"{_ranks(others)} no longer held the parameters, targets, moments and statistics of rank 0 at env step"
                f" {self.env_steps}: another torch, CPU or GPU model, or a bug"
            )

    def state_json(self, state: LearnerState) -> dict[str, Any]:
        """The numbers of a checkpoint that all ranks share."""
        return {
            "numbers": state.numbers,
            "env_steps": self.env_steps,
            "num_collectors": self.job.cfg.collect.num_collectors * self.job.place.num_hosts,
            "num_ranks": self.world.num_ranks,
            "start": list(astuple(self.anchor)),
            "replay_first": [ring.oldest for ring in self.rings],
            "replay_end": [ring.committed for ring in self.rings],
            "last_eval_step": self.evaluator.told_step,
            "teacher": self.teacher,
            "fingerprint": fingerprint(self.job.cfg, self.job.spec),
        }

    def streams_json(self) -> dict[str, Any]:
        """What a checkpoint keeps of this rank alone, as JSON: its random streams and what the normaliser has seen."""
        return {
            "source": self._source_settings(),
            "fresh_from": list(self.feed.first_unseen_row),
            "sampler": self.feed.random_state(),
            "updates": self.learner.generator.get_state().numpy().tobytes().hex(),
        }

    def _source_settings(self) -> list[str | int | bool]:
        """What must be equal for the random state of a batch source to fit another."""
        replay, kind = self.job.cfg.replay, type(self.feed).__name__
        options = [replay.slots, replay.prefetch, replay.newest] if isinstance(self.feed, PrefetchSource) else []
        return [kind, self.seat.device.type, *options, *(self.demos.identity if self.demos else [])]

    def _checkpoint(self) -> Checkpoint | None:
        if self.job.checkpoint is None:
            return None
        return CheckpointStore(Path(self.job.run_dir) / CHECKPOINTS).at(self.job.checkpoint)

    def _teacher(self, checkpoint: Checkpoint | None) -> str | None:
        """Whom this run began with, as its checkpoints remember."""
        if checkpoint is not None:
            told: str | None = checkpoint.json("state").get("teacher")
            return told
        step = self.job.teacher_step
        return None if step is None else f"{self.job.cfg.teacher}, env step {step}"

    def _set_out(self, checkpoint: Checkpoint | None) -> tuple[LearningStart, int]:
        """Become rank 0, random numbers apart; settle where learning begins and when the last evaluation was.

        A host may have no part of the checkpoint that the run goes on from. What rank 0 says counts.
        """
        start = LearningStart(first_learning_step(self.job.cfg, self.job.place.num_hosts), 0)
        first_step, last_eval_step, has_replay = start.env_steps, 0, False
        if checkpoint is not None:
            state = checkpoint.json("state")
            start, last_eval_step, has_replay = (
                LearningStart(*state["start"]),
                state["last_eval_step"],
                checkpoint.has("replay-0"),
            )
            if self.seat.rank == 0:
                self.learner.load_state(LearnerState(learner_tensors(checkpoint), state["numbers"]))
        elif self.job.teacher_step is not None and self.seat.rank == 0:
            self._take_over(Path(self.job.cfg.teacher or ""), self.job.teacher_step)
        metrics = self.learner.read_metrics()
        facts = (self.learner.num_updates, start.env_steps, start.updates, last_eval_step, has_replay)
        table = self.world.gather((*facts, *metrics.sums, *metrics.counts))
        sums, counts = np.split(table[0, len(facts) :], 2)
        self.start_metrics = MetricTotals(metrics.names, sums, counts)
        updates, start_steps, start_updates, last_eval_step = (int(value) for value in table[0, :4])
        self.team.start_from_rank_0(list(self.learner.start_tensors().values()))
        self.learner.num_updates = updates
        self.seat.words.set(RankWord.UPDATES, updates)
        if self.job.start_step and not table[:, 4].all():
            # Somebody's rings are empty: gather `learning_starts` new rows first, and owe nothing for those before.
            return LearningStart(self.job.start_step + first_step, updates), last_eval_step
        return LearningStart(start_steps, start_updates), last_eval_step

    def _take_over(self, teacher: Path, step: int) -> None:
        """Begin where the teacher's run had come to."""
        tensors = learner_tensors(CheckpointStore(teacher / CHECKPOINTS).at(step))
        adopt_teacher(self.learner.start_tensors(), self.job.spec, tensors, read_spec(teacher))

    def _resume_streams(self, checkpoint: Checkpoint | None) -> None:
        """Let the random numbers go on where they were, on all ranks or on none: they must hand out as many batches."""
        why_not = self._why_not_exact(checkpoint)
        if checkpoint is not None and checkpoint.has("replay-0"):
            self.feed.first_unseen_row[:] = checkpoint.json("state")["replay_end"]
        if self.vote(bool(why_not)) or checkpoint is None:
            if why_not:
                self.context.send("warning", text=f"the continuation is not bitwise: {why_not}")
            return
        streams = checkpoint.json(f"rank-{self.seat.rank}")
        self.feed.set_random_state(streams["sampler"])
        self.learner.generator.set_state(_bytes_tensor(streams["updates"]))
        if checkpoint.has("replay-0"):
            self.feed.first_unseen_row[:] = streams["fresh_from"]

    def _why_not_exact(self, checkpoint: Checkpoint | None) -> str:
        """Why this rank cannot go on with the random numbers of a checkpoint; '' if it can."""
        name = f"rank-{self.seat.rank}"
        if checkpoint is None or not checkpoint.has(name):
            return f"learner {name.replace('-', ' ')} was not there when the checkpoint was saved"
        before = checkpoint.json("state")["num_ranks"]
        if before != self.world.num_ranks:
            return f"{before} learner ranks before, {self.world.num_ranks} now"
        source = checkpoint.json(name)["source"]
        return "" if source == self._source_settings() else f"the batches came from {source} before"


def _profiler(session: Session) -> Profiler | NoProfiler:
    """torch.profiler, for a window of the first rank's iterations."""
    timing, trace_dir = session.job.cfg.timing, session.job.trace_dir
    if trace_dir is None or not timing.profile_at or session.seat.rank != 0:
        return NoProfiler()
    return Profiler(Path(trace_dir), timing.profile_at, timing.profile_iterations)


def _bytes_tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
