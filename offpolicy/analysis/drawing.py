"""Pictures of labelled runs: where the time of an iteration goes, and learning curves with bands over seeds.

The only module that imports matplotlib, which is an extra: `pip install 'offpolicy[plot]'`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence

import numpy as np

from offpolicy.analysis.contest import COLLECTOR_KEYS, LEARNER_KEYS, foreign_rows, steady_values
from offpolicy.analysis.groups import Group
from offpolicy.analysis.returns import RETURNS, common_end
from offpolicy.errors import ConfigError
from offpolicy.logger.aliases import COMPOSITES
from offpolicy.types import Float64

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
except ImportError as error:
    raise ConfigError(f"pictures need matplotlib: pip install 'offpolicy[plot]' ({error})") from None

# Okabe and Ito (2008): told apart by colour-blind readers too. Lines: without the yellow, which is faint on white.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#F0E442")
LINES = tuple(colour for colour in PALETTE if colour != "#F0E442")
DASHES = ("-", "--", "-.", ":")
HATCHES = ("", "//", "..")  # of phases beyond the palette, so that no two look alike
SHOWN_SHARE = 0.01  # of the longest bar: smaller phases are drawn together
SMALLER = "smaller phases"
POINTS = 200  # of a mean curve
WIDTH_IN, BAR_IN, CURVE_IN, DPI = 9.0, 0.42, 3.0, 110


def picture(groups: Sequence[Group]) -> bytes:
    """Two accounts as bars, one per label, and a panel of curves for every kind of return: a PNG file."""
    keys = [key for key in RETURNS if any(group.curves(key) for group in groups if group.has_env_steps)]
    bar_in = 1.7 + BAR_IN * len(groups)
    figure = Figure(figsize=(WIDTH_IN, 2 * bar_in + CURVE_IN * bool(keys)), dpi=DPI, layout="constrained")
    rows = [bar_in, bar_in, *([CURVE_IN] if keys else [])]
    grid = figure.add_gridspec(len(rows), max(1, len(keys)), height_ratios=rows)
    learner = LEARNER_KEYS | {key: row for key, (row, _) in COMPOSITES.items()} | foreign_rows("learner")
    _bars(figure.add_subplot(grid[0, :]), groups, learner, "learner, ms per iteration")
    collector = COLLECTOR_KEYS | foreign_rows("collector")
    _bars(figure.add_subplot(grid[1, :]), groups, collector, "collector, ms per vector step")
    for column, key in enumerate(keys):
        axes = figure.add_subplot(grid[2, column])
        draw_curves(axes, {g.label: g.curves(key) for g in groups if g.has_env_steps}, RETURNS[key], common_end(groups))
    return _file(figure, is_svg=False)


def curves_file(curves: Mapping[str, list[tuple[Float64, Float64]]], title: str, *, is_svg: bool) -> bytes:
    """Learning curves alone, by label, each as far as its runs go."""
    figure = Figure(figsize=(WIDTH_IN, CURVE_IN), dpi=DPI, layout="constrained")
    draw_curves(figure.add_subplot(), curves, title, math.inf)
    return _file(figure, is_svg=is_svg)


def _file(figure: Figure, *, is_svg: bool) -> bytes:
    out = io.BytesIO()
    canvas = FigureCanvasSVG(figure) if is_svg else FigureCanvasAgg(figure)
    # Without a date and a version, the same runs give the same file.
    canvas.print_figure(out, format="svg" if is_svg else "png", metadata={"Date" if is_svg else "Software": None})
    return out.getvalue()


def plain(label: str) -> str:
    """The label as matplotlib shows it unchanged: no formula between dollars, and not left out for its underscore."""
    return (" " if label.startswith("_") else "") + label.replace("$", r"\$")


def _bars(axes: Axes, groups: Sequence[Group], keys: Mapping[str, str], title: str) -> None:
    """One bar per label: its phases end to end in the order of the account. A sum stands for parts that are missing."""
    means = {key: np.array([_mean_ms(group, key) for group in groups]) for key in keys}
    for key, (_, parts) in COMPOSITES.items():
        if key in means:
            means[key] = np.where(np.any([means[part] > 0.0 for part in parts], axis=0), 0.0, means[key])
    longest = max(float(np.sum(list(means.values()), axis=0).max()), 1e-9)
    shown = {keys[key]: ms for key, ms in means.items() if ms.max() >= SHOWN_SHARE * longest}
    rest = sum(ms for key, ms in means.items() if keys[key] not in shown)
    if np.any(rest):
        shown[SMALLER] = np.asarray(rest)
    places, left = np.arange(len(groups)), np.zeros(len(groups))
    for index, (row, ms) in enumerate(shown.items()):
        colour, hatch = PALETTE[index % len(PALETTE)], HATCHES[index // len(PALETTE) % len(HATCHES)]
        axes.barh(places, ms, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.6, label=row)
        left = left + ms
    for place, end in zip(places, left, strict=True):
        axes.annotate(f"{end:,.3g}", (end, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(places, [plain(group.label) for group in groups])
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.set_title(plain(title), loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=5, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0.0, -0.12))


def _mean_ms(group: Group, key: str) -> float:
    values = steady_values(group, key)
    return max(0.0, float(np.mean([run.mean for run in values]))) if values else 0.0


def draw_curves(axes: Axes, curves: Mapping[str, list[tuple[Float64, Float64]]], title: str, end: float) -> None:
    """The mean over the runs of each label, with a band from the least to the most of them, up to `end`."""
    for index, (label, runs) in enumerate(curves.items()):
        if not runs:
            continue
        steps, values = aligned(runs, end)
        colour, dash = LINES[index % len(LINES)], DASHES[index // len(LINES) % len(DASHES)]
        name = plain(f"{label} ({len(runs)} runs)" if len(runs) > 1 else label)
        marker = "o" if len(steps) < 25 and len(runs) == 1 else None
        axes.plot(
            steps, values.mean(axis=0), dash, color=colour, linewidth=1.6, marker=marker, markersize=3, label=name
        )
        if len(runs) > 1:
            axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2, linewidth=0.0)
    axes.set_title(plain(title), loc="left", fontsize=10)
    axes.set_xlabel("env steps", fontsize=9)
    axes.ticklabel_format(axis="x", style="plain")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(labelsize=8)
    axes.grid(color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="best")


def aligned(runs: Sequence[tuple[Float64, Float64]], end: float) -> tuple[Float64, Float64]:
    """Curves on one x axis [P], [runs, P]: interpolated over the range that all of them have; one alone as it is."""
    if len(runs) == 1:
        steps, values = runs[0]
        inside = steps <= end
        return steps[inside], values[inside][None, :]
    low, high = max(float(steps[0]) for steps, _ in runs), min(end, *(float(steps[-1]) for steps, _ in runs))
    grid = np.linspace(low, max(low, high), POINTS)
    return grid, np.stack([np.interp(grid, steps, values) for steps, values in runs])
