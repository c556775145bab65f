"""A few typical iterations of a traced run, every thread's phases one below the other, drawn as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from offpolicy.errors import ConfigError
from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase
from offpolicy.timing.trace_reader import Lane
from offpolicy.timing.trace_writer import Mark

KINDS = {"learner": LearnerPhase, "packer": PackerPhase, "collector": CollectorPhase}


class Segment(NamedTuple):
    """A phase that was open from one instant to another, in ns."""

    phase: str
    start_ns: int
    stop_ns: int


class Strip(NamedTuple):
    """What one thread did."""

    name: str  # kind and index: learner 0
    segments: list[Segment]
    boundaries: list[int] = []  # where its iterations ended, in ns  # noqa: RUF012  # a tuple's default, never changed

    @property
    def kind(self) -> str:
        return self.name.split()[0]


def to_strips(lanes: Sequence[Lane]) -> list[Strip]:
    """The threads that keep an account: each learner, its packer, then the collectors."""
    return [to_strip(lane) for lane in lanes if lane.thread.split()[0] in KINDS and lane.has_spans]


def to_strip(lane: Lane) -> Strip:
    """One thread's spans; what lies between them is `other`."""
    segments = [
        Segment(phase, int(start_ns), int(stop_ns))
        for phase in lane.names
        for start_ns, stop_ns in zip(*lane.spans(phase), strict=True)
    ]
    segments.sort(key=lambda segment: segment.start_ns)
    return Strip(lane.thread, segments, [at_ns for at_ns, _ in lane.marks(Mark.ITERATION)])


def clipped(strip: Strip, start_ns: int, stop_ns: int) -> Strip:
    """The part of a strip inside a window."""
    inside = [one for one in strip.segments if one.start_ns < stop_ns and one.stop_ns > start_ns]
    segments = [Segment(one.phase, max(one.start_ns, start_ns), min(one.stop_ns, stop_ns)) for one in inside]
    return Strip(strip.name, segments, [ns for ns in strip.boundaries if start_ns <= ns <= stop_ns])


