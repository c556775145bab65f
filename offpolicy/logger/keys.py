"""The keys of what is told per phase, and what each phase means: one vocabulary for panel, records and pages."""

from __future__ import annotations

from collections.abc import Mapping

from offpolicy.timing.phases import CollectorPhase, DeviceSpan, EvaluatorPhase, LearnerPhase, PackerPhase

LEARNER_ROWS: Mapping[LearnerPhase, tuple[str, str]] = {
    LearnerPhase.COLLECTOR_WAIT: (
        "Collector Wait",
        "Blocked because the collector has not produced the rows or rollout this iteration needs. No barrier, no"
        " packing, no copy, no logging, no handshake.",
    ),
    LearnerPhase.REPLAY_BATCH_WAIT: (
        "Replay Batch Wait",
        "The rows exist; blocked because the prefetched batch is not packed or not on the device yet. About 0 on a"
        " prefetch hit.",
    ),
    LearnerPhase.REPLAY_SAMPLE: ("Replay Sample", "Drawing indices and gathering rows on this thread."),
    LearnerPhase.H2D: (
        "H2D Copy",
        "Host-to-device copy that this thread waited for: the exposed part. The hidden part is in the device lane.",
    ),
    LearnerPhase.RANK_BARRIER: ("Rank Barrier", "Waiting for other ranks to arrive at a collective."),
    LearnerPhase.SYNC_COORDINATION: (
        "Sync Coordination",
        "The handshake of lockstep collection itself: sending and taking tokens.",
    ),
    LearnerPhase.TRAIN: (
        "Train",
        "Forward, backward, optimiser, target update; ends when its device work has ended if the next phase would"
        " have to wait for it anyway. No collective inside.",
    ),
    LearnerPhase.PARAM_SYNC: (
        "Param Sync",
        "Exchanging gradients or parameters between ranks, after all have arrived.",
    ),
    LearnerPhase.WEIGHT_PUBLISH: ("Weight Publish", "Handing the actor's weights to the collectors."),
    LearnerPhase.EVALUATION: (
        "Evaluation",
        "Evaluating the policy on the learner's thread. Beside training (`eval.beside`): handing the weights over, and"
        " at the end the wait for the last result.",
    ),
    LearnerPhase.CHECKPOINT: ("Checkpoint", "Saving a checkpoint on the learner's thread."),
    LearnerPhase.LOG: ("Log", "Preparing and sending the learner's counters."),
    LearnerPhase.OTHER: ("Other", "The residual, never clamped. More than 2 % of Iter Wall is a defect."),
}
COLLECTOR_ROWS: Mapping[CollectorPhase, tuple[str, str]] = {
    CollectorPhase.WEIGHT_APPLY: ("Weight Apply", "Taking over newly published weights."),
    CollectorPhase.ACTION_SELECT: ("Action Select", "Choosing actions: policy inference or random draws."),
    CollectorPhase.ENV_STEP: ("Env Step", "Stepping the environments."),
    CollectorPhase.REPLAY_WRITE: ("Replay Write", "Writing the transitions into the replay ring."),
    CollectorPhase.LEARNER_WAIT: (
        "Learner Wait",
        "Idleness caused by the learner: lockstep, the UTD limiter, a full rollout ring.",
    ),
    CollectorPhase.OTHER: ("Other", "The residual, never clamped."),
}
PACKER_ROWS: Mapping[PackerPhase, str] = {
    PackerPhase.REQUEST_WAIT: "Nothing is asked for: the learner is the slower one.",
    PackerPhase.ROWS_WAIT: "Waiting for the newest rows, where replay.newest demands them.",
    PackerPhase.SLOT_WAIT: "Waiting for the device, which still reads the slot.",
    PackerPhase.PACK: "Drawing indices and gathering rows.",
    PackerPhase.COPY: "Handing the slot to the device.",
    PackerPhase.OTHER: "The residual, never clamped.",
}
DEVICE_ROWS: Mapping[DeviceSpan, str] = {
    DeviceSpan.TRAIN: "From the first to the last kernel of an iteration's updates, gaps between them included.",
    DeviceSpan.H2D: "Copies to the device that the learner waited for: the exposed part.",
    DeviceSpan.H2D_HIDDEN: "Copies to the device behind the learner's work.",
    DeviceSpan.INFERENCE: "Policies on the device. Collectors and evaluations infer on the CPU: 0.",
}
EVALUATOR_ROWS: Mapping[EvaluatorPhase, str] = {
    EvaluatorPhase.WAIT_REQUEST: "Nothing is to be evaluated.",
    EvaluatorPhase.WEIGHT_APPLY: "Taking over the weights asked about.",
    EvaluatorPhase.ENV_RESET: "Making environments and beginning episodes.",
    EvaluatorPhase.ACTION_SELECT: "Choosing actions.",
    EvaluatorPhase.ENV_STEP: "Stepping the environments.",
    EvaluatorPhase.POST_BACKPRESSURE: "Waiting for the hook, whose queue of finished episodes is full.",
    EvaluatorPhase.OTHER: "The residual, never clamped.",
}
RANK_STATISTICS: Mapping[str, str] = {"min": "the least of all ranks", "mean": "the mean", "max": "the most"}


def learner_key(phase: str) -> str:
    """Key of a learner phase."""
    return f"timing/learner_{phase}_ms"


def collector_key(phase: str) -> str:
    """Key of a collector phase."""
    return f"timing/collector_{phase}_ms"


ROLLOUT_KEY = "timing/collector_rollout_ms"
RESET_KEY = "timing/collector_reset_ms"


def rank_key(phase: str, statistic: str) -> str:
    """Key of a statistic (`min`, `mean`, `max`) of a learner phase over all ranks."""
    return f"rank/{phase}_{statistic}_ms"


def prefetch_key(phase: str) -> str:
    """Key of a phase of the packer."""
    return f"prefetch/{phase}_ms"


def device_key(span: str) -> str:
    """Key of a span of the device."""
    return f"device/{span}_ms"


def evaluator_key(phase: str) -> str:
    """Key of a phase of the evaluator."""
    return f"evaluator/{phase}_ms"
