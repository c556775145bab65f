"""What every process of a run is doing, phase by phase: a few typical iterations, drawn as SVG.

    python -m benchmarks.timeline --out docs/img/timeline-overlap.svg collect.mode=overlap

The run is a real one, in a temporary directory. Its processes start through `child_main`, which keeps every switch of
their time accounts and writes them down when the process ends. One clock serves all processes of a machine, so their
lanes lie one below the other as they happened.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Sequence
from enum import StrEnum
from html import escape
from itertools import groupby, pairwise
from pathlib import Path
from typing import ClassVar, NamedTuple

from offpolicy.compose import load_config
from offpolicy.config import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.ipc.child import ChildContext, resolve
from offpolicy.timing import ledger
from offpolicy.timing.clock import Clock
from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase
from runners import launch, wiring

SELF = "benchmarks.timeline"  # not __name__, which is __main__ where the supervisor runs
# An environment whose step sleeps about as long as an update takes: both sides of a run are seen.
SCENE = (
    *("env.id=offpolicy.envs.toy:SlowStep-v0", "env.kwargs.step_ms=8", "total_timesteps=600"),
    *("algo.hidden_dims=[64,64]", "threads.learner=1", "eval.episodes=0", "log.tensorboard=false", "log.panel=off"),
)
REPLAY_SCENE = ("algo.learning_starts=100", "algo.batch_size=1024")
ROLLOUT_SCENE = ("rollout.length=8", "env.num_envs=1", "algo.epochs=8", "algo.num_minibatches=8")
MAX_SWITCHES = 200_000  # per thread; the oldest are forgotten
KINDS = {"learner": LearnerPhase, "packer": PackerPhase, "collector": CollectorPhase}


def scene(overrides: Sequence[str]) -> tuple[str, ...]:
    """What is run besides the overrides, which say whether rows come from a replay or in rollouts."""
    return SCENE + (ROLLOUT_SCENE if "algo=appo" in overrides else REPLAY_SCENE)


# ---- recording: in the processes of the run


class RecordedLedger(ledger.Ledger):
    """A ledger that also keeps when it switched, and to which phase."""

    made: ClassVar[list[RecordedLedger]] = []  # in this process

    def __init__(self, phases: type[StrEnum], clock: Clock | None = None, opened_ns: int | None = None) -> None:
        super().__init__(phases, clock, opened_ns)
        self.kind = next(kind for kind, own in KINDS.items() if own is phases)
        self.switches: deque[tuple[int, str]] = deque(maxlen=MAX_SWITCHES)
        self.made.append(self)

    def switch(self, index: int) -> int:
        closed = super().switch(index)
        self.switches.append((self._last_ns, self.names[index]))
        return closed


def child_main(context: ChildContext) -> None:
    """Entry point of every process of the run: the usual one, recorded."""
    job = wiring.Assignment.of(context)
    is_learner = context.role == "learner"
    target = launch.learner_target(job.cfg) if is_learner else launch.collector_target()
    ledger.Ledger = RecordedLedger
    try:
        resolve(target)(context)
    finally:
        for own in RecordedLedger.made:
            lane = f"{own.kind} {context.index}"
            record = {"lane": lane, "switches": list(own.switches)}
            Path(job.run_dir, f"timeline {lane}.json").write_text(json.dumps(record))


# ---- reading


class Segment(NamedTuple):
    """A phase that was open from one instant to another, in ns."""

    phase: str
    start_ns: int
    stop_ns: int


class Lane(NamedTuple):
    """What one thread did."""

    name: str  # kind and index: learner 0
    segments: list[Segment]

    @property
    def kind(self) -> str:
        return self.name.split()[0]


def to_segments(switches: Iterable[tuple[int, str]]) -> list[Segment]:
    """The phases between switches, without gap or overlap; a switch to the phase that is open anyway ends nothing."""
    opened = [next(same) for _, same in groupby(switches, key=lambda switch: switch[1])]
    return [Segment(phase, start_ns, stop_ns) for (start_ns, phase), (stop_ns, _) in pairwise(opened)]


def clipped(lane: Lane, start_ns: int, stop_ns: int) -> Lane:
    """The part of a lane inside a window."""
    inside = [segment for segment in lane.segments if segment.start_ns < stop_ns and segment.stop_ns > start_ns]
    return Lane(
        lane.name, [Segment(one.phase, max(one.start_ns, start_ns), min(one.stop_ns, stop_ns)) for one in inside]
    )


def iteration_starts(lane: Lane) -> list[int]:
    """When a learner began its iterations: each begins by asking whether the collector's rows are there."""
    return [segment.start_ns for segment in lane.segments if segment.phase == LearnerPhase.COLLECTOR_WAIT]


