"""A picture of the learner's account over env steps, for TensorBoard; needs the extra `plot`.

A thread draws it: the import of matplotlib may search the machine for fonts, and the supervisor must answer meanwhile.
"""

from __future__ import annotations

import importlib.util
from concurrent.futures import Future
from threading import Thread
from typing import NamedTuple

import numpy as np

from offpolicy.logger.drawing import COLORS, frame, picture_file
from offpolicy.logger.metrics import LEARNER_ROWS, share_key
from offpolicy.logger.record import Record
from offpolicy.timing.phases import LearnerPhase
from offpolicy.types import Float64

EVERY_S = 60.0  # wall seconds between two pictures, at least: one takes a few tenths of a second
MOST_RECORDS = 500  # kept: of a longer run every second one, then every fourth, ...
SIZE_IN, DPI = (7.0, 3.2), 100
SHOWN_PERCENT = 1.0  # of the wall in some record: the legend does not name phases below


class Picture(NamedTuple):
    """A PNG, and the env steps of the last record in it."""

    env_steps: int
    png: bytes


class AccountHistory:
    """The shares of the learner's wall in the records so far, and the picture of them that is being drawn."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, ...]] = []  # env steps, then the percent of each phase
        self._stride = 1  # records per row
        self._skipped = 0
        self._next_s = EVERY_S
        self._drawing: Future[Picture] | None = None
        self._thread: Thread | None = None

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

    def draw_if_due(self, wall_s: float) -> None:
        """Begins a picture; none before the next one is due, with too few records, or without matplotlib."""
        is_due = wall_s >= self._next_s and len(self._rows) >= 2 and self._drawing is None
        if not is_due or importlib.util.find_spec("matplotlib") is None:
            return
        self._next_s = wall_s + EVERY_S
        self._drawing = Future()
        # A daemon: a search for fonts must not hold up the end of the program for longer than `close` waits for it.
        self._thread = Thread(target=_draw, args=(np.array(self._rows), self._drawing), name="picture", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float = 0.0) -> Picture | None:
        """Returns a picture that has become ready, once; None if there is none within `timeout_s`. Raises its error."""
        if self._drawing is None:
            return None
        try:
            self._drawing.exception(timeout_s)
        except TimeoutError:
            return None
        drawn, self._drawing = self._drawing, None
        return drawn.result()

    def close(self, timeout_s: float) -> None:
        """Waits for the end of the thread, at most `timeout_s`: one that still draws ends with the program."""
        if self._thread is not None:
            self._thread.join(timeout_s)


def _draw(rows: Float64, drawing: Future[Picture]) -> None:
    """Runs in the thread."""
    try:
        drawing.set_result(Picture(int(rows[-1, 0]), account_png(rows)))
    except Exception as error:  # of matplotlib, or of another version of it: whoever takes the picture deals with it
        drawing.set_exception(error)


def account_png(rows: Float64) -> bytes:
    """Draws the phases as layers up to 100 %. rows: [n, 1 + phases], env steps and percents."""
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
    frame(axes)
    return picture_file(figure, is_svg=False)
