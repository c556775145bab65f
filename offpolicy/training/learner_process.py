"""One learner rank from its parts to the end of its training; every runner calls this with its batch source."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from itertools import product
from pathlib import Path

import torch

from offpolicy.algos.graph import GraphUpdate
from offpolicy.algos.learner import Learner
from offpolicy.algos.registry import make_learner
from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore, RankStreams
from offpolicy.collect.collecting_gate import CollectingGate
from offpolicy.collect.collector import Collector
from offpolicy.distributed.world import World
from offpolicy.errors import ConfigError, EnvFailure, NumericsError
from offpolicy.loop import Parts, train
from offpolicy.machine import num_usable_cores
from offpolicy.nets.onednn import BLAS, ONEDNN, chosen_library, has_onednn
from offpolicy.processes.control_page import CollectorWord
from offpolicy.protocols import BatchSource
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.replay_source import RateLimitedSource
from offpolicy.timing.clock import process_birth_ns
from offpolicy.timing.ledger import make_ledger, trace_names
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.timing.profiler import Profiler
from offpolicy.timing.trace_writer import open_track
from offpolicy.training.batch_sources import Replay, source_identity
from offpolicy.training.checkpointer import Checkpointer
from offpolicy.training.collecting import counters_of, open_collector
from offpolicy.training.evaluators import AsyncEvaluator, Evaluator, InlineEvaluator
from offpolicy.training.flops import FlopsReport
from offpolicy.training.rank import Rank, unused_gpu
from offpolicy.training.reporter import Reporter, WeightPublisher
from offpolicy.training.resume import RankState, TrainingStart
from offpolicy.training.tuning import BoundLearner, Setting, speed_trial, thread_numbers


def build_learner(rank: Rank, world: World) -> Learner:
    """Returns the learner of `algo.name`, joined with the other ranks. A resumed run keeps its kernels, if it can."""
    algo, before = rank.cfg.algo, None
    if rank.device.type == "cpu" and algo.precision == "bf16":
        raise ConfigError(f"algo.precision: got bf16, allowed fp32 with device={rank.device}")
    if rank.device.type == "cpu" and algo.compile == "graph":
        raise ConfigError(f"algo.compile: got graph, allowed off with device={rank.device}")
    if rank.job.checkpoint is not None:
        store, name = CheckpointStore(Path(rank.job.run_dir) / CHECKPOINTS), f"rank-{rank.rank}"
        checkpoint = store.at(rank.job.checkpoint, reads_rows=False)
        before = checkpoint.read(RankStreams, name).kernels if checkpoint.has(name) else None
    learner = make_learner(algo, rank.spec, rank.device, rank.learner_seed, world.exchange)
    if algo.kernels == "auto" and learner.kernels == "fast" and before == "textbook":
        algo = replace(algo, kernels=before)
        learner = make_learner(algo, rank.spec, rank.device, rank.learner_seed, world.exchange)
        learner.why_textbook = "the checkpoint, whose updates were textbook"
    if before not in (None, learner.kernels):
        rank.warn(f"the continuation is not bitwise: updates had {before} kernels before, and are {describe(learner)}")
    if algo.compile == "graph":
        learner.run_update = GraphUpdate(learner, rank.device)
    return learner


def describe(learner: Learner) -> str:
    """Returns the kernels of a learner, and why not fast ones."""
    if learner.kernels == "fast":
        return "fast kernels"
    return f"textbook, because of {learner.why_textbook}" if learner.why_textbook else "textbook"


def train_rank(
    rank: Rank,
    world: World,
    learner: Learner,
    source: BatchSource,
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
    if rank.is_leader:
        if learner.kernels == "fast" and rank.cfg.algo.products == ONEDNN and not has_onednn():
            rank.warn(f"algo.products={ONEDNN}: this torch has none for float32; the BLAS makes the products")
        if warning := unused_gpu(rank.device, rank.cfg.device):
            rank.warn(warning)
    rank.ledger.skip(idle_phases(source, num_ranks=rank.num_ranks, collects=rank.cfg.collects_in_learner))
    publisher = WeightPublisher(rank, learner)
    evaluator = Evaluator(rank, world, start.last_eval_step)
    if rank.rank == 0 and rank.cfg.eval.episodes:
        kind = AsyncEvaluator if rank.job.plan.has_evaluator else InlineEvaluator
        evaluator = kind(rank, world, start.last_eval_step, publisher)
    with contextlib.closing(source), contextlib.closing(evaluator), contextlib.ExitStack() as exits:
        checkpointer = Checkpointer(state, lambda: evaluator.last_result_step)
        exits.callback(checkpointer.close)
        timing, trace_dir, profiler = rank.cfg.timing, rank.job.trace_dir, None
        if timing.profile_at and trace_dir is not None and rank.rank == 0:
            profiler = Profiler(Path(trace_dir), timing.profile_at, timing.profile_iterations, rank.warn)
            exits.callback(profiler.close)
        with rank.ledger.phase(LearnerPhase.WEIGHT_PUBLISH):
            publisher.publish()
        reporter = Reporter(rank, world, learner, source, profiler)
        bound = BoundLearner(learner, may_bind=rank.device.type == "cpu" and rank.num_ranks == 1)
        bound.use_threads(torch.get_num_threads())
        measurements = measured_while_training(state, bound.use_threads)
        collector = None
        if isinstance(rank.gate, CollectingGate):
            collector = exits.enter_context(collecting_here(rank, rank.gate, learner, state.rings))
        send_hello(state, collector)
        parts = Parts(
            source=source,
            learner=bound,
            device_timer=rank.device_timer,
            publisher=publisher,
            evaluator=evaluator,
            checkpointer=checkpointer,
            reporter=reporter,
            measurements=measurements,
            world=world,
            is_stopping=lambda: rank.control.is_stopping or evaluator.stops_early,
            ledger=rank.ledger,
        )
        try:
            train(parts)
        except (EnvFailure, NumericsError) as error:
            if isinstance(error, NumericsError) and not (collector and collector.words[CollectorWord.IS_GONE]):
                raise  # the learner's own numbers
            with rank.ledger.phase(LearnerPhase.CHECKPOINT):
                checkpointer.run_last(is_complete=False)
            raise
        finally:
            with contextlib.suppress(RuntimeError):  # of a broken device: it must not hide what broke it
                reporter.publish_own()


@contextlib.contextmanager
def collecting_here(
    rank: Rank, gate: CollectingGate, learner: Learner, rings: Sequence[ReplayRing]
) -> Iterator[Collector]:
    """Gives the gate the collector of this process, with the learner's networks."""
    job, timing = rank.job, rank.cfg.timing
    track = open_track(job.trace_dir, "collector-0", trace_names(CollectorPhase), "collector 0")
    ledger = make_ledger(CollectorPhase, is_enabled=timing.enabled, opened_ns=process_birth_ns(), trace=track)
    gate.collector = open_collector(
        rank.child,
        job,
        rank.control,
        ledger,
        index=0,
        learner_policy=learner.policy,
        ring=rings[0],
    )
    try:
        with ledger.phase(CollectorPhase.LEARNER_WAIT):
            yield gate.collector
    finally:
        ledger.begin_cooldown()
        with contextlib.suppress(RuntimeError):  # of a broken device: it must not hide what broke it
            gate.collector.report()