def typical_window(lanes: Sequence[Lane], iterations: int) -> tuple[int, int]:
    """Of all runs of so many iterations of the first learner that all lanes know, the one of median length."""
    known_from = max(lane.segments[0].start_ns for lane in lanes)
    known_to = min(lane.segments[-1].stop_ns for lane in lanes)
    starts = [start for start in iteration_starts(lanes[0]) if known_from <= start <= known_to]
    windows = list(zip(starts, starts[iterations:], strict=False))
    if not windows:
        raise ValueError(f"{len(starts)} iterations were recorded, {iterations + 1} are needed: raise total_timesteps")
    return sorted(windows, key=lambda window: window[1] - window[0])[(len(windows) - 1) // 2]


def read_lanes(directory: Path) -> list[Lane]:
    """The lanes of a run: each learner, its packer, then the collectors."""
    records = [json.loads(path.read_text()) for path in directory.glob("timeline *.json")]
    lanes = [Lane(record["lane"], to_segments(record["switches"])) for record in records]
    return sorted((lane for lane in lanes if lane.segments), key=_place)


def _place(lane: Lane) -> tuple[bool, int, int]:
    kind, index = lane.name.split()
    return kind == "collector", int(index), list(KINDS).index(kind)


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


def draw(lanes: Sequence[Lane], start_ns: int, stop_ns: int, title: str) -> str:
    """The window of all lanes as an SVG document. A dashed line marks where the first learner begins an iteration."""
    scale = Scale(start_ns, stop_ns)
    shown = [clipped(lane, start_ns, stop_ns) for lane in lanes]
    tops = range(TOP, TOP + len(shown) * LANE_PITCH, LANE_PITCH)
    bottom = tops[-1] + LANE_PITCH
    parts = [_text(MARGIN, 21, title, "title")]
    for lane, top in zip(shown, tops, strict=True):
        parts += _boxes(lane, top, scale)
    for ns in iteration_starts(shown[0])[1:]:
        parts.append(f'<path d="M{scale.x(ns):g} {TOP - 6}V{bottom}" stroke="#444" stroke-dasharray="3 3"/>')
    for lane, top in zip(shown, tops, strict=True):
        parts += _labels(lane, top + LANE_HEIGHT / 2 + 4, scale)
    parts += _axis(bottom, scale)
    legend, height = _legend(shown, bottom + 44, scale)
    return _document(title, [*parts, *legend], height)


def _boxes(lane: Lane, top: float, scale: Scale) -> list[str]:
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


def _labels(lane: Lane, y: float, scale: Scale) -> list[str]:
    """The lane's name, and that of every phase whose box is wide enough."""
    parts = [_text(MARGIN - 8, y, lane.name, "lane")]
    for segment in lane.segments:
        left, right = scale.span(segment)
        if right - left > CHARACTER * len(segment.phase) + 4:
            parts.append(_text((left + right) / 2, y, segment.phase, "wait" if segment.phase in WAITS else "work"))
    return parts


def _shown_phases(lane: Lane, scale: Scale) -> list[str]:
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


def _legend(lanes: Sequence[Lane], top: float, scale: Scale) -> tuple[list[str], float]:
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


# ---- the program


def run_recorded(cfg: RunConfig) -> int:
    """The run, with our entry points; returns its exit code."""
    launch.learner_target = launch.collector_target = _our_target
    return launch.launch(cfg)


def _our_target(*_: object) -> str:
    return f"{SELF}:child_main"


def main() -> int:
    arguments = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="offpolicy-timeline-") as scratch:
        run_dir = Path(scratch) / "run"
        try:
            cfg = load_config([*scene(arguments.overrides), *arguments.overrides, f"run_dir={run_dir}"])
        except ConfigError as error:
            sys.exit(str(error))
        if code := run_recorded(cfg):
            return code
        lanes = read_lanes(run_dir)
    title = f"{cfg.runner.name}, collect.mode={cfg.collect_mode}"
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(draw(lanes, *typical_window(lanes, arguments.iterations), title) + "\n")
    print(f"written: {arguments.out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {SELF}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the SVG file to write")
    parser.add_argument("--iterations", type=int, default=3, help="of the first learner (default: 3)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=f"beyond {' '.join(SCENE)}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
