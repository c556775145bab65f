"""Pictures: time and learning curves of labelled runs, and a few typical iterations of a traced run.

Needs matplotlib, which is an extra: `pip install 'offpolicy[plot]'`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from offpolicy.analysis.compare import composite_rows, mean_of_runs, phase_rows
from offpolicy.analysis.learning_curves import RETURNS, common_end
from offpolicy.analysis.runs import LabelledRuns
from offpolicy.analysis.trace_reader import ThreadTrack, Times
from offpolicy.errors import ConfigError
from offpolicy.logger.drawing import COLORS, LINES, PALETTE, frame, picture_file
from offpolicy.logger.metrics import COMPOSITES
from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase
from offpolicy.timing.trace_writer import Mark
from offpolicy.types import Float64

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
except ImportError as error:
    raise ConfigError(f"pictures need matplotlib: pip install 'offpolicy[plot]' ({error})") from None

WIDTH_IN, BAR_IN, CURVE_IN, DPI = 9.0, 0.42, 3.0, 110

# ---- labelled runs

DASHES = ("-", "--", "-.", ":")
HATCHES = ("", "//", "..")  # of phases beyond the palette, so that no two look alike
SHOWN_FRACTION = 0.01  # fraction of the longest bar: smaller phases are drawn together
POINTS = 200  # points of a mean curve


def comparison_png(compared: Sequence[LabelledRuns]) -> bytes:
    """Draws the time of both sides as bars, one per label, and a panel of curves for each kind of return."""
    on_axis = [labelled for labelled in compared if labelled.has_env_steps]
    keys = [key for key in RETURNS if any(labelled.curves(key) for labelled in on_axis)]
    bar_in = 1.7 + BAR_IN * len(compared)
    rows = [bar_in, bar_in, *([CURVE_IN] if keys else [])]
    figure = Figure(figsize=(WIDTH_IN, sum(rows)), dpi=DPI, layout="constrained")
    grid = figure.add_gridspec(len(rows), max(1, len(keys)), height_ratios=rows)
    for place, (side, per) in enumerate((("learner", "iteration"), ("collector", "vector step"))):
        bars = phase_rows(side) | composite_rows(side)
        _bars(figure.add_subplot(grid[place, :]), compared, bars, f"{side}, ms per {per}")
    for column, key in enumerate(keys):
        axes, curves = figure.add_subplot(grid[2, column]), {one.label: one.curves(key) for one in on_axis}
        _curves(axes, curves, RETURNS[key], common_end(compared))
    return picture_file(figure, is_svg=False)


def _plain(label: str) -> str:
    """Returns the label so that it is drawn unchanged: no formula between dollars, not left out for its underscore."""
    return (" " if label.startswith("_") else "") + label.replace("$", r"\$")


def _bars(axes: Axes, compared: Sequence[LabelledRuns], keys: Mapping[str, str], title: str) -> None:
    """Draws one bar per label: its phases end to end, in the order of the account."""
    found = {key: np.array([mean_of_runs(labelled, key) for labelled in compared]) for key in keys}
    means = {key: np.maximum(0.0, np.nan_to_num(ms)) for key, ms in found.items()}
    for key, (_, parts) in COMPOSITES.items():
        if key in means:  # a sum stands for parts that are missing
            means[key] = np.where(np.any([means[part] > 0.0 for part in parts], axis=0), 0.0, means[key])
    longest = max(float(np.sum(list(means.values()), axis=0).max()), 1e-9)
    shown = {keys[key]: ms for key, ms in means.items() if ms.max() >= SHOWN_FRACTION * longest}
    rest = sum(ms for key, ms in means.items() if keys[key] not in shown)
    if np.any(rest):
        shown["smaller phases"] = np.asarray(rest)
    places, left = np.arange(len(compared)), np.zeros(len(compared))
    for index, (row, ms) in enumerate(shown.items()):
        colour, hatch = PALETTE[index % len(PALETTE)], HATCHES[index // len(PALETTE) % len(HATCHES)]
        axes.barh(places, ms, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.6, label=row)
        left = left + ms
    for place, end in zip(places, left, strict=True):
        axes.annotate(f"{end:,.3g}", (end, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(places, [_plain(labelled.label) for labelled in compared])
    axes.invert_yaxis()
    axes.margins(x=0.08)
    frame(axes, _plain(title))
    axes.legend(ncols=5, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0.0, -0.12))


def _curves(axes: Axes, curves: Mapping[str, list[tuple[Float64, Float64]]], title: str, end: float) -> None:
    """Draws the mean over the runs of each label, with a band from the least to the most of them, up to `end`."""
    for index, (label, runs) in enumerate(curves.items()):
        if not runs:
            continue
        steps, values = aligned(runs, end)
        colour, dash = LINES[index % len(LINES)], DASHES[index // len(LINES) % len(DASHES)]
        name = _plain(f"{label} ({len(runs)} runs)" if len(runs) > 1 else label)
        marker = "o" if len(steps) < 25 and len(runs) == 1 else None
        mean = values.mean(axis=0)
        axes.plot(steps, mean, dash, color=colour, linewidth=1.6, marker=marker, markersize=3, label=name)
        if len(runs) > 1:
            axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2, linewidth=0.0)
    axes.set_xlabel("env steps", fontsize=9)
    axes.ticklabel_format(axis="x", style="plain")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(labelsize=8)
    axes.grid(color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    frame(axes, _plain(title))
    axes.legend(fontsize=8, frameon=False, loc="best")


def aligned(runs: Sequence[tuple[Float64, Float64]], end: float) -> tuple[Float64, Float64]:
    """Returns curves on one x axis [P], [runs, P]: interpolated over their common range; one alone as it is."""
    if len(runs) == 1:
        steps, values = runs[0]
        inside = steps <= end
        return steps[inside], values[inside][None, :]
    low, high = max(float(steps[0]) for steps, _ in runs), min(end, *(float(steps[-1]) for steps, _ in runs))
    grid = np.linspace(low, max(low, high), POINTS)
    return grid, np.stack([np.interp(grid, steps, values) for steps, values in runs])


# ---- the timeline of a traced run

# The phases of the threads that keep an account, by the first word of their names.
PHASES = {
    kind: [str(phase) for phase in phases if phase != "other"]  # which lies between the others
    for kind, phases in (("learner", LearnerPhase), ("packer", PackerPhase), ("collector", CollectorPhase))
}
TRACK_IN, LEGEND_ROW_IN, LEGEND_COLUMNS = 0.4, 0.2, 5
MICRO = 1e6  # ns per ms
HALF_TRACK = 0.41  # half the height of a track, in tracks
CHARACTER_IN = 0.075  # a generous width of a character of a phase's name
LEAST_WIDTH = 0.0005  # fraction of the window: narrower boxes are left out, and phases without wider ones
WAITS = {phase for phase in COLORS if phase.endswith("_wait")} | {LearnerPhase.RANK_BARRIER}


def typical_window(tracks: Sequence[ThreadTrack], iterations: int) -> tuple[int, int]:
    """Returns, of all windows of so many iterations of the first learner in all tracks, that of median length, in ns.

    Raises `ConfigError` if there is none.
    """
    if not tracks or kind_of(tracks[0]) != "learner":
        raise ConfigError("--svg: the trace has no iterations of a learner to draw")
    known_from, known_to = max(track.window[0] for track in tracks), min(track.window[1] for track in tracks)
    starts = [start for start, _ in tracks[0].marks(Mark.ITERATION) if known_from <= start <= known_to]
    windows = list(zip(starts, starts[iterations:], strict=False))
    if not windows:
        raise ConfigError(
            f"--iterations: got {iterations}, allowed less than the {len(starts)} that all threads of the trace saw"
        )
    return sorted(windows, key=lambda window: window[1] - window[0])[(len(windows) - 1) // 2]


def kind_of(track: ThreadTrack) -> str:
    """Returns the first word of a thread's name, a key of `PHASES` where it keeps an account."""
    return track.thread.split()[0]


