"""The panel of a terminal: the newest record, redrawn by the caller's calls only."""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from offpolicy.logger.console import OwnConsole, PlainLines, View, number
from offpolicy.logger.job_control import JobControl, is_foreground
from offpolicy.logger.keyboard import Keyboard
from offpolicy.logger.notebook import NotebookView, notebook_display
from offpolicy.logger.panel_layout import LEAST_HEIGHT, LEAST_WIDTH, Room, render, render_help, render_status
from offpolicy.logger.panel_lines import Shown
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.safe_view import safe_view
from offpolicy.output import drain, is_behind, nonblocking
from offpolicy.timing.bottleneck import Verdict

REFRESH_S = 0.25  # least seconds between two drawings of records: each costs milliseconds
MESSAGE_RECORDS = 3  # records for which a message stands in the panel


class Panel(View):
    """A rich panel on the terminal's alternate screen, where a resize leaves nothing behind. No refresh thread.

    What it showed last, and all messages, are printed on the ordinary screen when it is closed. While another job has
    the terminal, or it has not taken the last frame yet, nothing is drawn. Raises what drawing raises: `SafeView` goes
    on with plain lines.
    """

    def __init__(
        self, console: Console, header: RunHeader, keys: TextIO | None = None, *, is_full: bool = False
    ) -> None:
        self._console, self._is_full = console, is_full
        self._shown = Shown(header)
        self._keyboard, self._keys = Keyboard(None), keys
        self._job = JobControl()
        self._messages: list[str] = []
        self._is_on_screen = self._is_closed = self._is_stopping = self._is_helping = False
        self._is_stale = False  # the newest frame was not drawn: the terminal had not taken the one before
        self._status = ""
        self._message_until = 0
        self._drawn_s = float("-inf")
        self._drawn_size = (0, 0)

    def set_header(self, header: RunHeader) -> None:
        """Takes over what has become known of the run."""
        self._shown.header = header

    def record(self, record: Record, verdict: Verdict | None = None) -> None:
        """Draws the record, unless the last drawing is less than 250 ms old on the run's clock."""
        self._shown.add(record, verdict)
        self._draw_record(record)

    def last_record(self, record: Record) -> None:
        """Draws the course of learning: the times are those of the last evaluation and of saving."""
        if "perf/iter_ms" in self._shown.record:
            self._shown.end_with(record)
        else:
            self._shown.add(record, None)
        self._draw_record(record)

    def _draw_record(self, record: Record) -> None:
        if self._shown.num_records >= self._message_until:
            self._shown.message = ""
        wall_s = number(record, "time/elapsed_s") or number(record, "wall_s") or 0.0
        if wall_s - self._drawn_s >= REFRESH_S:
            self._drawn_s = wall_s
            self._draw()

    def status(self, status: str) -> None:
        """Draws the status, until there is a record."""
        if not self._shown.num_records:
            self._status = status
            self._draw()

    def activity(self, activity: str) -> None:
        """Draws what the run does besides learning; '' when it learns again."""
        if not self._is_stopping and activity != self._shown.activity:
            self._shown.activity = activity
            self._redraw()

    def stopping(self, message: str) -> None:
        """Draws at once that the run is being stopped, and goes on saying so."""
        self._is_stopping, self._shown.activity = True, message
        self._redraw()

    def message(self, message: str) -> None:
        """Shows a line for a while; it is printed again at the end."""
        self._messages.append(message)
        self._shown.message = message
        self._message_until = self._shown.num_records + MESSAGE_RECORDS
        self._redraw()

    def tick(self) -> None:
        """Answers Ctrl-Z, the keys pressed, and a terminal that has another size, or has come back."""
        if self._job.is_noted:
            self._leave()
            drain(self._console.file)  # before this process stops
            self._job.answer()
        keys = self._keyboard.read()
        if keys:
            self._is_helping = not self._is_helping and "?" in keys
        is_due = self._is_stale or not self._is_on_screen
        if keys or is_due or self._drawn_size != tuple(self._console.size):
            self._redraw()

    def finish(self, table: RenderableType) -> None:
        """Closes the panel, and prints the summary below its last frame."""
        self.close()
        self._console.print(table, crop=False)  # a long command is wrapped by the terminal: it can be pasted

    def close(self) -> None:
        """Gives the terminal back and prints messages and last frame; a second call prints the messages since."""
        self._is_closed = True
        try:
            self._leave()
            while self._messages:
                self._console.print(Text(self._messages.pop(0)), soft_wrap=True)  # no path is cut
            if self._shown.num_records:
                self._shown.message = self._shown.activity = ""
                self._shown.num_records = 0
                self._console.print(render(self._shown, self._room()))
        finally:
            drain(self._console.file)
            self._job.close()

    def _room(self) -> Room:
        width, height = self._console.size
        return Room(width, height, self._console.options.ascii_only, self._is_full)

    def _redraw(self) -> None:
        if self._shown.num_records or self._status or self._shown.activity:
            self._draw()

    def _draw(self) -> None:
        if self._is_closed or not is_foreground(self._console.file):
            return
        self._is_stale = is_behind(self._console.file)
        if self._is_stale:
            return
        if not self._is_on_screen:
            self._enter()
        room = self._room()
        self._drawn_size = (room.width, room.height)
        if self._is_helping and room.width >= LEAST_WIDTH and room.height >= LEAST_HEIGHT:
            frame = render_help(self._shown, room)
        elif self._shown.num_records:
            frame = render(self._shown, room)
        else:
            frame = render_status(self._shown.activity or self._status, self._messages, self._shown.header, room)
        self._console.update_screen(frame)

    def _enter(self) -> None:
        """Takes the terminal: its screen, its keys, and Ctrl-Z."""
        self._is_on_screen = True
        self._job.open(self._console.file)
        self._keyboard = Keyboard(self._keys)
        self._shown.has_help = self._keyboard.is_open
        self._console.show_cursor(False)
        self._console.set_alt_screen(True)

    def _leave(self) -> None:
        """Gives screen and keys of the terminal back."""
        self._keyboard.close()
        if self._is_on_screen:
            self._is_on_screen = False
            self._console.show_cursor(True)
            self._console.set_alt_screen(False)


def open_view(panel: str, stream: TextIO | None, header: RunHeader) -> View:
    """Returns the panel if `panel` is on, or auto or full on a terminal that can draw one; else plain lines.

    A run that is started in the background has plain lines, as other jobs there. A notebook has a line of progress
    that is written anew, unless `panel` is off. No view but that one waits for whoever reads the stream. A program may
    have put anything in its place, or nothing: what cannot be asked is no terminal.
    """
    stream = None if stream is None else nonblocking(stream)
    plain = PlainLines(stream, header)
    if panel != "off" and (display := notebook_display()) is not None:
        return safe_view(NotebookView(display, header), plain)
    console = None if stream is None or panel == "off" else _console(stream, is_forced=panel == "on")
    return plain if console is None else safe_view(Panel(console, header, sys.stdin, is_full=panel == "full"), plain)


def _console(stream: TextIO, *, is_forced: bool) -> Console | None:
    """Returns a console for the panel; None where it cannot be drawn."""
    try:
        console = OwnConsole(file=stream, force_terminal=True if is_forced else None)
        return console if is_forced or _can_draw(console, stream) else None
    except Exception:  # of a stream that a program has put in place of stdout, or that is closed
        return None


def _can_draw(console: Console, stream: TextIO) -> bool:
    is_ours = stream.isatty() and is_foreground(stream)
    return is_ours and console.is_terminal and not console.is_dumb_terminal  # as the user's environment says
