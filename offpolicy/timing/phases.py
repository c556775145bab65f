"""The closed vocabulary of the time account: one meaning per phase, the same for every runner and algorithm.

Learner phases are exclusive on the learner's main thread; collector phases are exclusive on the collector's own
clock and never added to the learner's. Key of a phase: `timing/learner_<phase>_ms`, `timing/collector_<phase>_ms`.
"""

from __future__ import annotations

from enum import StrEnum


class LearnerPhase(StrEnum):
    """Phases of the learner's main thread."""

    COLLECTOR_WAIT = "collector_wait"
    REPLAY_BATCH_WAIT = "replay_batch_wait"
    REPLAY_SAMPLE = "replay_sample"
    H2D = "h2d"
    RANK_BARRIER = "rank_barrier"
    SYNC_COORDINATION = "sync_coordination"
    TRAIN = "train"
    PARAM_SYNC = "param_sync"
    WEIGHT_PUBLISH = "weight_publish"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    LOG = "log"
    OTHER = "other"


class CollectorPhase(StrEnum):
    """Phases of a collector."""

    WEIGHT_APPLY = "weight_apply"
    ACTION_SELECT = "action_select"
    ENV_STEP = "env_step"
    REPLAY_WRITE = "replay_write"
    LEARNER_WAIT = "learner_wait"
    OTHER = "other"


class PackerPhase(StrEnum):
    """Phases of the thread that packs batches ahead. It runs beside the learner: never added to its phases."""

    REQUEST_WAIT = "request_wait"  # there is no request
    ROWS_WAIT = "rows_wait"  # the newest rows were requested and have not been collected yet
    SLOT_WAIT = "slot_wait"  # the slot is still in use on the device
    PACK = "pack"  # drawing indices and gathering rows
    COPY = "copy"  # handing the slot to the device
    OTHER = "other"


class DeviceSpan(StrEnum):
    """Work of a device. Its time passes beside the learner's phases: never added to them."""

    TRAIN = "train"  # from the first to the last kernel of an iteration's updates
    H2D = "h2d"  # copies to the device that the learner waited for
    H2D_HIDDEN = "h2d_hidden"  # copies behind its work
    SAMPLE = "sample"  # drawing and gathering rows of a replay that lies there
    INFERENCE = "inference"  # of policies; collectors and evaluations infer on the CPU


class EvaluatorPhase(StrEnum):
    """Phases of the process that evaluates beside training; never added to the learner's."""

    WAIT_REQUEST = "wait_request"  # there is no request
    WEIGHT_APPLY = "weight_apply"  # loading the requested weights
    ENV_RESET = "env_reset"  # making environments and starting episodes
    ACTION_SELECT = "action_select"
    ENV_STEP = "env_step"
    POST_BACKPRESSURE = "post_backpressure"  # the hook is behind: its queue is full
    OTHER = "other"


# Phases in which the learner waits for another process or thread.
LEARNER_WAITS = (
    LearnerPhase.COLLECTOR_WAIT,
    LearnerPhase.REPLAY_BATCH_WAIT,
    LearnerPhase.RANK_BARRIER,
    LearnerPhase.SYNC_COORDINATION,
)
# Phases of work that is not part of an update: each has its cadence.
LEARNER_PERIODIC = (LearnerPhase.EVALUATION, LearnerPhase.CHECKPOINT)
