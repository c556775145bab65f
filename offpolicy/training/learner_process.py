"""One learner rank from its parts to the end of its training; every runner calls this with its batch source."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from offpolicy.algos.graph import GraphUpdate
from offpolicy.algos.learner import Learner
from offpolicy.algos.registry import make_learner
from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore, RankStreams
from offpolicy.distributed.world import World
from offpolicy.errors import ConfigError, EnvFailure
from offpolicy.loop import Parts, train
from offpolicy.machine import num_usable_cores
from offpolicy.onednn import BLAS, chosen_library, missing_library
from offpolicy.protocols import StatefulBatchSource
from offpolicy.replay.replay_source import RateLimitedSource
from offpolicy.timing.phases import LearnerPhase
from offpolicy.timing.profiler import Profiler
from offpolicy.training.batch_sources import Replay, source_identity
from offpolicy.training.bound_learner import BoundLearner
from offpolicy.training.checkpointer import Checkpointer
from offpolicy.training.evaluators import AsyncEvaluator, EarlyStop, Evaluator, InlineEvaluator, PeriodicEvaluation
from offpolicy.training.flops import CountedLearner, Work, attainable_flops_per_sec, counted
from offpolicy.training.health import HealthCheck
from offpolicy.training.rank import Rank, unused_gpu
from offpolicy.training.reporter import Reporter
from offpolicy.training.resume import RankState, TrainingStart
from offpolicy.training.speed_tuner import Setting, SpeedTuner, thread_numbers
from offpolicy.training.weight_publisher import WeightPublisher


def build_learner(rank: Rank, world: World) -> Learner:
    """Returns the learner of `algo.name`, joined with the other ranks. A resumed run keeps its kernels, if it can."""
    exchange, algo, before = world.exchange, rank.cfg.algo, kernels_before(rank)
    if algo.precision == "bf16" and rank.device.type == "cpu":
        raise ConfigError(f"algo.precision: got bf16, allowed fp32 with device={rank.device}")
    learner = make_learner(algo, rank.spec, rank.device, rank.learner_seed, exchange)
    if algo.kernels == "auto" and learner.kernels == "fast" and before == "textbook":
        learner = make_learner(replace(algo, kernels=before), rank.spec, rank.device, rank.learner_seed, exchange)
        learner.why_textbook = "the checkpoint, whose updates were textbook"
    if before not in (None, learner.kernels):
        rank.warn(f"the continuation is not bitwise: updates had {before} kernels before, and are {describe(learner)}")
    if algo.compile == "graph":
        if rank.device.type == "cpu":
            raise ConfigError(f"algo.compile: got graph, allowed off with device={rank.device}")
        learner.run_update = GraphUpdate(learner, rank.device)
    return learner


def kernels_before(rank: Rank) -> str | None:
    """Returns the kernels that made the updates of the checkpoint; None where there is none."""
    if rank.job.checkpoint is None:
        return None
    store, name = CheckpointStore(Path(rank.job.run_dir) / CHECKPOINTS), f"rank-{rank.rank}"
    checkpoint = store.at(rank.job.checkpoint, reads_rows=False)
    return checkpoint.read(RankStreams, name).kernels if checkpoint.has(name) else None


def describe(learner: Learner) -> str:
    """Returns the kernels of a learner, and why not fast ones."""
    if learner.kernels == "fast":
        return "fast kernels"
    return f"textbook, because of {learner.why_textbook}" if learner.why_textbook else "textbook"


def train_rank(
    rank: Rank,
    world: World,
    learner: Learner,
    source: StatefulBatchSource[Any],  # Any: `Batches` or `Rollouts`, as the learner takes them
    start: TrainingStart,
    replay: Replay | None = None,
) -> None:
    """Trains until the run is done or stops. `replay` is what the source samples from; None for rollouts.

    If the environment fails in an evaluation, the run ends, but what it has learnt is saved.
    """
    identity = source_identity(rank, source, replay)
    state = RankState(rank, world, learner, source, identity, replay.rings if replay else (), start)
    if rank.job.start_step:
        state.resume_streams()
    missing = missing_library(rank.cfg.algo.products) if learner.kernels == "fast" and rank.is_leader else ""
    unused = unused_gpu(rank.device, rank.cfg.device) if rank.is_leader else ""
    for warning in (missing, unused):
        if warning:
            rank.warn(warning)
    rank.ledger.skip(idle_phases(source, world.num_ranks))
    publisher = WeightPublisher(rank, learner)
    evaluation = periodic_evaluation(rank, world, publisher, start)
    with contextlib.closing(source), contextlib.closing(evaluation), contextlib.ExitStack() as exits:
        health = HealthCheck(rank.cfg, learner, world)
        evaluator = evaluation.evaluator
        checkpointer = exits.enter_context(
            contextlib.closing(
                Checkpointer(state, health, lambda: evaluator.last_result_step if evaluator else evaluation.last_step)
            )
        )
        profiler = make_profiler(rank)
        with rank.ledger.phase(LearnerPhase.WEIGHT_PUBLISH):
            publisher.publish()
        reporter = Reporter(state, health, profiler)
        flops = FlopsReport(rank, learner) if rank.is_leader and rank.cfg.timing.enabled else None
        bound = BoundLearner(
            learner if flops is None else CountedLearner(learner, flops.on_counted),
            may_bind=rank.device.type == "cpu" and rank.num_ranks == 1,
        )
        bound.use_threads(torch.get_num_threads())
        tuner = make_tuner(state, bound.use_threads, (lambda: True) if flops is None else flops.measure)
        send_hello(state)
        parts = Parts(
            source=source,
            learner=bound,
            device_timer=rank.device_timer,
            publisher=publisher,
            evaluator=evaluation,
            checkpointer=checkpointer,
            reporter=reporter,
            tuner=tuner,
            world=world,
            stop=EarlyStop(rank.control, evaluation),
            ledger=rank.ledger,
        )
        try:
            train(parts)
        except EnvFailure:
            with rank.ledger.phase(LearnerPhase.CHECKPOINT):
                checkpointer.run_last(is_complete=False)
            raise
        finally:
            profiler.close()
            with contextlib.suppress(RuntimeError):  # of a broken device: it must not hide what broke it
                reporter.publish_own()


def idle_phases(source: StatefulBatchSource[Any], num_ranks: int) -> list[LearnerPhase]:  # Any: as in `train_rank`
    """Returns the phases in which nothing ever happens in this run. One rank, too, looks whether to stop."""
    idle = [] if source.has_batch_wait else [LearnerPhase.REPLAY_BATCH_WAIT]
    return idle if num_ranks > 1 else [*idle, LearnerPhase.PARAM_SYNC]


def periodic_evaluation(
    rank: Rank, world: World, publisher: WeightPublisher, start: TrainingStart
) -> PeriodicEvaluation:
    """Returns the evaluation of this rank: rank 0 evaluates itself, or has the evaluator process do it."""
    evaluator: Evaluator | None = None
    if rank.rank == 0 and rank.cfg.eval.episodes:
        make = AsyncEvaluator if rank.job.plan.has_evaluator else InlineEvaluator
        evaluator = make(rank, publisher, start.last_eval_step)
    return PeriodicEvaluation(rank, world, evaluator, start.last_eval_step)


def make_tuner(state: RankState, use_threads: Callable[[int], None], settled: Callable[[], bool]) -> SpeedTuner:
    """Returns the tuner of threads and mode. `use_threads` sets the number of threads, `settled` is the tuner's.

    What is configured is fixed; so are the threads on a GPU, both with several ranks, and what a checkpoint holds.
    """
    rank, learner, source = state.rank, state.learner, state.source
    is_free = rank.cfg.threads.learner == "auto" and rank.device.type == "cpu"
    numbers = thread_numbers(num_usable_cores()) if is_free else (torch.get_num_threads(),)
    modes = ("alternate", "overlap") if rank.cfg.collect.mode == "auto" else (rank.cfg.collect_mode,)
    settings = [Setting(*pair) for pair in product(numbers, modes)] if rank.num_ranks == 1 else []

    def apply(setting: Setting) -> None:
        use_threads(setting.threads)
        if len(modes) > 1 and isinstance(source, RateLimitedSource):
            source.set_mode(setting.mode)

    def report(setting: Setting, text: str, tried_s: Mapping[Setting, float]) -> None:
        state.setting = setting
        update_s = {one.threads: seconds for one, seconds in tried_s.items() if one.mode == setting.mode}
        rank.child.send("setting", threads=setting.threads, mode=setting.mode, text=text, update_s=update_s)

    if state.setting in settings:
        apply(state.setting)
        settings = []
    return SpeedTuner(settings, apply, report, lambda: learner.num_updates, settled)


def make_profiler(rank: Rank) -> Profiler:
    """Returns torch.profiler for the configured window of rank 0's iterations."""
    timing, trace_dir = rank.cfg.timing, rank.job.trace_dir
    at = timing.profile_at if trace_dir is not None and rank.rank == 0 else 0
    return Profiler(Path(trace_dir or "."), at, timing.profile_iterations, rank.warn)


