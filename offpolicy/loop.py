"""THE learner loop: every runner and every algorithm trains through these lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offpolicy.protocols import BatchSource
from offpolicy.timing.device_timer import DeviceTimer
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import DeviceSpan
from offpolicy.timing.phases import LearnerPhase as Phase

if TYPE_CHECKING:
    from offpolicy.distributed.world import World
    from offpolicy.training.checkpointer import Checkpointer
    from offpolicy.training.evaluators import Evaluator
    from offpolicy.training.reporter import Reporter, WeightPublisher
    from offpolicy.training.tuning import BoundLearner


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a learner process. A runner chooses ranks and batch source; `train_rank` adds the others."""

    source: BatchSource
    learner: BoundLearner
    device_timer: DeviceTimer
    publisher: WeightPublisher
    evaluator: Evaluator
    checkpointer: Checkpointer
    reporter: Reporter
    measurements: Iterator[None]  # of threads, mode and FLOPs, a step after each iteration until they are done
    world: World
    is_stopping: Callable[[], bool]  # the supervisor asks to stop, or the evaluations so far end the run
    ledger: Ledger


def train(parts: Parts) -> bool:
    """Trains until the budget is spent and its result known (True), or the supervisor asks to stop (False).

    One iteration waits for the env steps that its updates call for, takes their batches and makes all those updates in
    one `learner.update`. How many env steps and updates that is, by `algo.utd` and the collection mode, is decided in
    `replay/rate_limiter.py`; with rollouts it is one rollout per collector.

    Every nanosecond of this thread lands in one phase or in `other`. The first iteration is warm-up, like what comes
    before it: its update loads kernels and makes the allocator grow.
    """
    phase, on_device = parts.ledger.phase, parts.device_timer.span
    parts.source.release()
    while True:
        with phase(Phase.COLLECTOR_WAIT):
            parts.source.wait_ready()  # for rows, or rollouts, from the collectors
        with phase(Phase.RANK_BARRIER):
            is_stopping = parts.world.agree(is_stopping=parts.is_stopping())
        if is_stopping or parts.source.is_exhausted():
            break
        with phase(Phase.REPLAY_BATCH_WAIT):
            parts.source.wait_batch()  # for the packing thread, where there is one
        with phase(Phase.REPLAY_SAMPLE):
            rows = parts.source.sample()
        with phase(Phase.H2D), on_device(DeviceSpan.H2D):
            batches = parts.source.to_device(rows)
        with phase(Phase.TRAIN):
            with on_device(DeviceSpan.TRAIN):
                parts.learner.update(batches)
            # Publishing would wait for the device anyway: here that time counts as training, its cause.
            parts.device_timer.end_update()
        with phase(Phase.WEIGHT_PUBLISH):
            parts.publisher.publish()
        if parts.evaluator.is_due():
            with phase(Phase.EVALUATION):
                parts.evaluator.run()
        # Before the release: in `alternate` mode the collector stands still, so the snapshot is exactly this boundary.
        if parts.checkpointer.is_due():
            with phase(Phase.CHECKPOINT):
                parts.checkpointer.run()
        with phase(Phase.SYNC_COORDINATION):
            parts.source.release()  # grants the collectors their next steps
        with phase(Phase.LOG):
            parts.reporter.run_if_due()
            next(parts.measurements, None)
        parts.ledger.close()
        parts.ledger.end_warmup()
    return finish(parts, is_complete=not is_stopping)


def finish(parts: Parts, *, is_complete: bool) -> bool:
    """Runs the last evaluation, checkpoint and report, in their phases. True if the run is complete."""
    phase = parts.ledger.phase
    parts.ledger.begin_cooldown()
    with phase(Phase.EVALUATION):
        is_complete = parts.evaluator.run_last(is_complete=is_complete)
    with phase(Phase.CHECKPOINT):
        parts.checkpointer.run_last(is_complete=is_complete)
    with phase(Phase.LOG):
        parts.reporter.run_last(is_complete=is_complete)
    return is_complete
