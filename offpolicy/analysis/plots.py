"""Pictures: time and learning curves of labelled runs, and a few typical iterations of a traced run.

Needs matplotlib, which is an extra: `pip install 'offpolicy[plot]'`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from offpolicy.analysis.compare import COLLECTOR_KEYS, LEARNER_KEYS, composite_rows, foreign_rows, mean_of_runs
from offpolicy.analysis.learning_curves import RETURNS, common_end
from offpolicy.analysis.runs import LabelledRuns
from offpolicy.errors import ConfigError
from offpolicy.logger.drawing import COLORS, LINES, PALETTE, frame, picture_file
from offpolicy.logger.metrics import COMPOSITES
from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase
from offpolicy.timing.trace_reader import ThreadTrack
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
    """Draws the time of both sides as bars, one per label, and a panel of curves for every kind of return."""
    on_axis = [labelled for labelled in compared if labelled.has_env_steps]
    keys = [key for key in RETURNS if any(labelled.curves(key) for labelled in on_axis)]
    bar_in = 1.7 + BAR_IN * len(compared)
    figure = Figure(figsize=(WIDTH_IN, 2 * bar_in + CURVE_IN * bool(keys)), dpi=DPI, layout="constrained")
    rows = [bar_in, bar_in, *([CURVE_IN] if keys else [])]
    grid = figure.add_gridspec(len(rows), max(1, len(keys)), height_ratios=rows)
    learner = LEARNER_KEYS | composite_rows("learner") | foreign_rows("learner")
    _bars(figure.add_subplot(grid[0, :]), compared, learner, "learner, ms per iteration")
    collector = COLLECTOR_KEYS | composite_rows("collector") | foreign_rows("collector")
    _bars(figure.add_subplot(grid[1, :]), compared, collector, "collector, ms per vector step")
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

KINDS = {"learner": LearnerPhase, "packer": PackerPhase, "collector": CollectorPhase}
TRACK_IN, LEGEND_ROW_IN, LEGEND_COLUMNS = 0.4, 0.2, 5
MICRO = 1e6  # ns per ms
HALF_TRACK = 0.41  # half the height of a track, in tracks
CHARACTER_IN = 0.075  # a generous width of a character of a phase's name
LEAST_WIDTH = 0.0005  # fraction of the window: narrower boxes are left out, and phases without wider ones
WAITS = {phase for phase in COLORS if phase.endswith("_wait")} | {
    LearnerPhase.RANK_BARRIER,
}


class Segment(NamedTuple):
    """A phase that was open from one instant to another, in ns."""

    phase: str
    start_ns: int
    stop_ns: int


class Track(NamedTuple):
    """The phases of one thread in their order; `other` lies between them."""

    name: str  # kind and index: learner 0
    segments: list[Segment]
    boundaries: list[int] = []  # ends of its iterations, in ns  # noqa: RUF012  # a tuple's default, never changed

    @property
    def kind(self) -> str:
        return self.name.split()[0]


def tracks_of(threads: Sequence[ThreadTrack]) -> list[Track]:
    """Returns the threads that keep an account: each learner, its packer, then the collectors."""
    tracks: list[Track] = []
    for thread in threads:
        if thread.thread.split()[0] in KINDS and thread.has_spans:
            spans = [(phase, *span) for phase in thread.names for span in zip(*thread.spans(phase), strict=True)]
            segments = [Segment(phase, int(start_ns), int(stop_ns)) for phase, start_ns, stop_ns in spans]
            segments.sort(key=lambda segment: segment.start_ns)
            tracks.append(Track(thread.thread, segments, [at_ns for at_ns, _ in thread.marks(Mark.ITERATION)]))
    return tracks


def typical_window(tracks: Sequence[Track], iterations: int) -> tuple[int, int]:
    """Returns, of all windows of so many iterations of the first learner in all tracks, that of median length.

    Raises `ConfigError` if there is none.
    """
    if not tracks or tracks[0].kind != "learner":
        raise ConfigError("--svg: the trace has no iterations of a learner to draw")
    known_from = max(track.segments[0].start_ns for track in tracks)
    known_to = min(track.segments[-1].stop_ns for track in tracks)
    starts = [start for start in tracks[0].boundaries if known_from <= start <= known_to]
    windows = list(zip(starts, starts[iterations:], strict=False))
    if not windows:
        raise ConfigError(
            f"--iterations: got {iterations}, allowed less than the {len(starts)} that all threads of the trace saw"
        )
    return sorted(windows, key=lambda window: window[1] - window[0])[(len(windows) - 1) // 2]


def clipped(track: Track, start_ns: int, stop_ns: int) -> Track:
    """Returns the part of a track inside a window, in ns since its start, without what is too narrow to be seen."""
    least_ns = LEAST_WIDTH * (stop_ns - start_ns)
    found = [(one.phase, max(one.start_ns, start_ns), min(one.stop_ns, stop_ns)) for one in track.segments]
    segments = [Segment(phase, low - start_ns, high - start_ns) for phase, low, high in found if high - low >= least_ns]
    boundaries = [ns - start_ns for ns in track.boundaries if start_ns <= ns <= stop_ns]
    return Track(track.name, segments, boundaries)


def timeline_svg(tracks: Sequence[Track], start_ns: int, stop_ns: int, title: str) -> bytes:
    """Draws the window of all tracks; dashed lines mark where the first learner begins an iteration."""
    shown = [clipped(track, start_ns, stop_ns) for track in tracks]
    kinds = list(dict.fromkeys(track.kind for track in shown))
    phases = [_phases([track for track in shown if track.kind == kind]) for kind in kinds]
    heights = [0.3 + TRACK_IN * len(shown), *(LEGEND_ROW_IN * math.ceil(len(one) / LEGEND_COLUMNS) for one in phases)]
    figure = Figure(figsize=(WIDTH_IN, 0.6 + sum(heights)), layout="constrained")
    axes, *legends = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for place, track in enumerate(shown):
        _draw_track(axes, place, track, (stop_ns - start_ns) / MICRO)
    for boundary_ns in shown[0].boundaries[1:-1]:
        axes.axvline(boundary_ns / MICRO, color="#444", linestyle="--", linewidth=0.8)
    axes.set(xlim=(0.0, (stop_ns - start_ns) / MICRO), ylim=(len(shown) - 0.4, -0.6))
    axes.set_yticks(range(len(shown)), [track.name for track in shown])
    axes.set_xlabel("ms", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    frame(axes, _plain(title))
    for below, kind, names in zip(legends, kinds, phases, strict=True):
        below.axis("off")
        below.text(-0.01, 0.5, kind, ha="right", va="center", fontsize=8, transform=below.transAxes)
        patches = [Patch(facecolor=COLORS[name], edgecolor="#888", linewidth=0.5, label=name) for name in names]
        below.legend(handles=patches, ncols=LEGEND_COLUMNS, fontsize=8, frameon=False, loc="center left")
    return picture_file(figure, is_svg=True)


def _phases(tracks: Sequence[Track]) -> list[str]:
    """Returns the phases of tracks of one kind in the order of their enum, without `other`, the background."""
    seen = {segment.phase for track in tracks for segment in track.segments} - {"other"}
    return [phase for phase in KINDS[tracks[0].kind] if phase in seen]


def _draw_track(axes: Axes, place: int, track: Track, width_ms: float) -> None:
    """Draws the phases on a background that stands for `other`, with the names of those that are wide enough."""
    axes.broken_barh([(0.0, width_ms)], (place - HALF_TRACK, 2 * HALF_TRACK), color=COLORS["other"])
    for phase in _phases([track]):
        boxes = [
            (one.start_ns / MICRO, (one.stop_ns - one.start_ns) / MICRO) for one in track.segments if one.phase == phase
        ]
        axes.broken_barh(boxes, (place - HALF_TRACK, 2 * HALF_TRACK), color=COLORS[phase], linewidth=0.0)
        for start_ms, length_ms in boxes:
            if length_ms / width_ms * WIDTH_IN > CHARACTER_IN * (len(phase) + 1):
                colour = "#222" if phase in WAITS else "#fff"
                axes.text(start_ms + length_ms / 2, place, phase, ha="center", va="center", fontsize=7.5, color=colour)
