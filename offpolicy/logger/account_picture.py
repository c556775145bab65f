"""A picture of the learner's account over env steps, for TensorBoard; needs the extra `plot`."""

from __future__ import annotations

import importlib.util
import io

import numpy as np

from offpolicy.logger.colors import COLORS
from offpolicy.logger.metrics import LEARNER_ROWS, share_key
from offpolicy.logger.record import Record
from offpolicy.timing.phases import LearnerPhase
from offpolicy.types import Float64

EVERY_S = 60.0  # wall seconds between two pictures, at least: one takes a few tenths of a second
MOST_RECORDS = 500  # kept: of a longer run every second one, then every fourth, ...
SIZE_IN, DPI = (7.0, 3.2), 100
SHOWN_PERCENT = 1.0  # of the wall in some record: the legend does not name phases below


class AccountHistory:
    """The shares of the learner's wall in the records so far, and when the next picture of them is due."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, ...]] = []  # env steps, then the percent of each phase
        self._stride = 1  # records per row
        self._skipped = 0
        self._next_s = EVERY_S

    def add(self, record: Record) -> None:
        """Keeps the shares of a record, if it has any."""
        row = [record.get(key) for key in ("env_steps", *(share_key("learner", phase) for phase in LearnerPhase))]
        numbers = [value for value in row if isinstance(value, int | float)]
        self._skipped += 1
        if len(numbers) < len(row) or self._skipped < self._stride:
            return
        self._skipped = 0
        self._rows.append(tuple(numbers))
        if len(self._rows) > MOST_RECORDS:
            self._rows, self._stride = self._rows[::2], 2 * self._stride

    def due_picture(self, wall_s: float) -> bytes | None:
        """Returns the picture as PNG; None before the next one is due, with too few records, or without matplotlib."""
        if wall_s < self._next_s or len(self._rows) < 2 or importlib.util.find_spec("matplotlib") is None:
            return None
        self._next_s = wall_s + EVERY_S
        return account_png(np.array(self._rows))


def account_png(rows: Float64) -> bytes:
    """Draws the phases as layers up to 100 %. rows: [n, 1 + phases], env steps and percents."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_IN, dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    percents = np.maximum(rows[:, 1:], 0.0).T
    names = [
        LEARNER_ROWS[phase] if percent.max() >= SHOWN_PERCENT else f"_{phase}"  # _: not in the legend
        for phase, percent in zip(LearnerPhase, percents, strict=True)
    ]
    axes.stackplot(rows[:, 0], percents, labels=names, colors=[COLORS[phase] for phase in LearnerPhase])
    axes.set(xlim=(rows[0, 0], rows[-1, 0]), ylim=(0.0, 100.0), xlabel="env steps", ylabel="% of the learner's wall")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    out = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(out, format="png", metadata={"Software": None})
    return out.getvalue()
