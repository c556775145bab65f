"""The pictures of docs/benchmarks.md: bars of a race, curves over doublings. The same results give the same file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.stats import Spread
from offpolicy.logger.drawing import LINES, picture_file

WIDTH_IN, BAR_IN, PANEL_IN = 9.0, 0.28, 2.6
OURS, OTHERS = LINES[0], "#9a9a9a"
Bars = Mapping[str, Spread]  # env steps/s by contender


class Curve(NamedTuple):
    """A panel over doublings: x and the spread of y."""

    title: str
    x_title: str
    y_title: str
    points: Mapping[int, Spread]


def races_svg(races: Mapping[str, Bars]) -> bytes:
    """One group of bars per race, medians with a whisker from the least to the most; ours in colour."""
    count = sum(len(bars) for bars in races.values())
    heights = [len(bars) + 1.2 for bars in races.values()]
    figure = Figure(figsize=(WIDTH_IN, BAR_IN * (count + 2.6 * len(races))), layout="constrained")
    panels = figure.subplots(len(races), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, bars) in zip(panels, races.items(), strict=True):
        _bars(axes, title, bars)
    return picture_file(figure, is_svg=True)


def _bars(axes: Axes, title: str, bars: Bars) -> None:
    names, spreads = list(bars), list(bars.values())
    medians = [spread.median for spread in spreads]
    whiskers = [
        [spread.median - spread.low for spread in spreads],
        [spread.high - spread.median for spread in spreads],
    ]
    colors = [OURS if name.startswith("offpolicy") else OTHERS for name in names]
    axes.barh(names, medians, xerr=whiskers, color=colors, ecolor="#444", height=0.7)
    for place, spread in enumerate(spreads):
        axes.annotate(
            f"{spread.median:,.0f}", (spread.high, place), xytext=(4, 0), textcoords="offset points", va="center",
            fontsize=8,
        )  # fmt: skip
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_title(f"{title}: env steps/s", fontsize=9, loc="left")
    _plain(axes)


def curves_svg(curves: Sequence[Curve]) -> bytes:
    """Two panels a row, both axes logarithmic, with a band from the least to the most."""
    rows = -(-len(curves) // 2)
    figure = Figure(figsize=(WIDTH_IN, PANEL_IN * rows), layout="constrained")
    panels = list(figure.subplots(rows, 2, squeeze=False).flat)
    for axes, curve in zip(panels, curves, strict=False):
        _curve(axes, curve)
    for axes in panels[len(curves) :]:
        axes.axis("off")
    return picture_file(figure, is_svg=True)


def _curve(axes: Axes, curve: Curve) -> None:
    values, spreads = list(curve.points), list(curve.points.values())
    axes.plot(values, [one.median for one in spreads], color=OURS, marker="o", markersize=3.5)
    axes.fill_between(values, [one.low for one in spreads], [one.high for one in spreads], color=OURS, alpha=0.2)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(values, [f"{value:,}" for value in values], rotation=45 if len(values) > 6 else 0)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(curve.x_title, fontsize=8)
    axes.set_ylabel(curve.y_title, fontsize=8)
    axes.set_title(curve.title, fontsize=9, loc="left")
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.tick_params(labelsize=8, which="both")
    axes.spines[["top", "right"]].set_visible(False)
