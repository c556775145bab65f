"""Charts as SVG text, for pages that need no other file: lines, stacked areas, stacked bars and a waterfall.

All charts have one width in their own units, that of a telephone: a page shows several beside each other where it is
wider. Colours of text and axes are those of the page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from offpolicy.analysis.report import quantity
from offpolicy.types import Float64

WIDTH, HEIGHT = 360.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 48.0, 18.0, 8.0, 34.0  # margins of a chart with axes
BAR, GAP = 18.0, 8.0  # height of a bar, and of what is between two
LABEL_CHARACTERS = 60  # of a bar's label, at most
LEAST_PERCENT = 9.0  # a narrower piece of a bar has no number in it
LIGHT = 150.0  # luminance from which the text on a colour is dark
LEAST_LOSS = 0.005  # fraction of the highest bar of a waterfall
TOTAL, LOSS, GAIN = "#3b6fb5", "#d55e00", "#009e73"
NICE = (1.0, 2.0, 2.5, 5.0, 10.0)
POINTS = 400  # of a line, at most


class Line(NamedTuple):
    """A curve. x, y: [n]."""

    name: str
    color: str
    x: Float64
    y: Float64


class Piece(NamedTuple):
    """A part of a stack."""

    name: str
    color: str
    percent: float


class Frame(NamedTuple):
    """The data range of a chart with axes."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        """Returns the place of a value of x."""
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - self.x_low) / (self.x_high - self.x_low)

    def y(self, value: float) -> float:
        """Returns the place of a value of y."""
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - self.y_low) / (self.y_high - self.y_low)


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Returns about `count` round numbers inside a range."""
    span = high - low
    if span <= 0.0:
        return [low]
    magnitude = 10.0 ** math.floor(math.log10(span / count))
    step = next(nice * magnitude for nice in NICE if nice * magnitude >= 0.999 * span / count)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def lines_chart(lines: Sequence[Line], x_title: str, alt: str) -> str:
    """Draws curves over one x axis; '' without a finite value. A curve of one value is a dot."""
    drawn = [line for line in map(_finite, lines) if len(line.x)]
    if not drawn:
        return ""
    x, y = np.concatenate([line.x for line in drawn]), np.concatenate([line.y for line in drawn])
    frame = _frame(float(x.min()), float(x.max()), float(y.min()), float(y.max()))
    body = _axes(frame, x_title) + "".join(_curve(frame, line) for line in drawn)
    return _svg(HEIGHT, alt, body)


def areas_chart(x: Float64, layers: Sequence[tuple[str, str, Float64]], x_title: str, alt: str) -> str:
    """Draws layers (name, colour, percent: [n]) on top of each other, up to 100 %; '' with less than two places."""
    if len(x) < 2 or x[-1] <= x[0]:
        return ""
    frame = Frame(float(x[0]), float(x[-1]), 0.0, 100.0)
    below, body = np.zeros(len(x)), ""
    for name, color, percent in layers:
        above = np.minimum(below + percent, 100.0)
        outline = [*zip(x, above, strict=True), *zip(x[::-1], below[::-1], strict=True)]
        points = " ".join(f"{frame.x(at):.1f},{frame.y(value):.1f}" for at, value in outline)
        body += f'<polygon points="{points}" fill="{color}"><title>{escape(name)}</title></polygon>'
        below = above
    return _svg(HEIGHT, alt, body + _axes(frame, x_title, "%"))


def stacked_bars(bars: Mapping[str, Sequence[Piece]], alt: str) -> str:
    """Draws one bar per name, of pieces in percent of 100."""
    row = BAR + GAP + 12.0
    body = ""
    for index, (name, pieces) in enumerate(bars.items()):
        top, left = index * row + 12.0, 0.0
        body += _text(0.0, top - 3.0, _short(name), "start")
        for piece in pieces:
            width = WIDTH * piece.percent / 100.0
            title = f"{piece.name}: {piece.percent:.1f} %"
            body += _box(left, top, width, piece.color, title)
            if piece.percent >= LEAST_PERCENT:
                on = "#000" if _luminance(piece.color) > LIGHT else "#fff"
                body += _text(left + width / 2, top + 13.0, f"{piece.percent:.0f} %", "middle", on)
            left += width
    return _svg(max(1, len(bars)) * row, alt, body)


