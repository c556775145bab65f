"""The panel of a terminal: the newest record, redrawn by the caller's calls only."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from offpolicy.logger.console import PlainLines, View, number, silence
from offpolicy.logger.keyboard import Keyboard
from offpolicy.logger.panel_layout import LEAST_HEIGHT, LEAST_WIDTH, Room, render, render_help, render_status
from offpolicy.logger.panel_lines import Shown
from offpolicy.logger.record import Record, RunHeader
from offpolicy.timing.bottleneck import Verdict
from offpolicy.types import EvalResult

REFRESH_S = 0.25  # least seconds between two drawings of records: each costs milliseconds
MESSAGE_RECORDS = 3  # records for which a message stands in the panel
MOST_MESSAGES = 200  # that are printed again when the panel is closed


class Panel:
    """A rich panel on the terminal's alternate screen, where a resize leaves nothing behind. No refresh thread.

    What it showed last, and all messages, are printed on the ordinary screen when it is closed.
    """

    def __init__(
        self, console: Console, header: RunHeader, keys: TextIO | None = None, *, is_full: bool = False
    ) -> None:
        self._console, self._is_full = console, is_full
        self._shown = Shown(header)
        self._keyboard, self._keys = Keyboard(None), keys
        self._messages: deque[str] = deque(maxlen=MOST_MESSAGES)
        self._is_open = True
        self._is_started = self._is_stopping = self._is_helping = False
        self._status = ""
        self._message_until = 0
        self._drawn_s = float("-inf")
        self._drawn_size = (0, 0)

    def set_header(self, header: RunHeader) -> None:
        """Takes over what has become known of the run."""
        self._shown.header = header

    def record(self, record: Record, verdict: Verdict | None = None) -> None:
        """Draws the record, unless the last drawing is less than 250 ms old on the run's clock.

        Of a record that holds the end of the run, only the course of learning: its times are those of the last
        evaluation and of saving.
        """
        total = self._shown.header.total_timesteps
        is_closing = self._is_stopping or (number(record, "env_steps") or 0.0) >= total
        if is_closing and "perf/iter_ms" in self._shown.record:
            self._shown.end_with(record)
        else:
            self._shown.add(record, verdict)
        if self._shown.num_records >= self._message_until:
            self._shown.message = ""
        wall_s = number(record, "time/elapsed_s") or number(record, "wall_s") or 0.0
        if wall_s - self._drawn_s >= REFRESH_S:
            self._drawn_s = wall_s
            self._draw()

    def evaluation(self, result: EvalResult) -> None:
        """Does nothing: the next record holds it."""

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
        if self._is_started:
            self._redraw()

    def tick(self) -> None:
        """Answers the keys pressed, and a terminal of another size."""
        keys = self._keyboard.read()
        if keys:
            self._is_helping = not self._is_helping and "?" in keys
        if self._is_started and (keys or self._drawn_size != tuple(self._console.size)):
            self._redraw()

    def finish(self, table: RenderableType) -> None:
        """Closes the panel, and prints the summary below its last frame."""
        self.close()
        self._output(lambda: self._console.print(table))

    def close(self) -> None:
        """Gives the terminal back and prints messages and last frame; a second call does nothing."""
        self._keyboard.close()
        if self._is_started:
            self._is_started = False
            self._output(self._leave)
        while self._messages:
            message = self._messages.popleft()
            self._output(lambda message=message: self._console.print(Text(message)))  # type: ignore[misc]  # bound now
        if self._shown.num_records:
            self._shown.message = self._shown.activity = ""
            self._shown.num_records = 0
            self._output(lambda: self._console.print(render(self._shown, self._room())))

    def _leave(self) -> None:
        self._console.show_cursor(True)
        self._console.set_alt_screen(False)

    def _room(self) -> Room:
        width, height = self._console.size
        return Room(width, height, self._console.options.ascii_only, self._is_full)

    def _redraw(self) -> None:
        if self._shown.num_records or self._status:
            self._draw()

    def _draw(self) -> None:
        if not self._is_started:
            self._start()
        room = self._room()
        self._drawn_size = (room.width, room.height)
        if self._is_helping and room.width >= LEAST_WIDTH and room.height >= LEAST_HEIGHT:
            frame = render_help(self._shown, room)
        elif self._shown.num_records:
            frame = render(self._shown, room)
        else:
            frame = render_status(self._status, list(self._messages), self._shown.header, room)
        self._output(lambda: self._console.update_screen(frame))

    def _start(self) -> None:
        self._keyboard = Keyboard(self._keys)
        self._shown.has_help = self._keyboard.is_open
        self._output(lambda: self._console.show_cursor(False))
        self._output(lambda: self._console.set_alt_screen(True))
        self._is_started = self._is_open

    def _output(self, write: Callable[[], object]) -> None:
        """Writes; a closed terminal ends the output, never the run."""
        if self._is_open:
            try:
                write()
            except (OSError, ValueError):
                self._is_open = False
                silence(self._console.file)


def open_view(panel: str, stream: TextIO, header: RunHeader) -> View:
    """Returns the panel if `panel` is on, or auto or full on a terminal that can draw one; else plain lines."""
    console = Console(file=stream, force_terminal=True if panel == "on" else None)
    can_draw = stream.isatty() and not console.is_dumb_terminal
    if panel == "on" or (panel in ("auto", "full") and can_draw):
        return Panel(console, header, sys.stdin, is_full=panel == "full")
    return PlainLines(stream, header)
