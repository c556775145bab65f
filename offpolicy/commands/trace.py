"""`offpolicy trace RUN`: reads the trace that a run keeps with `timing.trace=true`."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from offpolicy.analysis.chrome_trace import TRACE_JSON, export_trace
from offpolicy.analysis.trace_reader import ThreadTrack, overlap_of, read_tracks, share_inside
from offpolicy.commands.options import add_run, at_least
from offpolicy.config.run_files import read_config
from offpolicy.errors import EXIT_OK, ConfigError
from offpolicy.files import write_output
from offpolicy.logger.console import plain_console, text_table
from offpolicy.runs import check_output
from offpolicy.timing.phases import LearnerPhase
from offpolicy.timing.trace_writer import TRACES, Mark, traced_starts

PERCENTILES = (50, 95, 99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run and the picture."""
    add_run(parser)
    parser.add_argument("--svg", type=Path, help="file for a picture of a few typical iterations")
    parser.add_argument("--iterations", type=at_least(1), default=3, help="how many in the picture (default: 3)")
    parser.add_argument("--start", type=at_least(0), help="of a resumed run: which start (default: the last)")


def run(arguments: argparse.Namespace) -> int:
    """Prints how long the phases were and how the sides overlapped. Raises `ConfigError`."""
    run, svg, console = arguments.run, arguments.svg, plain_console()
    if svg is not None:
        from offpolicy.analysis.plots import timeline_svg  # refuses a missing matplotlib before anything is read

        check_output("--svg", svg)
    directory = chosen_start(run, arguments.start)
    tracks = read_tracks(directory)
    for track in tracks:
        if track.has_spans:
            console.print(_phase_table(track))
    for line in (*_overlaps(tracks), "spans below a microsecond are not in a trace"):
        console.print(line)
    what = "of another start, as this one has no iteration"
    try:
        if export_trace(directory, run):
            what = "for https://ui.perfetto.dev (it stays on this machine), chrome://tracing"
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
    console.print(f"{run / TRACE_JSON}: {what}", soft_wrap=True)
    if svg is not None:
        cfg = read_config(run)
        title = f"{cfg.runner.name}, collect.mode={cfg.collect_mode}"
        write_output("--svg", svg, timeline_svg(tracks, arguments.iterations, title))
        console.print(f"written: {svg}", soft_wrap=True)
    return EXIT_OK


def chosen_start(run: Path, start: int | None) -> Path:
    """Returns the directory of start number `start`, from 0; None: of the last one that got as far as an iteration."""
    starts = traced_starts(run)
    if not starts:
        raise ConfigError(f"run: {run} was not traced; train with timing.trace=true")
    if start is not None and start not in starts:
        raise ConfigError(f"--start: got {start}, allowed {', '.join(map(str, starts))}")
    for number in reversed(starts) if start is None else ():
        with contextlib.suppress(ConfigError):  # a start whose tracks are empty
            if any(track.marks(Mark.ITERATION) for track in read_tracks(run / TRACES / str(number))):
                return run / TRACES / str(number)
    return run / TRACES / str(starts[-1] if start is None else start)


def _phase_table(track: ThreadTrack) -> Table:
    begin, end = track.window
    title = f"{track.process}, {track.thread}: {(end - begin) / 1e9:,.1f} s"
    if track.num_lost:
        title += f", the {track.num_lost:,} records before them replaced: raise timing.trace_mb"
    columns = [f"p{percent}" for percent in PERCENTILES]
    table = text_table("ms per span", "spans", *columns, "max", "of wall", title=title)
    table.title_justify = "left"
    for name in track.names:
        starts, stops = track.spans(name)
        if len(starts):
            lengths_ms = (stops - starts) / 1e6
            values = (*np.percentile(lengths_ms, PERCENTILES), lengths_ms.max())
            cells = [f"{value:.3f}" if value < 999.9995 else f"{value:,.0f}" for value in values]
            table.add_row(name, f"{len(starts):,}", *cells, f"{lengths_ms.sum() * 1e6 / (end - begin):.1%}")
    return table


def _overlaps(tracks: Sequence[ThreadTrack]) -> Iterator[str]:
    """Yields lines on how far the first learner and the collectors worked at the same time."""
    learners = [track for track in tracks if track.thread == "learner 0" and track.has_spans]
    collectors = [track for track in tracks if track.thread.startswith("collector") and track.has_spans]
    if not learners or not collectors or (overlap := overlap_of(learners, collectors)) is None:
        return
    yield (
        f"overlap of learner 0 and the collectors: {overlap.ratio:.1%}; they worked {overlap.one_ns / 1e9:,.1f} s and"
        f" {overlap.other_ns / 1e9:,.1f} s, {overlap.both_ns / 1e9:,.1f} s of it at the same time"
    )
    fraction = share_inside(learners[0].spans(LearnerPhase.COLLECTOR_WAIT), collectors)
    if fraction is not None:
        yield f"of the learner's collector_wait, a collector worked during {fraction:.1%}"