def waterfall_chart(steps: Sequence[tuple[str, float]], alt: str) -> str:
    """Draws how a rate falls from cause to cause: (cause, what is left after it); the last bar is what was done.

    A cause too small to be seen is a part of the one after it.
    """
    if not steps:
        return ""
    highest, row, before = max(left for _, left in steps), BAR + GAP + 12.0, 0.0
    bars = [("", steps[0][0], 0.0, steps[0][1])]
    for index, (cause, left) in enumerate(steps[1:], 2):
        before = bars[-1][3]
        if index == len(steps) or abs(left - before) >= LEAST_LOSS * highest:
            bars.append((f", {left - before:+z,.1f}", cause, before, left))
    bars.append(("", "done", 0.0, steps[-1][1]))
    body = ""
    for index, (change, cause, before, left) in enumerate(bars):
        top, low = index * row + 12.0, min(before, left)
        color = TOTAL if not change else LOSS if left <= before else GAIN
        label = f"{cause}: {left:,.1f}{change}"
        body += _text(0.0, top - 3.0, label, "start")
        body += _box(WIDTH * low / highest, top, max(WIDTH * abs(left - before) / highest, 0.7), color, label)
    return _svg(len(bars) * row, alt, body)


def _frame(x_low: float, x_high: float, y_low: float, y_high: float) -> Frame:
    """Returns the range with some room above and below; of one value, a range around it."""
    y_room = 0.05 * (y_high - y_low) or max(0.05 * abs(y_high), 0.5)
    x_high = x_high if x_high > x_low else x_low + 1.0
    return Frame(x_low, x_high, y_low - y_room, y_high + y_room)


def _axes(frame: Frame, x_title: str, unit: str = "") -> str:
    body = ""
    for value in ticks(frame.y_low, frame.y_high):
        place = frame.y(value)
        body += f'<path d="M{LEFT} {place:.1f}H{WIDTH - RIGHT}"/>'
        body += _text(LEFT - 5.0, place + 3.5, _tick(value) + unit, "end")
    for value in ticks(frame.x_low, frame.x_high):
        body += _text(frame.x(value), HEIGHT - BOTTOM + 14.0, _tick(value), "middle")
    return body + _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5.0, x_title, "middle")


def _tick(value: float) -> str:
    """Returns a round number in few characters."""
    if abs(value) >= 1e6:
        return quantity(value)
    return f"{value / 1000.0:g}k" if abs(value) >= 1e4 else f"{value:g}"


def _finite(line: Line) -> Line:
    """Returns the points of a curve that have a place: a run may have diverged."""
    is_finite = np.isfinite(line.x) & np.isfinite(line.y)
    return line._replace(x=line.x[is_finite], y=line.y[is_finite])


def _curve(frame: Frame, line: Line) -> str:
    chosen = np.unique(np.linspace(0, len(line.x) - 1, min(len(line.x), POINTS)).astype(int))
    places = [(frame.x(float(line.x[index])), frame.y(float(line.y[index]))) for index in chosen]
    title = f"<title>{escape(line.name)}</title>"
    if len(places) == 1:
        return f'<circle cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="3" fill="{line.color}">{title}</circle>'
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{points}" fill="none" stroke="{line.color}" stroke-width="1.6">{title}</polyline>'


def _box(left: float, top: float, width: float, color: str, title: str) -> str:
    place = f'x="{left:.2f}" y="{top:.1f}" width="{width:.2f}" height="{BAR}"'
    return f'<rect {place} fill="{color}"><title>{escape(title)}</title></rect>'


def _text(x: float, y: float, text: str, anchor: str, color: str = "") -> str:
    fill = f' style="fill:{color}"' if color else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{fill}>{escape(text)}</text>'


def _short(text: str) -> str:
    return text if len(text) <= LABEL_CHARACTERS else f"{text[: LABEL_CHARACTERS - 1]}…"


def _luminance(color: str) -> float:
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _svg(height: float, alt: str, body: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(alt, quote=True)}">{body}</svg>'
