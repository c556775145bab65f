"""`offpolicy trace RUN`: reads the trace that a run keeps with `timing.trace=true`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from offpolicy.config.schema import read_config
from offpolicy.errors import ConfigError
from offpolicy.timing.chrome_trace import TRACE_JSON, export_trace
from offpolicy.timing.phases import LearnerPhase
from offpolicy.timing.trace_reader import ThreadTrack, overlap_of, read_tracks, share_inside
from offpolicy.timing.trace_writer import TRACES, Mark, traced_starts

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of `offpolicy trace`. `start` counts the starts of the run from 0; None: the last one traced."""

    run: Path
    svg: Path | None = None  # a picture of a few typical iterations
    iterations: int = 3
    start: int | None = None


def trace(request: Request) -> int:
    """Prints how long the phases were and how the sides overlapped; the run may be training meanwhile."""
    if request.svg is not None:
        import offpolicy.analysis.plots  # noqa: F401  # refuses a missing matplotlib before anything is read
    directory = _chosen(request)
    tracks = read_tracks(directory)
    console = Console(markup=False, highlight=False)
    if request.start is not None or not (request.run / TRACE_JSON).exists():
        export_trace(directory, request.run)
    for track in tracks:
        if track.has_spans:
            console.print(_phase_table(track))
    for line in _overlaps(tracks):
        console.print(line)
    console.print("spans below a microsecond are not in a trace")
    console.print(
        f"{request.run / TRACE_JSON}: for https://ui.perfetto.dev (it stays on this machine), chrome://tracing"
    )
    if request.svg is not None:
        from offpolicy.analysis.plots import timeline_svg, tracks_of, typical_window  # matplotlib is an extra

        cfg, shown = read_config(request.run), tracks_of(tracks)
        title = f"{cfg.runner.name}, collect.mode={cfg.collect_mode}"
        picture = timeline_svg(shown, *typical_window(shown, request.iterations), title)
        request.svg.parent.mkdir(parents=True, exist_ok=True)
        request.svg.write_bytes(picture)
        console.print(f"written: {request.svg}")
    return 0


def _chosen(request: Request) -> Path:
    """The directory of the chosen start: by number, else the last start that got as far as an iteration."""
    traces, starts = request.run / TRACES, traced_starts(request.run)
    if not starts:
        raise ConfigError(f"run: {request.run} was not traced; train with timing.trace=true")
    if request.start is None:
        newest_first = [traces / str(start) for start in reversed(starts)]
        return next((path for path in newest_first if _has_iterations(path)), newest_first[0])
    if request.start not in starts:
        raise ConfigError(f"--start: got {request.start}, allowed {', '.join(map(str, starts))}")
    return traces / str(request.start)


def _has_iterations(directory: Path) -> bool:
    try:
        return any(track.marks(Mark.ITERATION) for track in read_tracks(directory))
    except ConfigError:
        return False


def _phase_table(track: ThreadTrack) -> Table:
    begin, end = track.window
    title = f"{track.process}, {track.thread}: {(end - begin) / 1e9:,.1f} s"
    if track.num_lost:
        title += f", the {track.num_lost:,} records before them replaced: raise timing.trace_mb"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column("ms per span")
    for name in ("spans", *(f"p{percent}" for percent in PERCENTILES), "max", "of wall"):
        table.add_column(name, justify="right")
    for name in track.names:
        starts, stops = track.spans(name)
        if len(starts):
            lengths_ms = (stops - starts) / 1e6
            cells = [f"{value:,.3f}" for value in (*np.percentile(lengths_ms, PERCENTILES), lengths_ms.max())]
            share = (stops - starts).sum() / (end - begin)
            table.add_row(name, f"{len(starts):,}", *cells, f"{share:.1%}")
    return table


def _overlaps(tracks: Sequence[ThreadTrack]) -> Iterator[str]:
    """Lines about how far the first learner and the collectors worked at the same time."""
    learners = [track for track in tracks if track.thread == "learner 0" and track.has_spans]
    collectors = [track for track in tracks if track.thread.startswith("collector") and track.has_spans]
    if not learners or not collectors or (overlap := overlap_of(learners, collectors)) is None:
        return
    yield (
        f"overlap of learner 0 and the collectors: {overlap.ratio:.1%}; they worked {overlap.one_ns / 1e9:,.1f} s and"
        f" {overlap.other_ns / 1e9:,.1f} s, {overlap.both_ns / 1e9:,.1f} s of it at the same time"
    )
    share = share_inside(learners[0].spans(LearnerPhase.COLLECTOR_WAIT), collectors)
    if share is not None:
        yield f"of the learner's collector_wait, a collector worked during {share:.1%}"
