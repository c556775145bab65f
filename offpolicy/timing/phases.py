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
    COLLECT = "collect"
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
    HANDSHAKE = "handshake"
    LEARNER_WAIT = "learner_wait"
    LINK_WAIT = "link_wait"
    SNAPSHOT = "snapshot"
    OTHER = "other"


class PackerPhase(StrEnum):
    """Phases of the thread that packs batches ahead. It runs beside the learner: never added to its phases."""

    REQUEST_WAIT = "request_wait"  # there is no request
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
    COLLECT = "collect"  # acting, stepping a batch of tensors and writing its rows, with collect.process=learner


class EvaluatorPhase(StrEnum):
    """Phases of the process that evaluates beside training; never added to the learner's."""

    WAIT_REQUEST = "wait_request"  # there is no request
    WEIGHT_APPLY = "weight_apply"  # loading the requested weights
    ENV_RESET = "env_reset"  # making environments and starting episodes
    ACTION_SELECT = "action_select"
    ENV_STEP = "env_step"
    OTHER = "other"


# Phases in which the learner waits for another process or thread.
LEARNER_WAITS = (
    LearnerPhase.COLLECTOR_WAIT,
    LearnerPhase.REPLAY_BATCH_WAIT,
    LearnerPhase.RANK_BARRIER,
    LearnerPhase.SYNC_COORDINATION,
)
# In these it has no rows to go on with, or gathers them itself.
COLLECTORS_TURN = (LearnerPhase.COLLECTOR_WAIT, LearnerPhase.COLLECT)
# What belongs to the side of the collectors: waits, in which it may take the core of this one, and its turn on it.
FOR_COLLECTORS = (LearnerPhase.COLLECTOR_WAIT, LearnerPhase.SYNC_COORDINATION, LearnerPhase.COLLECT)
# Phases of work that is not part of an update: each has its cadence.
LEARNER_PERIODIC = (LearnerPhase.EVALUATION, LearnerPhase.CHECKPOINT)
# Phases that a rank delays the others by. What rank 0 does alone has its own phases, as have all waits for others.
LEARNER_OWN_WORK = (
    LearnerPhase.REPLAY_BATCH_WAIT,
    LearnerPhase.REPLAY_SAMPLE,
    LearnerPhase.H2D,
    LearnerPhase.TRAIN,
    LearnerPhase.OTHER,
)


class CoreClass(StrEnum):
    """Rows of the core ledger of a host: what its cores did. Every nanosecond of capacity is in exactly one of them."""

    LEARNER = "learner"  # main threads of the learner ranks
    OPENMP = "openmp"  # OpenMP and BLAS workers of the learner ranks, their spinning included
    PACKER = "packer"  # threads that pack batches ahead
    LEARNER_OTHER = "learner_other"  # every other thread of the learner ranks
    COLLECTOR = "collector"
    ENV_WORKERS = "env_workers"  # the processes that collectors started
    EVALUATOR = "evaluator"  # its process, and those that it or a learner started: all of them evaluate
    SUPERVISOR = "supervisor"
    OTHERS = "others"  # other programs, the kernel's interrupts, other virtual machines
    IDLE = "idle"  # what the run could still have used


# Phases in which the collector does nothing for the next step: it waits for the learner, or saves for a checkpoint.
COLLECTOR_PAUSES = (CollectorPhase.LEARNER_WAIT, CollectorPhase.SNAPSHOT)
