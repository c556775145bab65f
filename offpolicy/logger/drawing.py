"""What all pictures have in common: colours of runs and phases, the frame, and the file. Needs matplotlib to draw."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    CollectorPhase.SNAPSHOT: "#7f7f7f",
    PackerPhase.PACK: "#e08a2c", PackerPhase.COPY: "#b5651d", PackerPhase.REQUEST_WAIT: "#ececec",
    PackerPhase.SLOT_WAIT: "#fbd9c0",
    "other": "#bdbdbd",
}  # fmt: skip


def frame(axes: Axes, title: str = "") -> None:
    """Leaves out the upper and the right line of a plot, and sets its title."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def picture_file(figure: Figure, *, is_svg: bool) -> bytes:
    """Returns the picture as a file; without a date, a version and random ids, the same runs give the same one."""
    from matplotlib import rc_context

    out = io.BytesIO()
    with rc_context({"svg.hashsalt": "offpolicy", "svg.fonttype": "none"}):  # text stays text
        if is_svg:
            _settle(figure)
            figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        else:
            figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _settle(figure: Figure) -> None:
    """Fixes the places of the axes, rounded: the last bits of a layout differ between processes, and with them ids."""
    from matplotlib.transforms import Bbox

    if figure.get_layout_engine() is None:
        return
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(Bbox.from_bounds(*(round(bound, 6) for bound in axes.get_position().bounds)))
