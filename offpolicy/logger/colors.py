"""The colours of pictures: of runs, and of the phases of every thread."""

from __future__ import annotations

from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase

# Okabe and Ito (2008): colour-blind readers can tell them apart. Lines: without the yellow, which is faint on white.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#F0E442")
LINES = tuple(colour for colour in PALETTE if colour != "#F0E442")

# Strong colours for work, pale ones for waiting.
COLORS: dict[str, str] = {
    LearnerPhase.TRAIN: "#3b6fb5", LearnerPhase.PARAM_SYNC: "#8a4fa3", LearnerPhase.REPLAY_SAMPLE: "#e08a2c",
    LearnerPhase.H2D: "#b5651d", LearnerPhase.WEIGHT_PUBLISH: "#3f9155", LearnerPhase.SYNC_COORDINATION: "#1f9e9e",
    LearnerPhase.EVALUATION: "#8c8c2f", LearnerPhase.CHECKPOINT: "#5b4636", LearnerPhase.LOG: "#a0526a",
    LearnerPhase.COLLECTOR_WAIT: "#f3e3c3", LearnerPhase.REPLAY_BATCH_WAIT: "#fbd9c0",
    LearnerPhase.RANK_BARRIER: "#e6d6ee",
    CollectorPhase.ENV_STEP: "#c0504d", CollectorPhase.ACTION_SELECT: "#d9a441", CollectorPhase.WEIGHT_APPLY: "#6aa84f",
    CollectorPhase.REPLAY_WRITE: "#4a90a4", CollectorPhase.LEARNER_WAIT: "#dbe5f1", CollectorPhase.HANDSHAKE: "#a07cc0",
    CollectorPhase.POST_BACKPRESSURE: "#f7d0d0", CollectorPhase.SNAPSHOT: "#7f7f7f",
    PackerPhase.PACK: "#e08a2c", PackerPhase.COPY: "#b5651d", PackerPhase.REQUEST_WAIT: "#ececec",
    PackerPhase.ROWS_WAIT: "#f3e3c3", PackerPhase.SLOT_WAIT: "#fbd9c0",
    "other": "#bdbdbd",
}  # fmt: skip