def idle_phases(source: BatchSource, *, num_ranks: int, collects: bool) -> list[LearnerPhase]:
    """Returns the phases in which nothing ever happens in this run. One rank, too, looks whether to stop."""
    idle = [] if source.has_batch_wait else [LearnerPhase.REPLAY_BATCH_WAIT]
    idle += [] if collects else [LearnerPhase.COLLECT]
    return idle if num_ranks > 1 else [*idle, LearnerPhase.PARAM_SYNC]


def measured_while_training(state: RankState, use_threads: Callable[[int], None]) -> Iterator[None]:
    """Returns what is measured while it trains, a step after each iteration: the trial of threads and mode, the FLOPs.

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
    flops = FlopsReport(rank, learner) if rank.is_leader and rank.cfg.timing.enabled else None

    def steps() -> Iterator[None]:
        yield from speed_trial(settings, apply, report, lambda: learner.num_updates)
        while flops is not None and not flops.measure():
            yield

    return steps()


def send_hello(state: RankState, collector: Collector | None) -> None:
    """Sends what the supervisor needs before the first report, also of the collector in this process."""
    rank, metrics, kernels = state.rank, state.start.metrics, state.learner.kernels
    products = chosen_library(rank.cfg.algo.products) if kernels == "fast" else BLAS
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
        products=products if rank.device.type == "cpu" else "",  # the library of wide products of float32
        start=astuple(state.start.learning_start),
        source=state.source.describe(),
        source_kind=state.source.kind,
        backend=state.world.backend,
        kernels=kernels,
        kernels_text=describe(state.learner),
        collector=None if collector is None else counters_of(collector),
    )