def boxes_in(track: ThreadTrack, window: tuple[int, int]) -> dict[str, Times]:
    """Returns starts and lengths [n, 2] of each phase in a window, in ns since its start; no box too narrow to see."""
    begin, end = window
    boxes = {}
    for phase in PHASES[kind_of(track)]:
        starts, stops = track.spans(phase)
        low, high = np.maximum(starts, begin), np.minimum(stops, end)
        is_wide = high - low >= LEAST_WIDTH * (end - begin)
        boxes[phase] = np.stack([low - begin, high - low], axis=1)[is_wide]
    return {phase: found for phase, found in boxes.items() if len(found)}


def timeline_svg(threads: Sequence[ThreadTrack], iterations: int, title: str) -> bytes:
    """Draws a typical window of so many iterations: each learner, its packer, the collectors.

    Dashed lines mark where the first learner begins an iteration. Raises `ConfigError` where there is no such window.
    """
    tracks = [track for track in threads if kind_of(track) in PHASES and track.has_spans]
    begin, end = window = typical_window(tracks, iterations)
    boxes = [boxes_in(track, window) for track in tracks]
    kinds: dict[str, set[str]] = {}
    for track, found in zip(tracks, boxes, strict=True):
        kinds.setdefault(kind_of(track), set()).update(found)
    legend_rows = (LEGEND_ROW_IN * math.ceil(len(names) / LEGEND_COLUMNS) for names in kinds.values())
    heights = [0.3 + TRACK_IN * len(tracks), *legend_rows]
    figure = Figure(figsize=(WIDTH_IN, 0.6 + sum(heights)), layout="constrained")
    axes, *legends = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for place, found in enumerate(boxes):
        _draw_track(axes, place, found, (end - begin) / MICRO)
    for boundary_ns, _ in tracks[0].marks(Mark.ITERATION):
        if begin < boundary_ns < end:
            axes.axvline((boundary_ns - begin) / MICRO, color="#444", linestyle="--", linewidth=0.8)
    axes.set(xlim=(0.0, (end - begin) / MICRO), ylim=(len(tracks) - 0.4, -0.6))
    axes.set_yticks(range(len(tracks)), [track.thread for track in tracks])
    axes.set_xlabel("ms", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    frame(axes, _plain(title))
    for below, (kind, seen) in zip(legends, kinds.items(), strict=True):
        below.axis("off")
        below.text(-0.01, 0.5, kind, ha="right", va="center", fontsize=8, transform=below.transAxes)
        names = [name for name in PHASES[kind] if name in seen]
        patches = [Patch(facecolor=COLORS[name], edgecolor="#888", linewidth=0.5, label=name) for name in names]
        below.legend(handles=patches, ncols=LEGEND_COLUMNS, fontsize=8, frameon=False, loc="center left")
    return picture_file(figure, is_svg=True)


def _draw_track(axes: Axes, place: int, boxes: Mapping[str, Times], width_ms: float) -> None:
    """Draws phases on a background that stands for `other`, with the names of those that are wide enough."""
    axes.broken_barh([(0.0, width_ms)], (place - HALF_TRACK, 2 * HALF_TRACK), color=COLORS["other"])
    for phase, found in boxes.items():
        places = [(float(start), float(length)) for start, length in found / MICRO]
        axes.broken_barh(places, (place - HALF_TRACK, 2 * HALF_TRACK), color=COLORS[phase], linewidth=0.0)
        for start_ms, length_ms in places:
            if length_ms / width_ms * WIDTH_IN > CHARACTER_IN * (len(phase) + 1):
                colour = "#222" if phase in WAITS else "#fff"
                axes.text(start_ms + length_ms / 2, place, phase, ha="center", va="center", fontsize=7.5, color=colour)