class FlopsReport:
    """Reports the work of a mean update, and then once what the machine attains on the update's products."""

    def __init__(self, rank: Rank, learner: Learner) -> None:
        self._rank, self._policy = rank, learner.policy
        self._update: Work | None = None
        self._decision = 0.0

    def on_counted(self, update: Work) -> None:
        """Reports FLOPs of an update and of a decision."""
        rank, num_envs = self._rank, self._rank.cfg.env.num_envs
        obs = torch.zeros(num_envs, rank.spec.obs_dim, device=rank.device)
        _, decisions = counted(partial(self._policy.act, obs))
        self._update, self._decision = update, decisions.flops / num_envs
        self._send(None)

    def measure(self) -> bool:
        """Reports what the machine attains, if the work is known: True then."""
        rank, update = self._rank, self._update
        if update is None:
            return False
        dtype = torch.bfloat16 if rank.cfg.algo.precision == "bf16" else torch.float32
        with contextlib.suppress(RuntimeError):  # no memory for it: the run itself may go on all the same
            self._send(attainable_flops_per_sec(update.products, dtype, rank.new_device_sync(), rank.device))
        return True

    def _send(self, attainable: float | None) -> None:
        if self._update is not None:
            per_update, per_decision = self._update.flops, self._decision
            self._rank.child.send(
                "flops", per_update=per_update, per_decision=per_decision, attainable_per_sec=attainable
            )


def product_library(rank: Rank, kernels: str) -> str:
    """Returns the library of wide matrix products of float32; '' on a GPU."""
    if rank.device.type != "cpu":
        return ""
    return chosen_library(rank.cfg.algo.products) if kernels == "fast" else BLAS


def send_hello(state: RankState) -> None:
    """Sends what the supervisor needs before the first report."""
    rank, metrics, kernels = state.rank, state.start.metrics, state.learner.kernels
    chosen = state.setting if rank.cfg.collect.mode == "auto" else None  # a checkpoint's
    rank.child.send(
        "hello",
        mode=rank.cfg.collect_mode if chosen is None else chosen.mode,
        metrics=list(metrics.names),
        sums=metrics.sums.tolist(),
        counts=metrics.counts.tolist(),
        updates=state.learner.num_updates,
        device=str(rank.device),
        gpu=torch.cuda.get_device_name(rank.device) if rank.device.type == "cuda" else None,
        threads=torch.get_num_threads(),
        products=product_library(rank, kernels),
        start=astuple(state.start.learning_start),
        source=state.source.describe(),
        source_kind=state.source.kind,
        backend=state.world.backend,
        kernels=kernels,
        kernels_text=describe(state.learner),
    )
