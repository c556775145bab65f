"""The trace of a run: `timing.trace=true` keeps one, `offpolicy trace RUN` reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from offpolicy.config.run_files import read_config
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.timing.chrome_trace import Event, origin_ns, write_chrome_trace
from offpolicy.timing.phases import LearnerPhase
from offpolicy.timing.profiler import PROFILE, read_profile
from offpolicy.timing.trace_reader import Lane, overlap_of, read_lanes, share_inside
from offpolicy.timing.trace_writer import Mark, create_lanes

TRACES, TRACE_JSON = "trace", "trace.json"
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Request:
    """What `offpolicy trace` was asked for. `start` counts the starts of the run from 0; None: the last one traced."""

    run: Path
    svg: Path | None = None  # a picture of a few typical iterations
    iterations: int = 3
    start: int | None = None


def begin(cfg: RunConfig, run_dir: Path, names: Sequence[str]) -> Path | None:
    """Reserve the lanes `names`, and the supervisor's; None where no trace was asked for.

    Each start of a run has a directory of its own. Raises `ConfigError` without room on the disk.
    """
    if not cfg.timing.trace:
        return None
    directory = run_dir / TRACES / str(max(_starts(run_dir), default=-1) + 1)
    create_lanes(directory, names, cfg.timing.trace_mb, quiet=["supervisor"])
    return directory


def _starts(run_dir: Path) -> list[int]:
    """The starts of a run that were traced, by number."""
    return sorted(int(path.name) for path in (run_dir / TRACES).glob("*") if path.name.isdigit())


def write_json(directory: Path, run_dir: Path) -> None:
    """Write `trace.json` from the lanes of one start; one without an iteration does not replace that of another.

    Raises OSError, or `ConfigError` if nothing was traced.
    """
    path, lanes = run_dir / TRACE_JSON, read_lanes(directory)
    if not path.exists() or any(lane.marks(Mark.ITERATION) for lane in lanes):
        write_chrome_trace(path, lanes, _profiled(directory, lanes))


def _profiled(directory: Path, lanes: Sequence[Lane]) -> Iterator[Event]:
    """What torch.profiler saw, if it was attached, on the clock of the trace. Raises `ConfigError` if it is damaged."""
    path = directory / PROFILE
    if path.is_file():
        try:
            content = json.loads(path.read_text())
        except ValueError as error:
            raise ConfigError(f"{path} is damaged ({error}); delete it") from None
        yield from read_profile(content, origin_ns(lanes), {lane.pid for lane in lanes})


def trace(request: Request) -> int:
    """Print how long the phases were and how the sides overlapped; it may be asked while the run goes on."""
    if request.svg is not None:
        import offpolicy.analysis.plots  # noqa: F401  # refuses a missing matplotlib before anything is read
    directory = _chosen(request)
    lanes = read_lanes(directory)
    console = Console(markup=False, highlight=False)
    if request.start is not None or not (request.run / TRACE_JSON).exists():
        write_json(directory, request.run)
    for lane in lanes:
        if lane.has_spans:
            console.print(_phase_table(lane))
    for line in _overlaps(lanes):
        console.print(line)
    console.print("spans below a microsecond are not in a trace")
    console.print(
        f"{request.run / TRACE_JSON}: for https://ui.perfetto.dev (it stays on this machine), chrome://tracing"
    )
    if request.svg is not None:
        from offpolicy.analysis.plots import timeline_svg, tracks_of, typical_window  # matplotlib is an extra

        tracks = tracks_of(lanes)
        picture = timeline_svg(tracks, *typical_window(tracks, request.iterations), _title(request.run))
        request.svg.parent.mkdir(parents=True, exist_ok=True)
        request.svg.write_bytes(picture)
        console.print(f"written: {request.svg}")
    return 0


def _chosen(request: Request) -> Path:
    """The lanes that were asked for: by number, else of the last start that got as far as an iteration."""
    traces, starts = request.run / TRACES, _starts(request.run)
    if not starts:
        raise ConfigError(f"run: {request.run} was not traced; train with timing.trace=true")
    if request.start is None:
        return next((path for path in _newest_first(traces, starts) if _has_iterations(path)), traces / str(starts[-1]))
    if request.start not in starts:
        raise ConfigError(f"--start: got {request.start}, allowed {', '.join(map(str, starts))}")
    return traces / str(request.start)


def _newest_first(traces: Path, starts: Sequence[int]) -> Iterator[Path]:
    return (traces / str(start) for start in reversed(starts))


def _has_iterations(directory: Path) -> bool:
    try:
        return any(lane.marks(Mark.ITERATION) for lane in read_lanes(directory))
    except ConfigError:
        return False


def _title(run: Path) -> str:
    cfg = read_config(run)
    return f"{cfg.runner.name}, collect.mode={cfg.collect_mode}"


def _phase_table(lane: Lane) -> Table:
    begin, end = lane.window
    title = f"{lane.process}, {lane.thread}: {(end - begin) / 1e9:,.1f} s"
    if lane.num_lost:
        title += f", the {lane.num_lost:,} records before them replaced: raise timing.trace_mb"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column("ms per span")
    for name in ("spans", *(f"p{percent}" for percent in PERCENTILES), "max", "of wall"):
        table.add_column(name, justify="right")
    for name in lane.names:
        starts, stops = lane.spans(name)
        if len(starts):
            lengths_ms = (stops - starts) / 1e6
            cells = [f"{value:,.3f}" for value in (*np.percentile(lengths_ms, PERCENTILES), lengths_ms.max())]
            share = (stops - starts).sum() / (end - begin)
            table.add_row(name, f"{len(starts):,}", *cells, f"{share:.1%}")
    return table


def _overlaps(lanes: Sequence[Lane]) -> Iterator[str]:
    """How the first learner and the collectors shared the time, and whether they agree about it."""
    learners = [lane for lane in lanes if lane.thread == "learner 0" and lane.has_spans]
    collectors = [lane for lane in lanes if lane.thread.startswith("collector") and lane.has_spans]
    if not learners or not collectors or (overlap := overlap_of(learners, collectors)) is None:
        return
    yield (
        f"overlap of learner 0 and the collectors: {overlap.ratio:.1%}; they worked {overlap.one_ns / 1e9:,.1f} s and"
        f" {overlap.other_ns / 1e9:,.1f} s, {overlap.both_ns / 1e9:,.1f} s of it at the same time"
    )
    share = share_inside(learners[0].spans(LearnerPhase.COLLECTOR_WAIT), collectors)
    if share is not None:
        yield f"of the learner's collector_wait, a collector worked during {share:.1%}"