def typical_window(strips: Sequence[Strip], iterations: int) -> tuple[int, int]:
    """Of all runs of so many iterations of the first learner that all strips know, the one of median length.

    Raises `ConfigError` if there is none.
    """
    if not strips or strips[0].kind != "learner":
        raise ConfigError("--svg: the trace has no iterations of a learner to draw")
    known_from = max(strip.segments[0].start_ns for strip in strips)
    known_to = min(strip.segments[-1].stop_ns for strip in strips)
    starts = [start for start in strips[0].boundaries if known_from <= start <= known_to]
    windows = list(zip(starts, starts[iterations:], strict=False))
    if not windows:
        raise ConfigError(
            f"--iterations: got {iterations}, allowed less than the {len(starts)} that all threads of the trace saw"
        )
    return sorted(windows, key=lambda window: window[1] - window[0])[(len(windows) - 1) // 2]


# ---- drawing

WIDTH, MARGIN, RIGHT = 900, 84, 12
TOP, LANE_HEIGHT, LANE_PITCH = 34, 34, 42
CHARACTER, FONT_SIZE = 6.3, 10  # a generous width: fonts differ
LEGEND_HEIGHT = 17
MIN_BOX = 0.4  # narrower boxes are left out, and phases that have no other
# Work in strong colours, waiting in pale ones.
COLORS: dict[str, str] = {
    LearnerPhase.TRAIN: "#3b6fb5", LearnerPhase.PARAM_SYNC: "#8a4fa3", LearnerPhase.REPLAY_SAMPLE: "#e08a2c",
    LearnerPhase.H2D: "#b5651d", LearnerPhase.WEIGHT_PUBLISH: "#3f9155", LearnerPhase.SYNC_COORDINATION: "#1f9e9e",
    LearnerPhase.EVALUATION: "#8c8c2f", LearnerPhase.CHECKPOINT: "#5b4636", LearnerPhase.LOG: "#a0526a",
    LearnerPhase.COLLECTOR_WAIT: "#f3e3c3", LearnerPhase.REPLAY_BATCH_WAIT: "#fbd9c0",
    LearnerPhase.RANK_BARRIER: "#e6d6ee",
    CollectorPhase.ENV_STEP: "#c0504d", CollectorPhase.ACTION_SELECT: "#d9a441", CollectorPhase.WEIGHT_APPLY: "#6aa84f",
    CollectorPhase.REPLAY_WRITE: "#4a90a4", CollectorPhase.LEARNER_WAIT: "#dbe5f1",
    PackerPhase.PACK: "#e08a2c", PackerPhase.COPY: "#b5651d", PackerPhase.REQUEST_WAIT: "#ececec",
    PackerPhase.ROWS_WAIT: "#f3e3c3", PackerPhase.SLOT_WAIT: "#fbd9c0",
    "other": "#bdbdbd",
}  # fmt: skip
WAITS = {phase for phase in COLORS if phase.endswith("_wait")} | {LearnerPhase.RANK_BARRIER}


class Scale(NamedTuple):
    """From instants to pixels."""

    start_ns: int
    stop_ns: int

    def x(self, ns: int) -> float:
        return round(MARGIN + (WIDTH - MARGIN - RIGHT) * (ns - self.start_ns) / (self.stop_ns - self.start_ns), 1)

    def span(self, segment: Segment) -> tuple[float, float]:
        return self.x(segment.start_ns), self.x(segment.stop_ns)


def draw(strips: Sequence[Strip], start_ns: int, stop_ns: int, title: str) -> str:
    """The window of all lanes as an SVG document. A dashed line marks where the first learner begins an iteration."""
    scale = Scale(start_ns, stop_ns)
    shown = [clipped(strip, start_ns, stop_ns) for strip in strips]
    tops = range(TOP, TOP + len(shown) * LANE_PITCH, LANE_PITCH)
    bottom = tops[-1] + LANE_PITCH
    parts = [_text(MARGIN, 21, title, "title")]
    for lane, top in zip(shown, tops, strict=True):
        parts += _boxes(lane, top, scale)
    for ns in shown[0].boundaries[1:-1]:
        parts.append(f'<path d="M{scale.x(ns):g} {TOP - 6}V{bottom}" stroke="#444" stroke-dasharray="3 3"/>')
    for lane, top in zip(shown, tops, strict=True):
        parts += _labels(lane, top + LANE_HEIGHT / 2 + 4, scale)
    parts += _axis(bottom, scale)
    legend, height = _legend(shown, bottom + 44, scale)
    return _document(title, [*parts, *legend], height)


def _boxes(lane: Strip, top: float, scale: Scale) -> list[str]:
    """One path per phase, on a background that stands for `other`."""
    background = f'<rect x="{MARGIN}" y="{top}" width="{WIDTH - MARGIN - RIGHT}" height="{LANE_HEIGHT}"'
    parts = [f'{background} fill="{COLORS["other"]}"/>']
    for phase in _shown_phases(lane, scale):
        spans = [scale.span(segment) for segment in lane.segments if segment.phase == phase]
        boxes = "".join(
            f"M{left:g} {top}h{right - left:.1f}v{LANE_HEIGHT}H{left:g}z"
            for left, right in spans
            if right - left >= MIN_BOX
        )
        parts.append(f'<path fill="{COLORS[phase]}" d="{boxes}"/>')
    return parts


def _labels(lane: Strip, y: float, scale: Scale) -> list[str]:
    """The lane's name, and that of every phase whose box is wide enough."""
    parts = [_text(MARGIN - 8, y, lane.name, "lane")]
    for segment in lane.segments:
        left, right = scale.span(segment)
        if right - left > CHARACTER * len(segment.phase) + 4:
            parts.append(_text((left + right) / 2, y, segment.phase, "wait" if segment.phase in WAITS else "work"))
    return parts


def _shown_phases(lane: Strip, scale: Scale) -> list[str]:
    """The phases of a lane that are wide enough to be seen, in the order of their enum; `other` is the background."""
    spans = [(segment.phase, *scale.span(segment)) for segment in lane.segments]
    seen = {phase for phase, left, right in spans if right - left >= MIN_BOX} - {"other"}
    return [phase for phase in KINDS[lane.kind] if phase in seen]


def _axis(top: float, scale: Scale) -> list[str]:
    total_ms = (scale.stop_ns - scale.start_ns) / 1e6
    step_ms = next(step for step in _round_numbers() if total_ms / step <= 12)
    parts = [f'<path d="M{MARGIN} {top}H{WIDTH - RIGHT}" stroke="#444"/>']
    for number in range(int(total_ms / step_ms) + 1):
        x = scale.x(scale.start_ns + round(number * step_ms * 1e6))
        parts += [f'<path d="M{x:g} {top}v5" stroke="#444"/>', _text(x, top + 17, f"{number * step_ms:g}", "tick")]
    return [*parts, _text(MARGIN - 8, top + 17, "ms", "lane")]


def _round_numbers() -> Iterable[float]:
    return (digit * 10.0**power for power in range(-3, 7) for digit in (1, 2, 5))


def _legend(lanes: Sequence[Strip], top: float, scale: Scale) -> tuple[list[str], float]:
    """A line per kind of thread, more where it does not fit, and the y below them."""
    parts, y = list[str](), top
    for kind in dict.fromkeys(lane.kind for lane in lanes):
        shown = {phase for lane in lanes if lane.kind == kind for phase in _shown_phases(lane, scale)}
        parts.append(_text(MARGIN - 8, y, kind, "lane"))
        x = float(MARGIN)
        for phase in (phase for phase in KINDS[kind] if phase in shown):
            width = 28 + CHARACTER * len(phase)
            if x + width > WIDTH - RIGHT:
                x, y = float(MARGIN), y + LEGEND_HEIGHT
            swatch = f'<rect x="{x:g}" y="{y - 9}" width="11" height="11" fill="{COLORS[phase]}" stroke="#888"/>'
            parts += [swatch, _text(x + 15, y, phase, "name")]
            x += width
        y += LEGEND_HEIGHT
    return parts, y


def _text(x: float, y: float, text: str, css: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{css}">{escape(text)}</text>'


def _document(title: str, parts: Sequence[str], height: float) -> str:
    style = (
        f"text{{font:{FONT_SIZE}px sans-serif;fill:#222}}.title{{font-size:13px;font-weight:bold}}"
        ".lane{text-anchor:end}.tick,.work,.wait{text-anchor:middle}.work{fill:#fff}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" role="img">'
    background = f'<rect width="{WIDTH}" height="{height:g}" fill="#fff"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{style}</style>", background, *parts, "</svg>"])
