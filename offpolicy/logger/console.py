"""The terminal: a panel that redraws itself, or one plain line per interval. A closed terminal never raises."""

from __future__ import annotations

import os
from typing import Protocol, TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel as Box
from rich.text import Text

from offpolicy.logger.panel import render
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.text import duration, fixed, number, rate, text
from offpolicy.timing.bottleneck import Verdict

REFRESH_S = 0.25  # at most 4 Hz: a redraw costs milliseconds and a reader gains nothing from more


class View(Protocol):
    """What the logger shows a person."""

    def record(self, record: Record, verdict: Verdict | None = None) -> None:
        """Show the newest record; `verdict` is the one that it holds as text."""

    def status(self, status: str) -> None:
        """Say what the run is doing before its first record."""

    def message(self, message: str) -> None:
        """Say something that stays readable."""

    def finish(self, table: RenderableType) -> None:
        """Show the end-of-run summary; nothing follows but `close`."""

    def close(self) -> None:
        """Give the terminal back."""


def plain_line(record: Record, total_timesteps: int) -> str:
    """One interval in one line of ASCII."""
    steps = int(number(record, "env_steps") or 0)
    wait_ms = number(record, "timing/learner_collector_wait_ms")
    return (
        f"{100 * steps // total_timesteps}% step={steps}/{total_timesteps}"
        f" ret={fixed(number(record, 'rollout/ep_rew_mean'), 1)}"
        f" thru={rate(number(record, 'perf/steps_per_sec'))}"
        f" I={rate(number(record, 'perf/collector_capacity'))}"
        f" T={rate(number(record, 'perf/learner_capacity'))}"
        f" wait={fixed(wait_ms, 1)}{'' if wait_ms is None else 'ms'}"
        f" utd={fixed(number(record, 'perf/utd'), 2)}"
        f" eta={duration(number(record, 'time/eta_s'))}"
        f" bottleneck={text(record, 'perf/bottleneck') or '-'}"
    )


class PlainLines:
    """One flushed line per interval, for pipes and files."""

    def __init__(self, stream: TextIO, header: RunHeader) -> None:
        self._stream = stream
        self._header = header
        self._is_open = True

    def record(self, record: Record, verdict: Verdict | None = None) -> None:
        """Write the record's line."""
        self._line(plain_line(record, self._header.total_timesteps))

    def status(self, status: str) -> None:
        """Write the status as a line."""
        self._line(status)

    def message(self, message: str) -> None:
        """Write the message as it is."""
        self._line(message)

    def finish(self, table: RenderableType) -> None:
        """Write the table without colours."""
        console = Console(width=100, color_system=None, force_terminal=False, legacy_windows=False)
        with console.capture() as capture:
            console.print(table)
        self._line(capture.get().rstrip("\n"))

    def close(self) -> None:
        """Nothing is held."""

    def _line(self, line: str) -> None:
        if not self._is_open:
            return
        encoding = self._stream.encoding or "utf-8"
        try:
            self._stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._is_open = False
            silence(self._stream)


class Panel:
    """A rich panel on a terminal, redrawn by the caller's calls only: no refresh thread."""

    def __init__(self, console: Console, header: RunHeader) -> None:
        self._console = console
        self._header = header
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._is_open = True
        self._is_started = False
        self._record: Record | None = None
        self._verdict: Verdict | None = None
        self._drawn_s = float("-inf")

    def record(self, record: Record, verdict: Verdict | None = None) -> None:
        """Draw the record, unless the last drawing is less than 250 ms old on the run's clock."""
        wall_s = number(record, "wall_s") or 0.0
        self._record, self._verdict = record, verdict
        if wall_s - self._drawn_s >= REFRESH_S:
            self._drawn_s = wall_s
            self._draw(self._rendered(record))

    def status(self, status: str) -> None:
        """Draw the status, until there is a record."""
        if self._record is None:
            self._draw(Box(Text(status), title="offpolicy", title_align="left"))

    def message(self, message: str) -> None:
        """Print above the panel."""
        self._guarded(Text(message))

    def finish(self, table: RenderableType) -> None:
        """Leave the last record on screen, with the summary below it."""
        if self._record is not None:
            self._draw(self._rendered(self._record))
        self.close()
        self._guarded(table)

    def close(self) -> None:
        """Stop drawing; a second call does nothing."""
        if self._is_started:
            self._is_started = False
            try:
                self._live.stop()
            except (OSError, ValueError):
                self._fail()

    def _rendered(self, record: Record) -> RenderableType:
        width, height = self._console.size
        # One line less than the terminal: a full screen would scroll by one line at each redraw.
        ascii_only = self._console.options.ascii_only
        return render(record, self._verdict, self._header, width, height - 1, ascii_only=ascii_only)

    def _draw(self, renderable: RenderableType) -> None:
        if not self._is_open:
            return
        try:
            if not self._is_started:
                self._live.start()
                self._is_started = True
            self._live.update(renderable, refresh=True)
        except (OSError, ValueError):
            self._fail()

    def _guarded(self, renderable: RenderableType) -> None:
        if not self._is_open:
            return
        try:
            self._console.print(renderable)
        except (OSError, ValueError):
            self._fail()

    def _fail(self) -> None:
        self._is_open = False
        silence(self._console.file)


def silence(stream: object) -> None:
    """Point a dead standard stream at the null device, or its flush at exit would fail and change the exit code."""
    try:
        descriptor = stream.fileno()  # type: ignore[attr-defined]  # rich wraps streams; any without one raises here
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)
    except (OSError, ValueError, AttributeError):
        return


def open_view(panel: str, stream: TextIO, header: RunHeader) -> View:
    """The panel if `panel` is on, or auto on a terminal; else plain lines."""
    if panel == "on" or (panel == "auto" and stream.isatty()):
        return Panel(Console(file=stream, force_terminal=True if panel == "on" else None), header)
    return PlainLines(stream, header)
