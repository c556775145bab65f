"""Pictures: colours, frame and file of all of them, and the learner's account. Drawing needs matplotlib."""

from __future__ import annotations

import importlib.util
import io
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from offpolicy.logger.console import number
from offpolicy.logger.metrics import LEARNER_ROWS
from offpolicy.logger.record import Record
from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase
from offpolicy.types import Float64

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EVERY_S = 60.0  # wall seconds between two pictures of the account, at least: one takes a few tenths of a second
MOST_RECORDS = 500  # in a picture: beyond, every second one of them is dropped
SHOWN_PERCENT = 1.0  # of the wall in some record: the legend does not name phases below

# Okabe and Ito (2008): colour-blind readers can tell them apart. Lines: without the yellow, which is faint on white.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#F0E442")
LINES = tuple(colour for colour in PALETTE if colour != "#F0E442")

# Strong colours for work, pale ones for waiting.
COLORS: dict[str, str] = {
    LearnerPhase.TRAIN: "#3b6fb5", LearnerPhase.PARAM_SYNC: "#8a4fa3", LearnerPhase.REPLAY_SAMPLE: "#e08a2c",
    LearnerPhase.H2D: "#b5651d", LearnerPhase.WEIGHT_PUBLISH: "#3f9155", LearnerPhase.SYNC_COORDINATION: "#1f9e9e",
    LearnerPhase.EVALUATION: "#8c8c2f", LearnerPhase.CHECKPOINT: "#5b4636", LearnerPhase.LOG: "#a0526a",
    LearnerPhase.COLLECTOR_WAIT: "#f3e3c3", LearnerPhase.REPLAY_BATCH_WAIT: "#fbd9c0",
    LearnerPhase.RANK_BARRIER: "#e6d6ee", LearnerPhase.COLLECT: "#c0504d",
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
            if figure.get_layout_engine() is not None:
                figure.draw_without_rendering()
                figure.set_layout_engine("none")
                for axes in figure.axes:  # rounded: the last bits differ between processes, and with them random ids
                    axes.set_position([round(bound, 6) for bound in axes.get_position().bounds])  # type: ignore[arg-type]
            figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        else:
            figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


class AccountPictures:
    """The shares of the learner's wall in the records so far, over env steps, and the picture that is being drawn.

    A thread draws it: the import of matplotlib may search the machine for fonts, and the supervisor must answer.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[float | None, ...]] = []  # env steps, then the percent of each phase
        self._next_s = EVERY_S
        self._drawing: Future[tuple[int, bytes]] | None = None

    def add(self, record: Record) -> None:
        """Keeps the shares of a record, if it has all of them."""
        keys = ("env_steps", *(f"share/learner_{phase}_pct" for phase in LearnerPhase))
        row = tuple(number(record, key) for key in keys)
        if None not in row:
            self._rows = [*(self._rows if len(self._rows) < MOST_RECORDS else self._rows[::2]), row]

    def take(self, wall_s: float | None, timeout_s: float = 0.0) -> tuple[int, bytes] | None:
        """Returns the last env steps and the PNG of a picture, once it is ready. Raises its error.

        Begins one at `wall_s`, if that is given and one is due, there are records enough, and matplotlib.
        """
        is_due = wall_s is not None and wall_s >= self._next_s and len(self._rows) >= 2 and self._drawing is None
        if is_due and importlib.util.find_spec("matplotlib") is not None:
            self._next_s, self._drawing = (wall_s or 0.0) + EVERY_S, Future()
            # A daemon: a search for fonts must not hold up the end of the program for longer than `timeout_s`.
            Thread(target=_draw, args=(np.array(self._rows, float), self._drawing), name="picture", daemon=True).start()
        try:
            picture = None if self._drawing is None else self._drawing.result(timeout_s)
        except TimeoutError:
            return None
        self._drawing = None
        return picture


def _draw(rows: Float64, drawing: Future[tuple[int, bytes]]) -> None:
    """Draws the phases as layers up to 100 %, in a thread. rows: [n, 1 + phases], env steps and percents."""
    try:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.0, 3.2), dpi=100, layout="constrained")
        axes = figure.add_subplot()
        percents = np.maximum(rows[:, 1:], 0.0).T
        names = [
            LEARNER_ROWS[phase] if percent.max() >= SHOWN_PERCENT else f"_{phase}"  # _: not in the legend
            for phase, percent in zip(LearnerPhase, percents, strict=True)
        ]
        axes.stackplot(rows[:, 0], percents, labels=names, colors=[COLORS[phase] for phase in LearnerPhase])
        axes.set(xlim=(rows[0, 0], rows[-1, 0]), ylim=(0, 100), xlabel="env steps", ylabel="% of the learner's wall")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
        frame(axes)
        drawing.set_result((int(rows[-1, 0]), picture_file(figure, is_svg=False)))
    except Exception as error:  # of matplotlib, or of another version of it: whoever takes the picture deals with it
        drawing.set_exception(error)
